"""The page under axe-core's rules for WCAG 2.2, A and AA: no violation in any view, and nothing is
wider than the window. ``MLXGEN_VIEWS`` is a folder in which to draw the views, for people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import FACT, Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 780}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RUN = """async (rules) => {
  const { violations } = await axe.run({ runOnly: rules, resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.html}: ${node.failureSummary}`));
}"""


@pytest.fixture
def audited(browser: Browser, server: Running) -> Iterator[Chat]:
    """A tab that axe can run in; the policy of the page would refuse its script."""
    options: dict[str, Any] = {"bypass_csp": True, "reduced_motion": "reduce"}
    with Chat.opened(browser, server.url, **options) as chat:
        chat.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
        # The criterion leaves out what is in a line of text, and axe-core does not always see it.
        chat.page.evaluate(
            "axe.configure({ rules: [{ id: 'target-size', selector: '*:not(.token)' }] })"
        )
        yield chat
        chat.check_clean()


def violations(chat: Chat, name: str) -> list[str]:
    """What is wrong with a view."""
    size = chat.page.viewport_size
    assert size is not None
    if folder := os.environ.get("MLXGEN_VIEWS"):
        dark = chat.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        path = Path(folder, f"{name}-{'dark' if dark else 'light'}-{size['width']}.png")
        chat.page.screenshot(path=path, animations="disabled")
    wide = chat.page.evaluate("document.body.scrollWidth") > size["width"]
    return [*["wider than the window"] * wide, *map(str, chat.page.evaluate(RUN, RULES))]


def test_the_welcome_and_a_conversation_violate_no_rule(audited: Chat) -> None:
    assert violations(audited, "welcome") == []
    audited.ask(FACT)
    assert violations(audited, "answered") == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_no_view_violates_a_rule(audited: Chat, scheme: Any, size: Any) -> None:
    page = audited.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    assert violations(audited, "first") == []
    audited.extract()
    assert violations(audited, "record") == []
    audited.show_tokens()
    audited.token(4).click()
    audited.panel.wait_for()
    assert violations(audited, "tokens") == []
    page.keyboard.press("Escape")
    audited.press("Settings")
    assert violations(audited, "settings") == []
    page.keyboard.press("Escape")
    audited.press("Map")
    audited.press("Sample")
    page.locator(".map-node.end").nth(4).wait_for(state="attached")
    audited.wait_done()
    assert violations(audited, "map") == []
    audited.press("Close the map")
    page.get_by_role("button", name="Edit").first.click()
    assert violations(audited, "edit") == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("?")
    assert violations(audited, "keys") == []
    page.keyboard.press("Escape")
    page.get_by_label("Message", exact=True).fill("word " * 2000)
    page.get_by_text("are left").first.wait_for()
    assert violations(audited, "full") == []
    if size is PHONE:
        audited.press("Conversations")
        assert violations(audited, "list") == []
