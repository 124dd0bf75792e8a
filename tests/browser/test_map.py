"""The map of a conversation's branches, as a person uses it."""

from __future__ import annotations

import json
import re

import pytest

from .driving import Chat
from .test_modules import call

pytestmark = pytest.mark.slow

STORY = "Tell me a story about a fox."
SHORT = {"Temperature": "1", "Thinking": "off", "Maximum tokens": "8"}


def ends(chat: Chat) -> int:
    return chat.page.locator(".map-node.end").count()


def sampled(chat: Chat) -> None:
    """A message with some short answers, in the map, whose message is selected."""
    chat.set(SHORT)
    chat.ask(STORY)
    chat.press("Map")
    chat.page.locator(".map-node.message").click()
    chat.press("Sample")
    chat.until(lambda: ends(chat) == 5)
    chat.wait_done()
    chat.until(lambda: chat.page.locator(".map-node.growing").count() == 0)


def test_ways_from_a_node_are_one_request_and_grow_as_branches(chat: Chat) -> None:
    bodies = []
    chat.page.on(
        "request", lambda each: bodies.append(each.post_data) if "/chat/" in each.url else None
    )
    sampled(chat)
    _, body = (json.loads(each) for each in bodies)
    assert (body["n"], body["temperature"]) == (4, 1)
    answers = [each for each in chat.stored[0]["nodes"].values() if each["role"] == "assistant"]
    assert [len(answer["tokens"]) for answer in answers] == [8] * 5
    labels = chat.page.locator(".map-node.end").evaluate_all("all => all.map(e => e.ariaLabel)")
    assert all("at the token limit" in label and "log p −" in label for label in labels)
    # Keys move in the tree, and Enter shows a branch in the conversation.
    chat.page.keyboard.press("End")
    last = chat.page.locator(".map-node:focus")
    chat.page.keyboard.press("Enter")
    assert "end" in (chat.page.locator(".map-node.shown").last.get_attribute("class") or "")
    assert last.count() == 0
    shown = chat.page.locator(".map-node.end.shown").text_content()
    assert shown is not None and chat.answer.split()[-1] in shown


def test_branches_are_pruned_put_back_named_found_and_compared(chat: Chat) -> None:
    sampled(chat)
    page = chat.page
    first, last = page.locator(".map-node.end").first, page.locator(".map-node.end").last
    kept = chat.stored
    last.focus()
    page.keyboard.press("Delete")
    chat.until(lambda: ends(chat) == 4)
    page.get_by_text(re.compile("^[1-4] of 4$")).wait_for()
    chat.press("Undo")
    chat.until(lambda: ends(chat) == 5)
    assert chat.stored[0]["nodes"] == kept[0]["nodes"]
    last.focus()
    page.keyboard.press("F2")
    page.get_by_label("Name of the node").fill("the odd one")
    page.keyboard.press("Enter")
    page.get_by_role("treeitem", name=re.compile("^the odd one")).wait_for()
    page.reload()
    chat.press("Map")
    page.get_by_label("Find a name or text in the map").fill("odd one")
    page.get_by_text("1 found").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("navigation").get_by_role("searchbox").fill("odd one")
    page.get_by_role("navigation").get_by_text("the odd one").wait_for()
    page.get_by_role("navigation").get_by_role("searchbox").fill("")
    for each in (first, last):
        each.focus()
        page.keyboard.press("ArrowRight")
        page.get_by_role("button", name="Mark", exact=True).click()
    chat.press("Compare")
    dialog = page.get_by_role("dialog", name="Two versions side by side")
    assert re.search("tokens? (is|are) the same|differ from the first", dialog.inner_text())
    dialog.get_by_role("button", name="Close").click()


def test_a_message_that_is_sent_beside_the_map_is_selected_and_in_sight(chat: Chat) -> None:
    sampled(chat)
    chat.ask("What is the capital of France?")
    said = chat.page.get_by_role("treeitem", selected=True)
    shown = chat.page.locator(".map-node.shown")
    assert said.get_attribute("data-id") == shown.last.get_attribute("data-id")
    picture = chat.page.locator(".map-picture").bounding_box()
    drawn = said.locator(".box").bounding_box()
    assert picture is not None and drawn is not None
    assert drawn["x"] + drawn["width"] <= picture["x"] + picture["width"]


def test_other_settings_are_tried_by_dropping_them_on_a_node(chat: Chat) -> None:
    sampled(chat)
    chip = chat.page.get_by_role("button", name="Temperature 1.5")
    chip.drag_to(chat.page.locator(".map-node.message"))
    chat.page.get_by_role("treeitem", name=re.compile("with temperature 1.5")).wait_for()
    chat.wait_done()
    # Touch and keyboard press the same for the selected node.
    chat.page.locator(".map-node.message").focus()
    chat.press("Temperature 0")
    chat.page.get_by_role("treeitem", name=re.compile("with temperature 0")).wait_for()
    chat.wait_done()


