"""The map of a conversation's branches, as a person uses it."""

from __future__ import annotations

import json
import re

import pytest

from .driving import Chat, box_of

pytestmark = pytest.mark.slow

STORY = "Tell me a story about a fox."
SHORT = {"Temperature": "1", "Thinking": "off", "Maximum tokens": "8"}


def ends(chat: Chat) -> int:
    return chat.page.locator(".map-node.end").count()


def sampled(chat: Chat) -> None:
    """A message with some short answers, in the map, whose message is selected."""
    chat.ask(STORY, SHORT)
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
    # What is said beside the map is selected and in sight; a new conversation has no map.
    chat.ask("What is the capital of France?")
    said = chat.page.get_by_role("treeitem", selected=True)
    way = chat.page.locator(".map-node.shown")
    assert said.get_attribute("data-id") == way.last.get_attribute("data-id")
    picture, drawn = box_of(chat.page.locator(".map-picture")), box_of(said.locator(".box"))
    assert drawn["x"] + drawn["width"] <= picture["x"] + picture["width"]
    chat.press("New conversation")
    chat.page.locator("#welcome").wait_for()
    assert chat.page.locator("#map").count() == 0


@pytest.mark.parametrize("size", [(1280, 800), (1100, 720), (1000, 700), (844, 390), (390, 780)])
def test_the_map_is_beside_the_answer_or_where_there_is_no_room_over_it(
    chat: Chat, size: tuple[int, int]
) -> None:
    width, height = size
    chat.page.set_viewport_size({"width": width, "height": height})
    sampled(chat)
    if width > 1000:
        answer, panel = box_of(chat.answers.last), box_of(chat.page.locator("#map"))
        assert answer["width"] >= 300 and answer["x"] + answer["width"] <= panel["x"]
        assert 0 <= answer["y"] < height - 200
        return
    assert box_of(chat.page.locator(".map-picture"))["height"] >= height * 0.4
    for button in chat.page.locator("#map button:visible").all():
        box = box_of(button)
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert box["y"] >= 0 and box["y"] + box["height"] <= height
    chat.press("Read it")
    chat.until(lambda: chat.page.locator("#map").count() == 0)
    assert chat.answers.last.is_visible()


def test_a_search_keeps_the_most_likely_under_the_constraint(chat: Chat) -> None:
    form = r"(Once|One|There)[a-z ]{3,40}"
    chat.ask(STORY, SHORT | {"The answer must be": "regex", "Regular expression": form})
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
    # The dropped ones fade, and can be removed; what is pruned leaves the list.
    dropped = chat.page.locator(".map-node.end.dropped").count()
    assert dropped > 0
    before = ends(chat)
    chat.page.get_by_role("button", name=re.compile("^Remove the")).click()
    chat.until(lambda: ends(chat) == before - dropped)
    chat.page.locator(".map-node[aria-selected=true]").focus()
    chat.page.keyboard.press("Delete")
    chat.until(lambda: ranks.count() == 2)
    chat.press("Undo")
    chat.until(lambda: ranks.count() == 3)


def test_the_text_of_the_map_can_be_read_and_what_a_search_found_is_beside_it(chat: Chat) -> None:
    sampled(chat)
    chat.press("Search …")
    chat.page.get_by_label("Most tokens to generate").fill("40")
    chat.press("Search")
    chat.page.locator(".map-ranks button.map-chip").first.wait_for()
    chat.wait_done()
    chat.press("Fit")
    assert box_of(chat.page.locator(".map-node[aria-selected=true] .box"))["height"] >= 0.84 * 44
    picture, ranks = (box_of(chat.page.locator(name)) for name in (".map-picture", ".map-result"))
    assert picture["x"] + picture["width"] <= ranks["x"] + 1
    chat.press("Close the list")
    assert not chat.page.locator(".map-result").is_visible()
