"""The pictures of `docs/page.md`; ``MLXGEN_PICTURES=docs/screenshots`` draws these anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import FACT, Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MOST = 180_000  # bytes
STORY = "Tell me a story about a fox."
DESK = {"width": 1100, "height": 720}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the pictures go."""
    chosen = Path(os.environ.get("MLXGEN_PICTURES") or tmp_path)
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


def _branch(chat: Chat) -> None:
    """A story, and another one from one of its less likely tokens."""
    chat.ask(STORY, {"Temperature": "0.9", "Thinking": "off", "Seed": "5"})
    chat.show_tokens()
    chat.answers.last.locator(".level-9").first.click()
    chat.panel.locator(".alternative:enabled").first.click()
    chat.other_version()


def _chat(chat: Chat) -> None:
    chat.extract()
    chat.press("New conversation")
    chat.ask(FACT, {"Temperature": "0", "Thinking": "off"})
    chat.ask("What is 34 + 28?", {"Thinking": "on"})
    chat.answers.last.get_by_text("Thoughts").click()
    chat.page.get_by_role("button", name="Try again").last.scroll_into_view_if_needed()


def _tokens(chat: Chat) -> None:
    _branch(chat)
    chat.answers.last.locator(".level-9").nth(3).click()


def _map(chat: Chat) -> None:
    chat.press("Watch four stories branch Tell me a story about a rabbit.")
    chat.until(lambda: chat.page.locator(".map-node").count() > 4)
    chat.wait_done()


def _phone(chat: Chat) -> None:
    _branch(chat)
    chat.page.get_by_role("button", name="Try again").last.scroll_into_view_if_needed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "scheme", "size"),
    [
        (_chat, "light", DESK),
        (_tokens, "dark", DESK),
        (_map, "light", DESK),
        (_phone, "light", {"width": 390, "height": 760}),
    ],
    ids=["chat", "tokens", "map", "phone"],
)
def test_a_picture(
    act: Callable[[Chat], None],
    scheme: Any,
    size: Any,
    browser: Browser,
    server: Running,
    folder: Path,
    request: pytest.FixtureRequest,
) -> None:
    with Chat.opened(browser, server.url, viewport=size, color_scheme=scheme) as chat:
        act(chat)
        path = folder / f"{request.node.callspec.id}.png"
        chat.page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size < MOST
        chat.check_clean()
