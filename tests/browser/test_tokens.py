"""The token view: odds, marks, alternatives, branches, typing, tints, the strip and the panel."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from .driving import GREEDY, PERSON, RECORD, Chat, box_of, contrast, read, told

if TYPE_CHECKING:
    pass


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


CAME_ABOUT: list[Any] = read("tokens.json")
"""What is told of a token, how it is marked, and what its panel says."""


def test_how_a_token_came_about_is_marked_and_said(chat: Chat) -> None:
    events = [told(f" w{k}", index=k, **each["told"]) for k, each in enumerate(CAME_ABOUT)]
    chat.answered(*events, tokens=True)
    for k, each in enumerate(CAME_ABOUT):
        assert each["mark"] in (chat.token(k).get_attribute("class") or "").split()
        label = chat.token(k).get_attribute("aria-label") or ""
        assert ("1 rejected here" in label) == ("rejected" in each["told"])
        chat.token(k).click()
        assert each["says"] in " ".join(chat.panel.inner_text().split())
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
            assert panel["height"] > 180, (width, index)  # it goes where there is room
            for share in chat.panel.locator(".share").all():
                assert share.evaluate("s => s.scrollWidth <= s.clientWidth && s.offsetHeight < 30")
            remark = chat.panel.get_by_text("in this answer", exact=True)
            assert remark.evaluate("s => s.scrollWidth <= s.clientWidth && s.offsetHeight < 30")
            chat.page.keyboard.press("Escape")
