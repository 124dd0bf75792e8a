"""The pictures of `docs/page.md`; ``MLXGEN_PICTURES=docs/screenshots`` draws these anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import FACT, Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DESK, PHONE = {"width": 1100, "height": 720}, {"width": 390, "height": 760}


def _branch(chat: Chat) -> None:
    """A story, and another one from one of its less likely tokens."""
    chat.ask("Tell me a story about a fox.", {"Temperature": "0.9", "Thinking": "off", "Seed": "5"})
    chat.show_tokens()
    chat.answers.last.locator(".level-9").first.click()
    chat.panel.locator(".alternative:enabled").first.click()
    chat.other_version()


def act(name: str, chat: Chat) -> None:
    """What is done before a picture is drawn."""
    if name == "chat":
        chat.extract()
        chat.press("New conversation")
        chat.ask(FACT, {"Temperature": "0", "Thinking": "off"})
        chat.ask("What is 34 + 28?", {"Thinking": "on"})
        chat.answers.last.get_by_text("Thoughts").click()
    elif name == "map":
        chat.press("Watch four stories branch Tell me a story about a rabbit.")
        chat.until(lambda: chat.page.locator(".map-node").count() > 4)
        chat.wait_done()
        return
    else:
        _branch(chat)
    if name == "tokens":
        chat.answers.last.locator(".level-9").nth(3).click()
    else:
        chat.page.get_by_role("button", name="Try again").last.scroll_into_view_if_needed()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chat", "tokens", "map", "phone"])
def test_a_picture(name: str, browser: Browser, server: Running, tmp_path: Path) -> None:
    look: dict[str, Any] = {"viewport": PHONE if name == "phone" else DESK}
    look["color_scheme"] = "dark" if name == "tokens" else "light"
    with Chat.opened(browser, server.url, **look) as chat:
        act(name, chat)
        path = Path(os.environ.get("MLXGEN_PICTURES") or tmp_path, f"{name}.png")
        chat.page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size < 180_000
        chat.check_clean()
