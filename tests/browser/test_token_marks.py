"""The token view around its text: typing, what was rejected, tints, the strip and the panel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest

from .driving import PERSON, Chat, box_of, contrast, told

if TYPE_CHECKING:
    from playwright.sync_api import Locator


def in_view(part: Locator) -> bool:
    """Whether it is seen, and not scrolled out of what contains it."""
    script = """part => {
      const { left, top, right, bottom } = part.getBoundingClientRect();
      const x = (left + right) / 2;
      return [top + 4, bottom - 4].every((y) => part.contains(document.elementFromPoint(x, y)));
    }"""
    return bool(part.evaluate(script))


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


def test_what_was_rejected_at_a_place_is_marked_and_said(chat: Chat) -> None:
    def gone(reason: str, by: str | None = None) -> dict[str, object]:
        about = {"id": 7, "token": " no", "bytes": list(b" no"), "reason": reason, "by": by}
        return {"rejected": [about]}

    kinds: list[tuple[dict[str, object], str]] = [
        (gone("ban", "no way") | {"attempts": 1}, "␣no banned: no␣way"),
        (gone("hook"), "␣no rejected by a hook"),
        (gone("draft", "head"), "␣no drafted by the model's own head, but the model"),
        (gone("length"), "␣no left no room for a valid end"),
        (gone("check", "no such name"), "␣no taken back: no␣such␣name"),
        (gone("loop"), "␣no taken back, because the text repeated itself"),
    ]
    events = [told(f" w{k}", index=k, **about) for k, (about, _) in enumerate(kinds)]
    chat.answered(*events, tokens=True)
    for k, (_, words) in enumerate(kinds):
        assert "rejected" in (chat.token(k).get_attribute("class") or "").split()
        assert "1 rejected here" in (chat.token(k).get_attribute("aria-label") or "")
        chat.token(k).click()
        assert words in " ".join(chat.panel.inner_text().split())
        chat.page.keyboard.press("Escape")
    shown = chat.page.locator("#legend li:visible").all_inner_texts()
    assert [text.removeprefix("abc").strip() for text in shown] == ["another was rejected"]


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
