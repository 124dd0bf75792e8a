"""What the browser keeps: conversations, files out and in, what is not whole, and a key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import ENDLESS, FACT, FORGET, GREEDY, Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser


KEY = "open-sesame"
PARIS = "The capital of France is Paris."
# Does something with the tables of the database in one transaction.
WITH_TABLES = """async (given) => {
  const database = await new Promise((done) => {
    const asked = indexedDB.open("mlxgen-conversations");
    asked.onsuccess = () => done(asked.result);
  });
  const tables = ["heads", "bodies", "aside"];
  const transaction = database.transaction(tables, "readwrite");
  const [heads, bodies, aside] = tables.map((name) => transaction.objectStore(name));
  let found = null;
  %s
  await new Promise((done) => { transaction.oncomplete = done; });
  database.close();
  return found?.result ?? null;
}"""
# Others beside a good conversation that cannot be read, two of them not even listed.
SPOIL = """
      const put = (id, body) => {
        heads.put({ id, title: id, changed: 1 }, id);
        bodies.put(body, id);
      };
      heads.put("nonsense", 5);
      heads.put({ id: "other", title: "t", changed: 1 }, "name");
      put("empty", undefined);
      put("broken", "{");
      put("foreign", given);
      put("looped", { ...given, id: "looped", chosen: { "": "nobody" } });
"""
HOT = "What is the opposite of hot?"


def in_tables(chat: Chat, script: str, given: Any = None) -> Any:
    return chat.page.evaluate(WITH_TABLES % script, given)


@pytest.mark.slow
def test_what_is_malformed_is_set_aside_said_and_can_be_deleted(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    (good,) = chat.stored
    in_tables(chat, SPOIL, good)
    chat.reload()
    told = chat.page.locator("#problem")
    told.get_by_text("2 stored conversations cannot be read").wait_for()
    file: Any = {"name": "some.json", "mimeType": "application/json", "buffer": b"{"}
    chat.page.locator("#files").set_input_files(file)
    told.get_by_text("“some.json” is not JSON.").wait_for()
    chat.ask(FACT)  # which dismisses what the file was refused for, and nothing else
    chat.until(lambda: told.locator("p").count() == 1)
    assert told.inner_text().startswith("2 stored conversations cannot be read")
    for count, title in enumerate(("empty", "broken", "foreign", "looped"), 3):
        chat.press(title)
        chat.page.get_by_title(title).first.wait_for(state="detached")
        told.get_by_text(f"{count} stored conversations cannot be read").wait_for()
    chat.press(FACT)
    chat.until(lambda: chat.answer == PARIS)
    count_aside = "found = aside.count();"
    assert in_tables(chat, count_aside) == 6
    chat.press("Delete them")
    chat.until(lambda: in_tables(chat, count_aside) == 0)
    assert told.inner_text() == ""
    assert [one["id"] for one in chat.stored] == [good["id"]]


@pytest.mark.slow
def test_what_has_arrived_of_an_answer_is_there_when_the_page_comes_back(chat: Chat) -> None:
    chat.set(GREEDY | ENDLESS)
    with chat.slow_line():
        chat.say("Go on.")
        chat.wait_text(50)
        before = chat.answer
        chat.page.goto(f"{chat.url}/health")  # or the rest would arrive at once
    chat.page.goto(chat.url)
    chat.wait_open()
    chat.answers.last.wait_for()
    assert chat.answer.startswith(before)
    (stored,) = chat.stored
    answer = next(node for node in stored["nodes"].values() if node["role"] == "assistant")
    assert "".join(token["b"] for token in answer["tokens"]) == answer["content"]
    with chat.slow_line():
        before = chat.answer
        chat.press("Continue")
        chat.wait_text(len(before) + 20)
        assert chat.answer.startswith(before)
    chat.wait_done()


@pytest.mark.slow
def test_what_a_tab_writes_last_stays_and_the_other_tab_is_told(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    chat.until(lambda: len(chat.stored) == 1)
    other = Chat(chat.context, chat.url)
    other.answers.last.wait_for()
    other.ask("What is 3 + 4?")
    sentence = "Another tab has changed this conversation; this is what it wrote."
    chat.page.locator("#problem").get_by_text(sentence).wait_for()
    chat.until(lambda: chat.answer == "3 + 4 = 7.")
    other.page.get_by_label("More for").first.click()
    other.page.get_by_role("menuitem", name="Delete").click()
    chat.until(lambda: chat.page.locator("#conversations [data-id]").count() == 0)
    assert chat.answer == "3 + 4 = 7."  # what is shown stays
    other.check_clean()
    other.page.close()


@pytest.mark.slow
def test_a_browser_without_a_database_chats_and_says_that_nothing_is_kept(
    browser: Browser, server: Running
) -> None:
    none = "Object.defineProperty(window, 'indexedDB', { value: undefined })"
    with Chat.opened(browser, "about:blank") as chat:
        chat.url = server.url
        chat.page.add_init_script(none)
        chat.page.goto(server.url)
        chat.wait_open()
        assert chat.page.locator("#kept").inner_text().startswith("This browser stores nothing")
        assert chat.ask(FACT, GREEDY) == PARIS
        chat.press("New conversation")
        chat.press(FACT)
        chat.until(lambda: chat.answer == PARIS)
        assert chat.wrong == []


def titles(chat: Chat) -> list[str]:
    return chat.page.locator("#conversations .title").all_inner_texts()


def two_conversations(chat: Chat) -> None:
    chat.ask(FACT, GREEDY)
    chat.press("New conversation")
    chat.ask(HOT, GREEDY)


@pytest.mark.slow
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
