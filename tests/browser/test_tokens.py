"""The token view: odds, marks, alternatives, branches, typing, tints, the strip and the panel."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import jsonschema
import pytest

from .driving import FACT, GREEDY, PERSON, RECORD, Chat, box_of, contrast, told

if TYPE_CHECKING:
    from playwright.sync_api import Locator


@pytest.mark.slow
def test_tokens_are_tinted_by_their_probability_and_say_it(chat: Chat) -> None:
    odds = [0.95, 0.8, 0.5, 0.2, 0.05, 0.001]
    events = [told(f" w{k}", index=k, logprob=math.log(share)) for k, share in enumerate(odds)]
    chat.answered(*events, tokens=True)
    tints = set()
    for k, share in enumerate(odds):
        token = chat.token(k)
        label = token.get_attribute("aria-label") or ""
        assert label.startswith(f"“w{k}”, {share * 100:.1f}"[:8])
        style = "t => getComputedStyle(t).backgroundColor + getComputedStyle(t).textDecorationStyle"
        tints.add(token.evaluate(style))
    assert len(tints) == len(odds)


def gone(reason: str, by: str | None = None) -> dict[str, object]:
    """What is told of a token before which another one was rejected."""
    about = {"id": 7, "token": " no", "bytes": list(b" no"), "reason": reason, "by": by}
    return {"rejected": [about]}


CAME_ABOUT: list[tuple[dict[str, object], str, str]] = [
    ({"forced": True}, "forced", "forced: the format left no other token"),
    ({"from_draft": True, "drafter": "text"}, "drafted", "drafted from earlier text and accepted"),
    ({"from_draft": True, "drafter": "head"}, "drafted", "drafted by the model's own head and"),
    ({"from_draft": True, "drafter": "model"}, "drafted", "drafted by a draft model and"),
    ({"from_draft": True, "drafter": "new"}, "drafted", "drafted and accepted by the model"),
    ({"attempts": 2}, "rejected", "drawn again 2 times because earlier draws were rejected"),
    ({"part": None}, "outside", "not part of the answer"),
    (gone("ban", "no way") | {"attempts": 1}, "rejected", "␣no banned: no␣way"),
    (gone("hook"), "rejected", "␣no rejected by a hook"),
    (gone("draft", "head"), "rejected", "␣no drafted by the model's own head, but the model"),
    (gone("length"), "rejected", "␣no left no room for a valid end"),
    (gone("check", "no such name"), "rejected", "␣no taken back: no␣such␣name"),
    (gone("loop"), "rejected", "␣no taken back, because the text repeated itself"),
]
"""What is told of a token, how it is marked, and what its panel says."""


def test_how_a_token_came_about_is_marked_and_said(chat: Chat) -> None:
    events = [told(f" w{k}", index=k, **about) for k, (about, _, _) in enumerate(CAME_ABOUT)]
    chat.answered(*events, tokens=True)
    for k, (about, name, words) in enumerate(CAME_ABOUT):
        assert name in (chat.token(k).get_attribute("class") or "").split()
        label = chat.token(k).get_attribute("aria-label") or ""
        assert ("1 rejected here" in label) == ("rejected" in about)
        chat.token(k).click()
        assert words in " ".join(chat.panel.inner_text().split())
        chat.page.keyboard.press("Escape")
    shown = chat.page.locator("#legend li:visible").all_inner_texts()
    assert "another was rejected" in [text.removeprefix("abc").strip() for text in shown]


def test_an_alternative_under_a_schema_still_gives_valid_json_and_others_are_crossed_out(
    chat: Chat,
) -> None:
    before = chat.extract(tokens=True)
    first = json.loads(before)
    chat.token(1).click()
    item = chat.alternative("item")
    assert item.is_disabled() and "not allowed here" in (item.get_attribute("aria-label") or "")
    item.evaluate("button => button.click()")
    assert chat.answer == before
    chat.page.keyboard.press("Escape")
    chat.take(4, "E")
    chat.until(lambda: chat.answer != json.dumps(first))
    chat.wait_done()
    record = json.loads(chat.answer)
    jsonschema.validate(record, PERSON)
    assert record["name"].startswith("E")
    assert record != first
    assert chat.token(4).get_attribute("aria-label") == chat.focused
    assert "chosen by hand" in chat.focused
    assert "from the cache" in chat.answers.last.inner_text()
    branch = chat.answer
    body = chat.asking(lambda: chat.say(f"{RECORD} Again."))  # the branch goes on
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == branch
    chat.answers.nth(1).wait_for()
    chat.wait_done()
    jsonschema.validate(json.loads(chat.answer), PERSON)


@pytest.mark.slow
def test_the_end_can_be_chosen_where_the_form_lets_the_text_end(chat: Chat) -> None:
    chat.ask(FACT, GREEDY | {"Alternatives to request": "20"})
    chat.show_tokens()
    chat.take(12, "<|im_end|>")
    chat.until(lambda: chat.answer.startswith("The capital of France is Paris<|im_end|>"))
    chat.press("Tokens")
    assert chat.answer == "The capital of France is Paris"
    chat.press("New conversation")
    form = r"The capital of France is [A-Z][a-z]+\."
    more = {"Regular expression": form, "Alternatives to request": "20"}
    before = chat.ask(FACT, GREEDY | {"The answer must be": "regex"} | more)
    chat.show_tokens()
    chat.token(12).click()
    assert chat.alternative("<|im_end|>").is_disabled()
    chat.type_instead("<|im_end|>")
    sentence = "The regular expression does not let the answer end here."
    chat.panel.get_by_text(sentence).wait_for()
    assert chat.answer == before


@pytest.mark.slow
def test_choosing_the_same_again_leads_to_the_branch_that_is_there(chat: Chat) -> None:
    first = chat.extract(tokens=True)
    chat.take(4, "E")
    chat.other_version()
    second = chat.answer
    chat.take(4, "M")
    chat.page.get_by_text("1 of 2").wait_for()
    assert chat.answer == first
    chat.token(4).click()
    assert "has a branch" in chat.alternative("E").inner_text()
    chat.alternative("E").click()
    chat.page.get_by_text("2 of 2").wait_for()
    assert chat.answer == second
    chat.press("Try again")
    chat.until(lambda: chat.answer == first)
    chat.page.get_by_text("1 of 2").wait_for()


@pytest.mark.slow
def test_branches_of_branches_are_walked_listed_and_compared(chat: Chat) -> None:
    first = chat.extract(tokens=True)
    for index, piece, version in ((4, "E", 2), (13, "6", 3)):
        chat.take(index, piece)
        chat.page.get_by_text(f"{version} of {version}").wait_for()
        chat.wait_done()
    third = json.loads(chat.answer)
    assert (third["name"][0], str(third["age"])[:2]) == ("E", "36")
    chat.page.get_by_text("All 3 versions of this answer").click()
    assert chat.page.locator(".tree .branch").count() == 3
    assert chat.page.locator(".tree ul ul ul .branch").count() == 1
    chat.press("Compare")
    dialog = chat.page.get_by_role("dialog", name="Two versions side by side")
    assert "The first 13 tokens are the same." in dialog.inner_text()
    left = dialog.get_by_label("Left version")
    left.select_option(index=0)
    assert "The first 4 tokens are the same." in dialog.inner_text()
    assert dialog.get_by_label("Left text").inner_text() == first
    dialog.get_by_role("button", name="Continue with this one").first.click()
    assert chat.answer == first
    chat.page.get_by_text("1 of 3").wait_for()
    chat.page.get_by_role("button", name="Previous version").last.click()
    assert json.loads(chat.answer) == third


@pytest.mark.slow
def test_a_branch_within_the_thoughts_has_their_whole_text(chat: Chat) -> None:
    chat.set({"Temperature": "0", "Thinking": "on", "Alternatives to request": "20"})
    chat.ask("What is 34 + 28?")
    chat.answers.last.get_by_text("Thoughts").click()
    chat.show_tokens()
    chat.take(9, "1")
    chat.other_version()
    chat.press("Tokens")
    chat.answers.last.locator(".reasoning > div > *").first.wait_for()  # still unfolded
    thoughts = chat.answers.last.locator(".reasoning > div").inner_text()
    assert thoughts.startswith("4 + 8 = 11, carry 1.\n")
    assert "think" not in thoughts + chat.answer
    assert chat.answer.startswith("34 + 28 = ")


def test_characters_of_several_tokens_appear_once_and_whole(chat: Chat) -> None:
    text = chat.ask("How do you say hello in Chinese?", GREEDY)
    assert text == "The Chinese word for hello is 你好."
    chat.show_tokens()
    assert chat.answer == f"{text}<|im_end|>"
    whole = chat.answers.last.locator(".character").first
    assert whole.locator(".whole").text_content() == "你"  # also where it is not drawn yet
    parts = whole.locator(".token")
    assert parts.count() > 1
    for part in parts.all():
        assert "part of a character" in (part.get_attribute("aria-label") or "")
    parts.first.click()
    chat.page.keyboard.press("Escape")
    chat.page.keyboard.press("ArrowRight")
    assert chat.focused == parts.nth(1).get_attribute("aria-label")
    chat.page.keyboard.press("Enter")
    assert chat.panel.is_visible()


def in_view(part: Locator) -> bool:
    """Whether it is seen, and not scrolled out of what contains it."""
    script = """part => {
      const { left, top, right, bottom } = part.getBoundingClientRect();
      const x = (left + right) / 2;
      return [top + 4, bottom - 4].every((y) => part.contains(document.elementFromPoint(x, y)));
    }"""
    return bool(part.evaluate(script))


@pytest.mark.slow
def test_text_of_ones_own_takes_the_place_of_a_token_if_the_schema_allows_it(chat: Chat) -> None:
    before = chat.extract(tokens=True)
    chat.token(4).click()
    assert in_view(chat.panel.get_by_role("button", name="Sample ways from here"))
    chat.type_instead('Zo"x')
    refusal = chat.panel.get_by_text("The JSON schema does not allow")
    refusal.wait_for()
    assert in_view(refusal)
    assert chat.answer == before
    chat.type_instead("Zoe Q")
    chat.other_version()
    record = json.loads(chat.answer)
    jsonschema.validate(record, PERSON)
    assert record["name"].startswith("Zoe Q")
    assert "typed" in chat.focused
    chat.page.keyboard.press("Enter")
    chat.type_instead("Maria")
    chat.page.get_by_text("1 of 2").wait_for()
    assert chat.answer == before
    chat.token(4).click()
    chat.type_instead("#999999")
    chat.panel.get_by_text("expected token ids from 0 to").wait_for()
    other = chat.alternative("E").get_attribute("data-id")
    chat.type_instead(f"#{other}")
    chat.other_version("3 of 3")
    said = chat.token(4).get_attribute("aria-label") or ""
    assert "typed" in said and "unknown" not in said


def test_text_can_be_read_on_every_tint_in_both_themes(chat: Chat) -> None:
    chat.press("Tokens")
    steps = chat.page.locator("#legend .steps")
    style = "box => [...box.children].map((step) => getComputedStyle(step))"
    style += ".map((style) => [style.color, style.backgroundColor])"
    chat.page.emulate_media(color_scheme="light")
    light = steps.evaluate(style)
    chat.page.emulate_media(color_scheme="dark")
    dark = steps.evaluate(style)
    assert len(light) == len({tint for _, tint in light}) == 13
    assert light != dark
    for text, tint in [*light[1:], *dark[1:]]:  # the first has no tint
        assert contrast(text, tint) >= 4.5, (text, tint)


@pytest.mark.slow
def test_the_strip_of_a_long_answer_leads_to_any_place_of_it(chat: Chat) -> None:
    text = [".\n" if k % 9 == 8 else f" w{k}" for k in range(900)]
    events = [told(each, index=k, logprob=-k / 100) for k, each in enumerate(text)]
    chat.answered(*events, tokens=True)
    strip = chat.answers.last.get_by_role("slider")
    strip.focus()
    chat.page.keyboard.press("Home")
    seen = (
        "t => { const r = t.getBoundingClientRect(); return r.top > 0 && r.bottom < innerHeight }"
    )
    chat.until(lambda: chat.token(0).evaluate(seen))
    assert strip.get_attribute("aria-valuetext") == "token 1 of 900, > 99.9 %"
    window = strip.locator(".window")
    chat.until(lambda: window.evaluate("w => !w.hidden && w.offsetLeft < 3"))
    box = box_of(strip)
    chat.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    chat.until(lambda: chat.token(450).evaluate(seen))
    chat.page.keyboard.press("End")
    chat.until(lambda: chat.token(899).evaluate(seen))
    chat.page.keyboard.press("Enter")
    assert chat.focused == chat.token(899).get_attribute("aria-label")


@pytest.mark.slow
def test_six_thousand_tokens_are_shown_as_fast_as_they_can_be_drawn(chat: Chat) -> None:
    tops = [{"id": k, "token": f" x{k}", "bytes": [120], "logprob": -k} for k in range(8)]
    text = [".\n" if k % 40 == 39 else f" word{k % 99}" for k in range(6000)]
    events = [
        told(each, index=k, logprob=-(k % 60) / 10, top_logprobs=tops)
        for k, each in enumerate(text)
    ]
    chat.answered(*events)
    cost = chat.costs_of(lambda: chat.press("Tokens"))
    assert chat.page.locator(".token[data-index]").count() == 6000
    assert cost < 8, cost


@pytest.mark.slow
def test_the_alternatives_leave_the_line_of_their_token_free(chat: Chat) -> None:
    likely = {"id": 100, "token": "a" * 30, "bytes": list(b"a" * 30), "logprob": -1e-7}
    tops = [likely, likely | {"id": 1}, likely | {"id": 2, "logprob": -20.0}]
    text = [".\n" if k % 20 == 19 else " w" for k in range(400)]
    events = [told(each, index=k, top_logprobs=tops) for k, each in enumerate(text)]
    chat.answered(*events, tokens=True)
    for width, height in ((1000, 600), (390, 700)):
        chat.page.set_viewport_size({"width": width, "height": height})
        for index in (0, 170, 399):
            chat.token(index).click()
            panel, token = box_of(chat.panel), box_of(chat.token(index))
            over = panel["y"] + panel["height"] <= token["y"]
            assert over or panel["y"] >= token["y"] + token["height"], (width, index)
            for share in chat.panel.locator(".share").all():
                assert share.evaluate("s => s.scrollWidth <= s.clientWidth && s.offsetHeight < 30")
            remark = chat.panel.get_by_text("in this answer", exact=True)
            assert remark.evaluate("s => s.scrollWidth <= s.clientWidth && s.offsetHeight < 30")
            chat.page.keyboard.press("Escape")
