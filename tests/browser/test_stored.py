"""What the browser keeps may be anything: the page takes what is whole, and says what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ..server.running import Running
from .driving import ENDLESS, FACT, GREEDY, Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

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


def in_tables(chat: Chat, script: str, given: Any = None) -> Any:
    return chat.page.evaluate(WITH_TABLES % script, given)


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
        chat.press("Stop")
        chat.wait_done()


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


@pytest.mark.slow
def test_four_hundred_messages_open_about_as_fast_as_they_can_be_drawn(chat: Chat) -> None:
    fill = """async ([text, count]) => {
      const { Database } = await import("/page/database.js");
      const database = await Database.opened();
      const answer = { role: "assistant", settings: {}, reasoning: "", calls: [], finish: "stop" };
      const nodes = {};
      const chosen = {};
      let parent = "";
      for (let k = 0; k < count; k += 1) {
        const content = `## Part ${k}\n\n${text}`;
        const tokens = [{ i: 1, b: content, p: "content", l: -0.1 }];
        nodes[`u${k}`] = { id: `u${k}`, parent, role: "user", text: `Question ${k}` };
        nodes[`a${k}`] = { id: `a${k}`, parent: `u${k}`, ...answer, tokens, content };
        chosen[parent] = `u${k}`;
        chosen[`u${k}`] = parent = `a${k}`;
      }
      await database.write({ id: "many", title: "Many", changed: 1, settings: {}, nodes, chosen });
    }"""
    words = "Some **bold** words, `code` and [a link](https://example.org/). " * 8
    chat.ask(FACT, GREEDY)
    chat.page.evaluate(fill, [f"{words}\n\n- one\n- two\n- three", 200])
    chat.reload()

    def open_it() -> None:
        chat.press("Many")
        chat.until(lambda: chat.answers.count() == 200)

    cost = chat.costs_of(open_it)
    assert cost < 16, cost
