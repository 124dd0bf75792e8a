"""Keyboard alone, a phone's width, light and dark, text that looks like HTML, and a key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ..server.running import Running
from .driving import FACT, GREEDY, Chat, box_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "open-sesame"


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


def test_the_browser_itself_keeps_text_from_becoming_html_or_script(chat: Chat) -> None:
    write = "document.body.innerHTML = '<p>no</p>'"
    refused = f"() => {{ try {{ {write}; return '' }} catch (error) {{ return error.name }} }}"
    assert chat.page.evaluate(refused) == "TypeError"
    policy = chat.page.request.get(chat.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert re.search("script-src 'self' 'sha256-[^' ]+';", policy)  # of the import map


@pytest.mark.slow
def test_an_api_key_is_asked_for_and_kept_for_the_tab(browser: Browser) -> None:
    with Running(MLXGEN_API_KEY=KEY) as server, Chat.opened(browser, server.url) as chat:
        dialog = chat.page.get_by_role("dialog", name="This server needs an API key")
        dialog.get_by_label("API key").fill("wrong")
        dialog.get_by_role("button", name="Use the key").click()
        dialog.get_by_text("The server did not accept this key.").wait_for()
        dialog.get_by_label("API key").fill(KEY)
        chat.page.keyboard.press("Enter")
        chat.page.locator("#model", has_text="demo").wait_for()
        assert chat.ask(FACT, GREEDY) == "The capital of France is Paris."
        kept = "JSON.stringify([{...localStorage}, document.cookie])"
        assert KEY not in chat.page.evaluate(kept) + chat.page.content()
        chat.reload()
        chat.page.locator("#model", has_text="demo").wait_for()
        assert not dialog.is_visible()
        chat.page.evaluate("sessionStorage.clear()")  # as in another tab
        chat.reload()
        dialog.wait_for()
        chat.page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        alert = chat.page.get_by_role("alert").first
        assert "The server needs an API key for this." in alert.inner_text()
        chat.until(lambda: chat.answer == "The capital of France is Paris.")
        alert.get_by_role("button", name="Try again").click()
        dialog.wait_for()
        chat.check_clean()
