"""How the page looks, measured: columns, bubbles, phones, colors and the focus."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from ..server.running import Running
from .driving import FACT, GREEDY, Chat, box_of, contrast

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator


LONG = "Repeat this: " + "the quick brown fox jumps over the lazy dog and " * 6
NAME = "mlx-community/Qwen3-Next-80B-A3B-Instruct-2507-4bit-DWQ"
RINGLESS = """() => [...document.querySelectorAll(
    "a, button, input, select, textarea, summary, [tabindex]")]
  .filter((part) => part.checkVisibility() && part.id !== "scroll")
  .filter((part) => {
    part.focus({ focusVisible: true });
    if (document.activeElement !== part) return false;
    for (let at = part; at; at = at.parentElement) {
      const { outlineStyle, outlineWidth } = getComputedStyle(at);
      if (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2) return false;
    }
    return true;
  }).map((part) => part.outerHTML)"""


def edges(part: Locator) -> tuple[float, float]:
    """Where something begins and ends, from left to right."""
    box = box_of(part)
    return box["x"], box["x"] + box["width"]


def test_messages_and_composer_share_a_column_and_bubbles_are_as_wide_as_their_text(
    chat: Chat,
) -> None:
    column = edges(chat.page.locator("#composer .box"))
    width = column[1] - column[0]
    assert edges(chat.page.locator("#welcome")) == column
    chat.ask(FACT, GREEDY | {"Maximum tokens": "5"})
    chat.ask(LONG)
    assert edges(chat.answers.last) == column
    chat.press("Tokens")
    assert edges(chat.page.locator("#legend > div")) == column
    chat.press("Tokens")
    bubbles = chat.page.locator(".user .text")
    (short_start, short_end), (start, end) = edges(bubbles.first), edges(bubbles.last)
    assert short_end == end == column[1] and short_end - short_start < width / 2
    assert width * 0.8 < end - start <= width * 0.85
    chat.page.locator(".user").last.get_by_role("button", name="Edit").click()
    editor = chat.page.get_by_label("Edited message")
    assert box_of(editor)["width"] >= end - start
    assert editor.evaluate("box => box.scrollHeight <= box.clientHeight")  # all of it is seen
    # A button leads back to the newest message
    chat.page.keyboard.press("Escape")
    chat.page.set_viewport_size({"width": 700, "height": 300})
    newest = chat.page.get_by_role("button", name="Scroll to the newest")
    chat.page.locator("#scroll").evaluate("box => { box.scrollTop = 0 }")
    newest.click()
    newest.wait_for(state="hidden")
    away = "box => box.scrollHeight - box.scrollTop - box.clientHeight"
    assert chat.page.locator("#scroll").evaluate(away) < 2


@pytest.mark.slow
def test_the_header_of_a_phone_fits_with_a_long_model_name(chat: Chat) -> None:
    model = {"id": NAME, "object": "model", "status": {"value": "loaded"}}
    models = {"object": "list", "data": [model]}
    chat.page.route("**/v1/models", lambda route: route.fulfill(json=models))
    chat.reload()
    name = chat.page.locator("#model", has_text="Qwen3-Next")
    name.wait_for()
    assert "mlx-community" not in name.inner_text()
    for width in (360, 390):
        chat.page.set_viewport_size({"width": width, "height": 640})
        spans = sorted(map(edges, chat.page.locator(".bar button:visible, .bar h1").all()))
        assert spans[0][0] >= 0 and spans[-1][1] <= width
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert box_of(chat.page.locator(".bar h1"))["width"] >= 80
        for button in chat.page.locator(".bar button:visible").all():
            box = box_of(button)
            assert min(box["width"], box["height"]) >= 40
            assert button.evaluate("b => b.textContent.trim() || b.ariaLabel")


@pytest.mark.slow
def test_colors_of_text_and_edges_have_enough_contrast_in_both_themes(chat: Chat) -> None:
    grounds = ("page", "panel", "raised")
    least = {(name, on): 4.5 for name in ("text", "quiet", "accent") for on in (*grounds, "hover")}
    least |= {(name, "mine"): 4.5 for name in ("text", "quiet", "accent")}
    least |= {("wrong", on): 4.5 for on in grounds} | {("on-accent", "accent"): 4.5}
    least |= {("edge", on): 3.0 for on in grounds}
    color = """name => {
      const probe = document.body.appendChild(document.createElement("span"));
      probe.style.color = `var(--${name})`;
      const { color } = getComputedStyle(probe);
      probe.remove();
      return color;
    }"""
    for scheme in ("light", "dark"):
        chat.page.emulate_media(color_scheme=scheme)
        for pair, limit in least.items():
            colors = [chat.page.evaluate(color, name) for name in pair]
            assert contrast(*colors) >= limit, (scheme, pair)


def test_whatever_has_the_focus_shows_it_and_nothing_moves_for_whom_it_disturbs(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    chat.show_tokens()
    chat.press("Settings")
    assert chat.page.evaluate(RINGLESS) == []
    moving = "getComputedStyle(document.getElementById('new')).transitionDuration !== '0s'"
    assert chat.page.evaluate(moving)
    chat.page.emulate_media(reduced_motion="reduce")
    assert not chat.page.evaluate(moving)


@pytest.mark.slow
def test_a_phone_has_room_for_everything(browser: Browser, server: Running) -> None:
    size = {"width": 320, "height": 640}
    with Chat.opened(browser, server.url, viewport=size, has_touch=True) as chat:
        chat.ask(FACT, GREEDY)
        chat.show_tokens()
        chat.token(9).tap()
        box = box_of(chat.panel)
        assert (box["x"], box["width"], box["y"] + box["height"]) == (0, 320, 640)
        chat.alternative("stock").tap()
        chat.other_version()
        assert chat.page.locator("#list").is_hidden()
        chat.press("Conversations")
        assert chat.focused == "New conversation"
        chat.page.keyboard.press("Escape")
        assert chat.page.locator("#list").is_hidden()
        chat.press("Compare")
        widths = chat.page.evaluate(
            "['body', '#scroll', '#legend'].map((name) => document.querySelector(name).scrollWidth)"
        )
        assert max(widths) <= 320
        columns = chat.page.locator(".sides section").evaluate_all(
            "all => all.map(s => s.getBoundingClientRect().x)"
        )
        assert columns[0] == columns[1]
        chat.page.keyboard.press("Escape")
        for control in chat.page.locator(".bar button:visible, #composer button:visible").all():
            box = box_of(control)
            assert box["x"] >= 0 and box["x"] + box["width"] <= 320 and box["height"] >= 40
        chat.check_clean()


@pytest.mark.slow
def test_light_and_dark_follow_the_system_or_a_choice_that_is_kept(chat: Chat) -> None:
    def is_dark() -> bool:
        colour = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) < 200

    assert not is_dark()
    chat.page.emulate_media(color_scheme="dark")
    assert is_dark()
    colors = chat.page.get_by_role("group", name="Colors")
    assert colors.get_by_label("System").is_checked()
    colors.get_by_label("System").focus()
    chat.page.keyboard.press("ArrowRight")
    assert not is_dark()
    chat.reload()
    assert not is_dark() and colors.get_by_label("Light").is_checked()
    colors.get_by_title("Colors: dark").click()
    chat.page.emulate_media(color_scheme="light")
    assert is_dark()
