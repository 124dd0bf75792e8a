"""What people bring from other pages: keys, addresses, settings that stay where they were made."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from .driving import FACT, GREEDY, Chat, event

if TYPE_CHECKING:
    from playwright.sync_api import Route

HOT = "What is the opposite of hot?"
PARIS = "The capital of France is Paris."


def in_force(chat: Chat) -> str:
    return chat.page.locator("#in-force").inner_text()


@pytest.mark.slow
def test_settings_belong_to_their_conversation(chat: Chat) -> None:
    chat.press("See the odds of every token Tell me a story about a fox.")
    chat.answers.last.wait_for()
    chat.wait_done()
    assert in_force(chat) == "In force: thinking off, temperature 0.9."
    chat.press("New conversation")
    assert in_force(chat) == ""
    chat.set({"Maximum tokens": "7"})
    chat.press("Settings")
    chat.press("Use for new conversations")
    chat.page.get_by_text("New conversations begin with these settings.").wait_for()
    chat.page.keyboard.press("Escape")
    chat.press("New conversation")
    assert in_force(chat) == "In force: maximum tokens 7."
    chat.press("Tell me a story about a fox.")
    assert in_force(chat) == "In force: thinking off, temperature 0.9."


def test_what_is_in_force_is_what_the_server_really_did(chat: Chat) -> None:
    body = f"data: {json.dumps(event('Hi', finish='stop'))}\n\ndata: [DONE]\n\n"
    headers = {"x-mlxgen-ignored": "chat_template_kwargs"}

    def fulfil(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", headers=headers, body=body)

    chat.set({"Thinking": "off"})
    chat.page.route("**/v1/chat/completions", fulfil, times=1)
    chat.ask("Hello.")
    chat.until(lambda: in_force(chat) == "In force: thinking off. The server ignored: thinking.")


@pytest.mark.slow
def test_try_again_is_wholly_new_if_it_differs_and_from_here_keeps_what_was_chosen(
    chat: Chat,
) -> None:
    chat.ask(FACT, GREEDY)
    chat.press("Try again")
    chat.page.get_by_text("It came out the same, so there is no other version.").wait_for()
    assert chat.answers.count() == 1 and chat.answer == PARIS
    assert chat.page.get_by_text("2 of 2").count() == 0
    chat.until(lambda: len(chat.stored[0]["nodes"]) == 2)
    assert chat.page.get_by_role("button", name="From here").count() == 0
    chat.show_tokens()
    chat.token(3).click()
    chat.type_instead(" from")
    chat.other_version()
    assert len(chat.asking(lambda: chat.press("From here"))["prefix_tokens"]) == 4
    chat.wait_done()
    assert "prefix_tokens" not in chat.asking(lambda: chat.press("Try again"))
    chat.wait_done()


@pytest.mark.slow
def test_each_conversation_has_an_address_and_back_and_forward_work(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    first = chat.page.url
    assert re.search(r"#/c/[0-9a-f]+$", first)
    chat.press("New conversation")
    chat.page.locator("#welcome").wait_for()
    chat.ask(HOT, GREEDY)
    second = chat.page.url
    assert second != first
    chat.page.go_back()
    chat.until(lambda: chat.answers.count() == 1 and chat.answer == PARIS)
    chat.page.go_forward()
    chat.until(lambda: chat.answer == "The opposite of hot is cold.")
    chat.page.goto("about:blank")
    chat.page.goto(first)
    chat.until(lambda: chat.answers.count() == 1 and chat.answer == PARIS)
    chat.page.evaluate("location.hash = '#/c/0123'")
    chat.page.get_by_text("The conversation of this address is not kept in this").wait_for()
    assert chat.page.url == first


def test_keys_do_what_they_do_elsewhere_and_are_listed(chat: Chat) -> None:
    keys = chat.page.keyboard
    chat.ask(FACT, GREEDY)
    keys.press("Control+Shift+O")
    chat.page.locator("#welcome").wait_for()
    assert chat.page.evaluate("document.activeElement.id") == "message"
    keys.press("Control+k")
    assert chat.page.evaluate("document.activeElement.id") == "find"
    keys.press("Control+b")
    chat.until(chat.page.locator("#list").is_hidden)
    keys.press("Control+k")
    chat.until(chat.page.locator("#list").is_visible)
    chat.page.get_by_role("button", name="Map", exact=True).focus()
    keys.press("?")
    dialog = chat.page.get_by_role("dialog", name="Keys")
    assert "Search conversations" in dialog.inner_text()
    keys.press("Escape")
    dialog.wait_for(state="hidden")
    keys.press("/")
    assert chat.page.evaluate("document.activeElement.id") == "message"
    keys.type("?/")
    message = chat.page.get_by_label("Message", exact=True)
    assert message.input_value() == "?/"
    chat.ask("What is the capital of Spain?", GREEDY)
    message.press("ArrowUp")
    box = chat.page.get_by_label("Edited message")
    box.press("Shift+Enter")
    assert box.input_value().count("\n") == 1
    box.fill(FACT)
    box.press("Enter")
    chat.until(lambda: chat.answer == PARIS)


@pytest.mark.slow
def test_a_full_context_goes_on_without_the_oldest_exchanges(chat: Chat) -> None:
    error = {"message": "too long", "code": "context_length_exceeded", "param": "messages"}
    chat.ask(HOT, GREEDY)
    chat.ask("What is 3 + 4?")
    refuse = {"status": 400, "json": {"error": error}}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(**refuse), times=1)
    chat.ask(FACT)
    body = chat.asking(lambda: chat.press("Go on without the oldest exchanges"))
    texts = [one["content"] for one in body["messages"]]
    assert texts[0] == "What is 3 + 4?" and texts[-1] == FACT
    chat.until(lambda: chat.answer == PARIS)
    chat.page.get_by_text("The model does not see what is above.").wait_for()
    chat.reload()
    chat.press("Show it to the model again")
    body = chat.asking(lambda: chat.ask("What is 3 + 4?"))
    messages = body["messages"]
    assert messages[0] == {"role": "user", "content": HOT}
