"""What goes wrong is said in sentences, and nothing that was typed or answered is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ..server.running import running
from .driving import FACT, GREEDY, Chat, event

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

KEY = "open-sesame"


@pytest.mark.slow
def test_a_setting_that_the_server_refuses_is_said_and_led_to(chat: Chat) -> None:
    chat.ask(FACT, {"Temperature": "0", "The answer must be": "regex", "Regular expression": "("})
    problem = chat.answers.last.get_by_role("alert").inner_text()
    assert problem.startswith("The server refused this: regex: ")
    assert "interrupted" not in chat.answers.last.inner_text()  # it never began
    chat.press("Show the setting")
    field = chat.page.get_by_label("Regular expression", exact=True)
    assert field.get_attribute("aria-invalid") == "true"
    assert field.evaluate("field => field === document.activeElement")
    field.fill("The capital.*")
    assert field.get_attribute("aria-invalid") == "false"
    chat.press("Try again")
    chat.until(lambda: chat.answer.startswith("The capital"))
    chat.wait_done()
    assert chat.page.get_by_text("2 of 2").count() == 0  # nothing is kept of what never began


def test_a_number_out_of_range_is_said_before_anything_is_sent(chat: Chat) -> None:
    chat.set({"Temperature": "-3"})
    chat.say(FACT)
    chat.page.get_by_text("Temperature: enter 0 or more, not -3.").wait_for()
    assert chat.answers.count() == 0
    assert chat.page.get_by_label("Message", exact=True).input_value() == FACT
    field = chat.page.get_by_label("Temperature", exact=True)
    assert field.evaluate("field => field === document.activeElement")
    field.fill("0")
    assert field.get_attribute("aria-invalid") == "false"


def _busy(route: Route) -> None:
    route.fulfill(status=429, headers={"retry-after": "7"}, json={"error": {"message": "full"}})


def _proxy(route: Route) -> None:
    route.fulfill(status=502, content_type="text/html", body="<h1>Bad gateway</h1>")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda route: route.abort(), "The server cannot be reached. Is it still running?"),
        pytest.param(_busy, "The server is busy. Try again in 7 seconds.", marks=pytest.mark.slow),
        pytest.param(_proxy, "The server failed.", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_does_not_answer_is_a_sentence(
    chat: Chat, answer: Callable[[Route], None], sentence: str
) -> None:
    chat.set(GREEDY)
    chat.page.route("**/v1/chat/completions", answer, times=1)
    chat.ask(FACT)
    assert chat.answers.last.get_by_role("alert").inner_text() == sentence
    chat.press("Try again")
    chat.until(lambda: chat.answer == "The capital of France is Paris.")


@pytest.mark.slow
def test_an_answer_that_breaks_off_keeps_what_arrived(chat: Chat) -> None:
    error = {"error": {"message": "the draft model is gone", "type": "server_error"}}
    for events, sentence in (
        ([event("Once")], "The connection ended before the answer was complete."),
        ([event("Once"), error], "The server failed: the draft model is gone."),
    ):
        chat.answer_with(events, end=len(events) > 1)
        assert chat.ask("A story.") == "Once"
        assert chat.answers.last.get_by_role("alert").inner_text() == sentence


@pytest.mark.slow
def test_an_api_key_is_asked_for_and_kept_for_the_tab(browser: Browser) -> None:
    with running(MLXGEN_API_KEY=KEY) as server, Chat.opened(browser, server.url) as chat:
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
