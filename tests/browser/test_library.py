"""The list of conversations: addresses, deleting with undo, files out and in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .driving import FACT, FORGET, GREEDY, Chat

pytestmark = pytest.mark.slow

HOT = "What is the opposite of hot?"
PARIS = "The capital of France is Paris."


def titles(chat: Chat) -> list[str]:
    return chat.page.locator("#conversations .title").all_inner_texts()


def two_conversations(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    chat.press("New conversation")
    chat.ask(HOT, GREEDY)


def test_a_deleted_conversation_comes_back_by_undo_and_else_is_gone(chat: Chat) -> None:
    two_conversations(chat)
    before = chat.stored
    chat.choose(HOT, "Delete")
    chat.page.get_by_text(f"Deleted “{HOT}”.").wait_for()
    assert titles(chat) == [FACT]
    assert len(chat.stored) == 1
    assert chat.focused == "Undo"
    chat.page.keyboard.press("Enter")
    chat.until(lambda: titles(chat) == [HOT, FACT])
    chat.until(lambda: chat.answer == "The opposite of hot is cold.")
    assert chat.stored == before
    chat.choose(FACT, "Delete")
    chat.reload()
    assert titles(chat) == [HOT]


def test_what_is_downloaded_can_be_imported_and_is_the_same(chat: Chat, tmp_path: Path) -> None:
    two_conversations(chat)
    chat.set({"Maximum tokens": "3"})
    chat.press("Try again")
    chat.other_version()
    before = chat.stored
    file = tmp_path / "all.json"
    with chat.page.expect_download() as download:
        chat.page.get_by_label("All conversations").click()
        chat.page.get_by_role("menuitem", name="Download all as JSON").click()
    download.value.save_as(file)
    assert download.value.suggested_filename == "conversations.json"
    chat.page.goto(f"{chat.url}/health")
    chat.page.evaluate(FORGET)
    chat.page.goto(chat.url)
    chat.wait_open()
    assert chat.stored == []
    chat.page.locator("#files").set_input_files(file)
    chat.page.get_by_text("Imported 2 conversations.").wait_for()
    assert chat.stored == before
    chat.page.get_by_text("2 of 2").wait_for()
    chat.page.locator("#files").set_input_files(file)  # again: they become others
    chat.until(lambda: len(titles(chat)) == 4)
    stored = chat.stored
    assert len({one["id"] for one in stored}) == 4
    plain = [json.dumps({**one, "id": ""}, sort_keys=True) for one in stored]
    assert len(set(plain)) == 2


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
