"""The list of conversations: renaming, searching, deleting with undo, files out and in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .driving import FACT, FORGET, GREEDY, Chat

pytestmark = pytest.mark.slow

HOT = "What is the opposite of hot?"


def titles(chat: Chat) -> list[str]:
    return chat.page.locator("#conversations .title").all_inner_texts()


def two_conversations(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    chat.press("New conversation")
    chat.ask(HOT, GREEDY)


def test_a_conversation_is_renamed_in_place_by_enter_and_not_by_escape(chat: Chat) -> None:
    two_conversations(chat)
    chat.choose(FACT, "Rename")
    chat.page.keyboard.type("Not this")
    chat.page.keyboard.press("Escape")
    assert titles(chat) == [HOT, FACT]
    chat.page.get_by_role("button", name=FACT, exact=True).press("F2")
    chat.page.keyboard.type("  Capitals ")
    chat.page.keyboard.press("Enter")
    assert titles(chat) == [HOT, "Capitals"]
    assert chat.focused == "Capitals"
    chat.reload()
    assert titles(chat) == [HOT, "Capitals"]
    assert chat.answer == "The opposite of hot is cold."


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


def test_search_marks_what_it_finds_and_leads_to_the_message(chat: Chat) -> None:
    two_conversations(chat)
    chat.reload()  # so that one of the two is not loaded
    chat.page.get_by_label("Search conversations").fill("france   IS par")
    chat.page.get_by_text("1 conversation.").wait_for()
    assert titles(chat) == [FACT]
    assert chat.page.locator("#conversations mark").all_inner_texts() == ["France is Par"]
    chat.page.locator("#conversations .hits button").click()
    chat.page.locator(".message.answer.sought").wait_for()
    assert chat.answer == "The capital of France is Paris."
    find = chat.page.get_by_label("Search conversations")
    find.fill("opposite")
    chat.page.locator("#conversations .title mark", has_text="opposite").wait_for()
    find.fill("zebra")
    chat.page.get_by_text("Nothing found.").wait_for()
    find.press("Escape")
    chat.until(lambda: titles(chat) == [HOT, FACT])


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
