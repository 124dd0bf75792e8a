"""The page under axe-core's rules for WCAG 2.2, A and AA: no violation in any view, and nothing is
wider than the window."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import FACT, Chat, read

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


def look(chat: Chat) -> None:
    """See that nothing is wrong with a view."""
    assert chat.page.evaluate("document.body.scrollWidth <= innerWidth")
    assert chat.page.evaluate(RUN, RULES) == []


def test_the_welcome_and_a_conversation_violate_no_rule(audited: Chat) -> None:
    look(audited)
    audited.ask(FACT)
    look(audited)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_no_view_violates_a_rule(audited: Chat, scheme: Any, size: Any) -> None:
    audited.page.emulate_media(color_scheme=scheme)
    audited.page.set_viewport_size(size)
    for steps in read("views.json")[: None if size is PHONE else -1]:  # the last is a phone's
        audited.act(steps)
        look(audited)