@pytest.mark.parametrize("width", [1280, 1000, 800, 390])
def test_no_chip_is_cut_off_and_all_can_be_had(chat: Chat, width: int) -> None:
    chat.page.set_viewport_size({"width": width, "height": 720})
    chat.press("Map")
    row = chat.page.locator(".map-chips")
    places = """row => {
      const { top, bottom, right } = row.getBoundingClientRect();
      const boxes = [...row.querySelectorAll("button")].map((chip) => chip.getBoundingClientRect());
      const isWhole = (box) => box.top >= top && box.bottom <= bottom;
      return boxes.map((box) => [isWhole(box), box.top >= bottom, box.right <= right]);
    }"""
    before = row.evaluate(places)
    assert all(whole != hidden and fits for whole, hidden, fits in before)
    assert before[0][0] and not all(whole for whole, _, _ in before)
    chat.press("More")
    assert all(whole for whole, _, _ in row.evaluate(places))
    chat.press("Fewer")
    assert row.evaluate(places) == before


def test_the_text_of_the_map_can_be_read_and_what_a_search_found_is_beside_it(chat: Chat) -> None:
    sampled(chat)
    chat.press("Search …")
    chat.page.get_by_label("Most tokens to generate").fill("40")
    chat.press("Search")
    chat.page.locator(".map-ranks button.map-chip").first.wait_for()
    chat.wait_done()
    chat.press("Fit")
    drawn = chat.page.locator(".map-node[aria-selected=true] .box").bounding_box()
    assert drawn is not None and drawn["height"] >= 0.84 * 44
    picture = chat.page.locator(".map-picture").bounding_box()
    ranks = chat.page.locator(".map-result").bounding_box()
    assert picture is not None and ranks is not None
    assert picture["x"] + picture["width"] <= ranks["x"] + 1
    chat.press("Close the list")
    assert not chat.page.locator(".map-result").is_visible()


def test_a_log_probability_has_a_minus_sign_unless_it_is_none(tab: Chat) -> None:
    given = ((-1.234, 2), (-0.004, 2), (-0.0004, 3), (0, 2), (-8894.9, 0))
    said = [call(tab, "map-node", "inLogs", *each) for each in given]
    assert said == ["−1.23", "0.00", "0.000", "0.00", "−8895"]


def test_what_a_search_found_leaves_the_list_when_it_is_pruned(chat: Chat) -> None:
    sampled(chat)
    chat.press("Search …")
    chat.page.get_by_label("Most tokens to generate").fill("40")
    chat.press("Search")
    chat.page.get_by_text("is shown.").wait_for()
    ranks = chat.page.locator(".map-ranks button.map-chip:visible")
    found = ranks.count()
    ranks.first.click()
    chat.page.locator(".map-node[aria-selected=true]").focus()
    chat.page.keyboard.press("Delete")
    chat.until(lambda: ranks.count() == found - 1)
    chat.press("Undo")
    chat.until(lambda: ranks.count() == found)


def test_rows_are_apart_by_what_is_written_above_and_below_them(tab: Chat) -> None:
    script = """(leaves) => import("/page/map-layout.js").then(({ layOut }) => {
      const plain = { edge: null, name: "", settings: "", children: [] };
      const end = (more, k) => ({ ...plain, id: k, kind: "end", ...more });
      const tree = { ...plain, id: "m", kind: "message", children: leaves.map(end) };
      return layOut(tree).filter(({ node }) => node.kind === "end").map(({ y }) => y);
    })"""
    first, *others = tab.page.evaluate(script, [{}, {}, {"settings": "x"}, {"name": "x"}])
    assert [y - first for y in others] == [54, 108, 192]


def test_ways_are_sampled_from_a_token_of_the_token_view(chat: Chat) -> None:
    chat.set(SHORT)
    chat.ask(STORY)
    chat.show_tokens()
    chat.token(3).click()
    with chat.page.expect_request("**/chat/completions") as asked:
        chat.press("Sample ways from here")
    body = json.loads(asked.value.post_data or "")
    assert (body["n"], len(body["prefix_tokens"])) == (4, 3)
    chat.until(lambda: ends(chat) == 5)
    chat.wait_done()
    chat.page.get_by_text("2 of 5").wait_for()


def test_a_search_keeps_the_most_likely_under_the_constraint(chat: Chat) -> None:
    form = r"(Once|One|There)[a-z ]{3,40}"
    chat.set(SHORT | {"The answer must be": "regex", "Regular expression": form})
    chat.ask(STORY)
    chat.press("Map")
    chat.page.locator(".map-node.message").focus()
    chat.press("Search …")
    chat.press("Search")
    chat.page.get_by_text("The search is over").wait_for()
    chat.wait_done()
    ranks = chat.page.locator(".map-ranks button.map-chip")
    scores = [
        float(re.findall(r"log p (\S+)", rank)[0].replace("−", "-"))
        for rank in ranks.all_inner_texts()
    ]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    found: list[str] = []
    for k in range(3):
        ranks.nth(k).click()
        chat.until(lambda: chat.answer and chat.answer not in found)
        found.append(chat.answer)
    assert all(re.match(form, text) for text in found)
    # The dropped ones fade, and can be removed.
    dropped = chat.page.locator(".map-node.end.dropped").count()
    assert dropped > 0
    before = ends(chat)
    chat.page.get_by_role("button", name=re.compile("^Remove the")).click()
    chat.until(lambda: ends(chat) == before - dropped)
