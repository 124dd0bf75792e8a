"""What the browser keeps may be anything: the page takes what is whole, and says what is not."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ..effort import tries
from ..server.running import Running
from .driving import FACT, FORGET, GREEDY, Chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PREFIX = "mlxgen/conversation/"
PARIS = "The capital of France is Paris."
Stored = dict[str, Any]


def keep(chat: Chat, kept: dict[str, str]) -> None:
    """Open the page where the browser keeps this."""
    chat.page.goto(f"{chat.url}/health")
    script = """async (kept) => {
      await %s;
      localStorage.clear();
      for (const [name, text] of Object.entries(kept)) localStorage.setItem(name, text);
    }"""
    chat.page.evaluate(script % FORGET, kept)
    chat.page.goto(chat.url)
    chat.page.locator("#model", has_text="demo").wait_for()


def conversation(chat: Chat) -> Stored:
    """One that the page has kept: an answer, another one, and one that left it at a token."""
    chat.set(GREEDY)
    chat.ask(FACT)
    chat.press("Try again")
    chat.page.get_by_text("2 of 2").wait_for()
    chat.wait_done()
    chat.show_tokens()
    chat.token(0).click()
    chat.panel.get_by_role("button").nth(1).click()
    chat.page.get_by_text("3 of 3").wait_for()
    chat.wait_done()
    (found,) = chat.stored
    return found


def changed(good: Stored, *way: Any, to: Any) -> Stored:
    other = copy.deepcopy(good)
    inside: Any = other
    for step in way[:-1]:
        inside = inside[step]
    inside[way[-1]] = to
    return other


def kept_as(name: str, value: Stored) -> tuple[str, str]:
    return PREFIX + name, json.dumps({**value, "id": name})


def test_malformed_conversations_are_set_aside_and_all_others_go_on(chat: Chat) -> None:
    good = conversation(chat)
    user = next(id for id, node in good["nodes"].items() if node["role"] == "user")
    answer = next(id for id, node in good["nodes"].items() if node["role"] == "assistant")
    fork = next(id for id, node in good["nodes"].items() if node.get("from"))
    nodes = ("nodes", user), ("nodes", answer), ("nodes", fork)
    broken = [
        changed(good, "nodes", to=[]),
        changed(good, "chosen", "", to="nobody"),
        changed(good, "chosen", user, to=user),  # a loop of what is shown
        changed(good, *nodes[0], "parent", to=user),
        changed(good, *nodes[0], "parent", to="nobody"),
        changed(good, *nodes[0], "text", to={"a": 1}),
        changed(good, *nodes[0], "role", to="constructor"),
        changed(good, *nodes[1], "tokens", to=[{"i": 1}]),
        changed(good, *nodes[1], "calls", to=None),
        changed(good, *nodes[1], "stats", to={"speed": "fast", "tokens": 3}),
        changed(good, *nodes[2], "from", to={"node": fork, "at": 0}),
        changed(good, *nodes[2], "from", to={"node": answer, "at": 100_000}),
        changed(good, "title", to=5),
    ]
    kept = dict(kept_as(f"broken{k}", value) for k, value in enumerate(broken))
    kept |= {
        f"{PREFIX}text": "{",
        f"{PREFIX}null": "null",
        f"{PREFIX}deep": "[" * 100_000 + "]" * 100_000,
        f"{PREFIX}other": json.dumps(good),  # under another name than its own
        f'{PREFIX}a"]b': json.dumps({**good, "id": 'a"]b'}),
    }
    keep(chat, kept | dict([kept_as("good", good)]))
    told = chat.page.locator("#problem")
    assert told.inner_text().startswith(
        f"{len(kept)} stored conversations cannot be read and were set aside."
    )
    assert chat.answers.count() == 1 and [one["id"] for one in chat.stored] == ["good"]
    chat.page.get_by_text("3 of 3").wait_for()
    chat.press("New conversation")
    chat.set(GREEDY)
    assert chat.ask(FACT) == PARIS
    chat.reload()
    chat.page.locator("#model", has_text="demo").wait_for()
    assert told.inner_text() == "" and len(chat.stored) == 2
    aside = "Object.keys(localStorage).filter(k => k.includes('set-aside')).length"
    assert chat.page.evaluate(aside) == len(kept)
    keep(chat, {f"{PREFIX}text": "{"})
    assert told.inner_text().startswith("A stored conversation cannot be read")
    chat.press("Delete it")
    assert told.inner_text() == "" and chat.page.evaluate(aside) == 0


def test_settings_and_looks_that_are_nonsense_are_the_defaults(chat: Chat) -> None:
    keep(
        chat,
        {
            "mlxgen/settings": json.dumps({"stop": {"a": 1}, "temperature": 0, "toString": "x"}),
            "mlxgen/look": json.dumps({"theme": "fish", "tokens": "yes"}),
        },
    )
    chat.set(GREEDY)
    assert chat.ask(FACT) == PARIS
    for nonsense in ("5", '"text"', "null", "[1]", "{"):
        keep(chat, {"mlxgen/settings": nonsense, "mlxgen/look": nonsense})
        assert chat.page.get_by_role("radio", name="System").is_checked()


def _ways(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _ways(below, (*way, key))


VALUES: list[Any] = [None, True, -1, 0, 7, 1e300, 0.5, "", "x", [], {}, [[]], {"a": 1}, [256]]


def test_whatever_is_kept_every_conversation_in_the_list_can_be_opened(chat: Chat) -> None:
    good, chance = conversation(chat), random.Random(1)
    values = [*VALUES, *good["nodes"]]  # other nodes, too
    kept: dict[str, str] = {}
    for k in range(tries(150)):
        # Most of it are tokens, and most of those are alike.
        ways = [w for w in _ways(good) if "tokens" not in w or chance.random() < 0.02]
        kept.update(
            [kept_as(f"c{k}", changed(good, *chance.choice(ways), to=chance.choice(values)))]
        )
    keep(chat, kept)
    listed = chat.page.locator("#conversations [data-id]")
    count = listed.count()
    assert 0 < count < tries(150), count
    script = """async () => {
      for (const { dataset } of [...document.querySelectorAll("#conversations [data-id]")]) {
        for (const times of [1, 2]) {
          document.querySelector(`#conversations [data-id="${dataset.id}"]`).click();
          document.getElementById("show-tokens").click();
          await new Promise(requestAnimationFrame);
        }
        document.querySelector("#messages .actions [data-act=forward]")?.click();
        document.querySelector("#messages .tree summary")?.click();
      }
    }"""
    chat.page.evaluate(script)
    assert chat.wrong == [] and chat.page.locator("#conversations [data-id]").count() == count


# The database has no room until the alternatives of a conversation are deleted, and then for ever.
FULL = """
const { put, delete: remove } = IDBObjectStore.prototype;
let full = true;
IDBObjectStore.prototype.put = function (...given) {
  if (full) throw new DOMException("no room", "QuotaExceededError");
  return put.apply(this, given);
};
IDBObjectStore.prototype.delete = function (range) {
  if (this.name === "alternatives" && range.lower.length === 1) full = false;
  return remove.call(this, range);
};
null;
"""


def test_a_full_store_is_said_and_the_answer_is_still_there(chat: Chat) -> None:
    chat.page.evaluate(FULL)
    chat.set(GREEDY)
    assert chat.ask(FACT) == PARIS
    assert "no room" in chat.page.get_by_role("alert").first.inner_text()


def test_alternatives_of_old_conversations_make_room_for_new_ones(chat: Chat) -> None:
    chat.set(GREEDY)
    chat.ask(FACT)
    (old,) = chat.stored
    chat.page.evaluate(FULL)
    chat.press("New conversation")
    chat.ask("What is 3 + 4?")
    new, thin = chat.stored
    assert thin["id"] == old["id"]
    for id, node in old["nodes"].items():
        for token in node.get("tokens", []):
            del token["a"]
        assert thin["nodes"][id] == node
    assert any("a" in json.dumps(node) for node in new["nodes"].values())
    said = chat.page.get_by_role("alert").first.inner_text()
    assert said.startswith("This browser is almost full: the oldest conversation lost")


def test_what_a_page_could_not_write_when_it_was_left_is_there_when_it_comes_back(
    chat: Chat,
) -> None:
    chat.set(GREEDY | {"The answer must be": "regex", "Regular expression": "[a-z ]{1800}"})
    chat.say("Go on.")
    chat.wait_text(50)
    # From here on, nothing reaches the database.
    gone = "{ throw new DOMException('gone', 'AbortError') }"
    chat.page.evaluate(f"IDBObjectStore.prototype.put = () => {gone}; null")
    chat.wait_text(len(chat.answer) + 200)
    before = chat.answer
    chat.reload()
    chat.answers.last.wait_for()
    assert chat.answer.startswith(before)
    chat.show_tokens()
    assert chat.answer.startswith(before)
    (stored,) = chat.stored
    answer = next(node for node in stored["nodes"].values() if node["role"] == "assistant")
    assert "".join(token["b"] for token in answer["tokens"]) == answer["content"]


def test_two_tabs_that_write_to_one_conversation_lose_nothing(chat: Chat) -> None:
    endless = {"The answer must be": "regex", "Regular expression": "[a-z ]{1800}"}
    chat.set(GREEDY)
    chat.ask(FACT)
    other = Chat(chat.context, chat.url)
    other.answers.last.wait_for()
    other.set(endless)
    other.say("Go on.")
    other.wait_text(50)
    chat.until(lambda: chat.answers.count() == 2)  # it grows in the other tab
    chat.set({"The answer must be": ""})
    chat.page.get_by_role("button", name="Edit").first.click()
    chat.page.get_by_label("Edited message").fill("What is the capital of Italy?")
    chat.press("Ask this instead")
    chat.until(lambda: chat.answer == "The capital of Italy is Rome.")
    other.page.keyboard.press("Escape")
    other.wait_done()
    grown = other.answer
    other.page.get_by_text("1 of 2").or_(other.page.get_by_text("2 of 2")).first.wait_for()
    chat.until(lambda: chat.page.get_by_text("of 2").count() > 0)
    for tab in (chat, other):
        (stored,) = tab.stored
        texts = {node.get("content", node.get("text")) for node in stored["nodes"].values()}
        assert {PARIS, "Go on.", "The capital of Italy is Rome.", grown} <= texts
    other.check_clean()
    other.page.close()


def test_what_is_malformed_in_the_database_is_set_aside_when_it_is_opened(chat: Chat) -> None:
    chat.set(GREEDY)
    chat.ask(FACT)
    (good,) = chat.stored
    spoil = """async (good) => {
      const { found, transact, under } = await import("/page/database.js");
      await transact("readwrite", async ({ conversations, nodes, tokens }) => {
        const record = await found(conversations.get(good.id));
        const all = await found(nodes.getAll(under(good.id)));
        const answer = all.find(({ role }) => role === "assistant");
        // Older than the good one, which is opened first.
        const old = { ...record, changed: record.changed - 1 };
        const put = (id, more) => conversations.put({ ...old, id, title: id, ...more }, id);
        conversations.put("nonsense", 5);
        put("orderless", { order: null });
        put("empty"); // its nodes are not there
        put("packed", { order: [answer.id], chosen: {} });
        nodes.put({ ...answer, parent: "" }, ["packed", answer.id]);
        tokens.put(Uint8Array.of(1, 2, 3), ["packed", answer.id, 0]);
      });
    }"""
    chat.page.evaluate(spoil, good)
    chat.reload()
    told = chat.page.locator("#problem")
    told.get_by_text("2 stored conversations cannot be read").wait_for()
    for title in ("empty", "packed"):
        chat.press(title)
        chat.page.get_by_title(title).first.wait_for(state="detached")
    assert told.inner_text().startswith("4 stored conversations cannot be read")
    chat.press(FACT)
    chat.until(lambda: chat.answer == PARIS)
    chat.press("Delete them")
    count = (
        "import('/page/database.js')"
        ".then((d) => d.transact('readonly', ({ aside }) => d.found(aside.count())))"
    )
    chat.until(lambda: chat.page.evaluate(count) == 0)
    assert [one["id"] for one in chat.stored] == [good["id"]]


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
        chat.set(GREEDY)
        assert chat.ask(FACT) == PARIS
        chat.press("New conversation")
        chat.press(FACT)
        chat.until(lambda: chat.answer == PARIS)
        assert chat.wrong == []


@pytest.mark.slow
def test_four_long_answers_open_in_half_a_second_in_token_view(chat: Chat) -> None:
    """Half a second of the browser's main thread, which is the same on a machine that is busy."""
    fill = """async () => {
      const store = await (await import("/page/store.js")).openStore();
      const logprob = (k) => -((k * 7919) % 500000) / 1e5;
      const token = (k) => [k % 5000, ` word${k % 5000}`, logprob(k)];
      const records = Array.from({ length: 1500 }, (_, k) => {
        const [i, b, l] = token(k);
        return { i, b, p: "content", l, a: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => token(k * n + n)) };
      });
      const blank = { settings: {}, reasoning: "", calls: [], finish: "stop", tokens: records };
      const content = records.map(({ b }) => b).join("");
      const nodes = {};
      const chosen = {};
      let parent = "";
      for (const k of [0, 1, 2, 3]) {
        nodes[`u${k}`] = { id: `u${k}`, parent, role: "user", text: "More" };
        nodes[`a${k}`] = { id: `a${k}`, parent: `u${k}`, role: "assistant", ...blank, content };
        chosen[parent] = `u${k}`;
        chosen[`u${k}`] = parent = `a${k}`;
      }
      await store.save({ id: "long", title: "Long", changed: 1, settings: {}, nodes, chosen });
    }"""
    chat.set(GREEDY)
    chat.ask(FACT)
    chat.page.evaluate(fill)
    chat.show_tokens()
    chat.reload()
    session = chat.context.new_cdp_session(chat.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float({one["name"]: one["value"] for one in metrics}["TaskDuration"])

    before = busy()
    chat.press("Long")
    chat.until(lambda: chat.answers.count() == 4)
    chat.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert busy() - before < 0.5
    session.detach()
