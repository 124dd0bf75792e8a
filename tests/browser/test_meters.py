"""What the page says of the context, the engine, the models, and an answer that is on its way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from .driving import FACT, GREEDY, Chat, event, told

if TYPE_CHECKING:
    from playwright.sync_api import Route


pytestmark = pytest.mark.slow


def test_the_context_is_counted_before_anything_is_sent_and_where_no_answer_has_said_it(
    chat: Chat,
) -> None:
    meter, message = chat.page.locator("#meter"), chat.page.get_by_label("Message", exact=True)
    message.fill(FACT)
    chat.until(lambda: re.match(r"0 / [\d,]+ tokens · about \d+ more", meter.inner_text()))
    assert chat.page.get_by_role("meter", name="Context").get_attribute("aria-valuenow") != "0"
    message.fill("word " * 2000)
    chat.until(lambda: "are left" in meter.inner_text())
    message.fill("")
    chat.until(meter.is_hidden)
    chat.answered(told("Hello"))
    for _ in range(2):
        chat.until(lambda: re.match(r"[1-9]\d* / 2,048 tokens", meter.inner_text()))
        chat.reload()


def test_the_engine_panel_asks_only_while_it_is_open(chat: Chat) -> None:
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url))
    chat.ask(FACT, GREEDY)
    assert not any(url.endswith("/metrics") for url in asked)
    chat.press("Engine")
    panel = chat.page.get_by_role("dialog", name="Engine")
    panel.get_by_text("Weights").wait_for()
    assert re.search(r"Device\s+\S+", panel.inner_text())
    chat.page.keyboard.press("Escape")
    chat.until(panel.is_hidden)


def serve_models(chat: Chat, **first: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Let the page believe that the server has these models; what is changed in the dictionary that
    this returns is what the page is told next. A route that is taken away and set again would let
    a question through that the page asks in between."""
    models = dict(first)

    def fulfil(route: Route) -> None:
        data = [{"id": n, "status": s, "max_model_len": 4096} for n, s in models.items()]
        route.fulfill(json={"object": "list", "data": data})

    chat.page.route("**/v1/models", fulfil)
    return models


def test_a_model_is_chosen_for_a_conversation_and_its_load_is_shown(chat: Chat) -> None:
    loaded, unloaded = {"value": "loaded"}, {"value": "unloaded"}
    failed = {**unloaded, "failed": True, "reason": "no weights"}
    models = serve_models(chat, demo=loaded, other=unloaded, bad=failed)
    chat.page.route("**/v1/models/load", lambda route: None)  # it takes for ever
    chat.page.reload()
    opener = chat.page.get_by_role("button", name="Model: demo, loaded.")
    opener.click()
    menu = chat.page.get_by_role("dialog", name="Models")
    assert "no weights" in menu.inner_text()
    models["other"] = {"value": "loading", "progress": 0.4}
    menu.get_by_role("button", name="other").click()
    assert menu.is_hidden()
    chat.page.get_by_role("button", name="Model: other, loading").click()
    assert "Loading … 40 %" in menu.inner_text()
    assert menu.get_by_role("progressbar").get_attribute("value") == "0.4"
    chat.page.keyboard.press("Escape")
    models["other"] = loaded
    chat.page.get_by_role("button", name="Model: other, loaded").wait_for()
    chat.answer_with([event("Hello."), event(finish="stop")])
    body = chat.asking(lambda: chat.ask("Hello!"))
    assert body["model"] == "other"
    del models["other"], models["bad"]
    chat.page.reload()
    gone = chat.page.get_by_text("The model other is not on this server any more, so demo answers.")
    gone.wait_for()
    chat.press("Use demo from now on")
    chat.until(gone.is_hidden)
    assert chat.stored[0]["settings"]["model"] == "demo"
