"""The page as a person uses it: by the names of things, not by how they are built."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        Dialog,
        FloatRect,
        Locator,
        Page,
        Request,
    )

DATA = Path(__file__).parents[1] / "data" / "page"
# Milliseconds after which a test fails instead of hanging; a busy machine takes its time.
WAIT = 30_000
SLOW = 60_000  # bytes a second: about 20 tokens with all that is told of each
ENDLESS = {"The answer must be": "regex", "Regular expression": "[a-z ]{1800}"}
FACT = "What is the capital of France?"
RECORD = "Extract the person record as JSON: Maria is 34 years old and lives in Lisbon."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
# Deletes the conversations; resolves when they are gone.
FORGET = """new Promise((done, failed) => {
  const asked = indexedDB.deleteDatabase("mlxgen-conversations");
  asked.onsuccess = () => done();
  asked.onerror = () => failed(asked.error);
})"""
IN_VIEW = """part => {
  const { left, top, right, bottom } = part.getBoundingClientRect();
  const x = (left + right) / 2;
  return [top + 4, bottom - 4].every((y) => part.contains(document.elementFromPoint(x, y)));
}"""
# Hands files to the page as a drop or a paste does; the browser's own dialogs cannot be driven.
HAND = """([kind, target, files]) => {
  const data = new DataTransfer();
  for (const [name, type, given] of files) {
    const content = typeof given === "number" ? "x".repeat(given) : Uint8Array.from(given);
    data.items.add(new File([content], name, { type }));
  }
  const event = kind === "drop"
    ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
  document.querySelector(target).dispatchEvent(event);
}"""
GREEDY = {"Temperature": "0", "Thinking": "off"}


class Chat:
    """One tab. The steps of the tables in ``tests/data/page`` name its methods."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT)
        self.hosts: set[str] = set()
        self.wrong: list[str] = []
        self.noted: dict[str, tuple[str, list[Any]]] = {}
        self.page.on("request", self._note)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.goto(url)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, browser: Browser, url: str, **options: Any) -> Iterator[Chat]:
        """A tab in a new profile; ``options`` are those of Playwright's context."""
        context = browser.new_context(**options)
        try:
            yield cls(context, url)
        finally:
            context.close()

    def _note(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.hosts.add(request.url[: len(self.url)])

    def _refuse(self, dialog: Dialog) -> None:
        self.wrong.append(dialog.message)
        dialog.dismiss()

    def start_anew(self) -> None:
        """Forget all that was done in this tab."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        self.page.set_viewport_size({"width": 1280, "height": 720})
        self.context.clear_permissions()
        # The page keeps what it has when it is left, so it has to be gone before.
        self.page.goto(f"{self.url}/health")
        self.page.evaluate(f"localStorage.clear(); sessionStorage.clear(); {FORGET}")
        self.wrong.clear()
        self.page.goto(self.url)
        self.wait_open()

    def reload(self) -> None:
        """Leave the page, and come back."""
        self.page.reload()
        self.wait_open()

    def wait_open(self) -> None:
        """Wait until the page shows what is stored."""
        self.page.locator("#messages[aria-busy]").wait_for(state="attached")

    def check_clean(self) -> None:
        """No script failed, and nothing but the server was asked for anything."""
        assert self.wrong == [], self.wrong
        assert self.hosts <= {self.url}

    # ---- what a person does --------------------------------------------------------------------

    def set(self, settings: Mapping[str, str]) -> None:
        """Fill in settings by their labels."""
        self.press("Settings")
        for label, value in settings.items():
            field = self.page.get_by_label(label, exact=True)
            if field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.get_by_role("complementary").get_by_role("button", name="Close").click()

    def hold_to_schema(self) -> None:
        """Answers have to be a person's record, and are the likeliest ones."""
        self.set(GREEDY | {"The answer must be": "schema", "JSON schema": json.dumps(PERSON)})

    def extract(self, tokens: bool = False) -> str:
        """The record of a person under its schema; ``tokens``: show these."""
        self.hold_to_schema()
        record = self.ask(RECORD)
        if tokens:
            self.show_tokens()
        return record

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def choose(self, title: str, item: str) -> None:
        """Something from the menu of a conversation."""
        self.page.get_by_label(f"More for “{title}”").click()
        self.page.get_by_role("menuitem", name=item).click()

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def ask(self, text: str, settings: Mapping[str, str] | None = None) -> str:
        """Say something, perhaps with other settings, and wait for the whole answer."""
        if settings is not None:
            self.set(settings)
        before = self.answers.count()
        self.say(text)
        self.answers.nth(before).wait_for()
        self.wait_done()
        return self.answer

    def act(self, steps: Sequence[Sequence[Any]]) -> None:
        """Take steps: each is a method's name with what is given to it."""
        for verb, *given in steps:
            getattr(self, verb)(*given)

    def asks(self, text: str, settings: Mapping[str, str] | None, wanted: str) -> None:
        found = self.ask(text, settings)
        assert found == wanted, found

    def asking(self, act: Callable[[], object]) -> dict[str, Any]:
        """The request for an answer that something makes."""
        with self.page.expect_request("**/chat/completions") as asked:
            act()
        return dict(json.loads(asked.value.post_data or ""))

    def sends(self, step: Sequence[Any], wanted: Mapping[str, Any]) -> None:
        """The request that a step makes has these fields, lists of this length, and messages with
        these ``texts``."""
        body = self.asking(lambda: self.act([step]))
        body["texts"] = [message["content"] for message in body["messages"]]
        for name, value in wanted.items():
            found = body.get(name)
            if isinstance(found, list) and isinstance(value, int):
                found = len(found)
            assert found == value, name

    def edit(self, text: str) -> None:
        """Give the last answer another text, in its editor."""
        self.answers.last.get_by_role("button", name="Edit", exact=True).click()
        self.page.get_by_label("Edited answer").fill(text)

    def tab_to(self, name: str, back: bool = False, key: str = "Tab") -> None:
        """Press Tab until something has the focus, at most once around the page."""
        for _ in range(60):
            self.key(f"Shift+{key}" if back else key)
            if re.fullmatch(name, self.focused):
                return
        raise AssertionError(f"no Tab leads to {name}")

    def hand(self, kind: str, *files: tuple[str, str, str | int]) -> None:
        """Drop or paste files: each has a name, a type, and a text in Latin-1 or, if it is long,
        its size."""
        given = [
            [name, type, data if isinstance(data, int) else [*data.encode("latin-1")]]
            for name, type, data in files
        ]
        self.page.evaluate(HAND, [kind, "#message" if kind == "paste" else "#main", given])

    def attach(self, name: str, kind: str, text: str) -> None:
        """Choose a file with the composer's button."""
        file: Any = {"name": name, "mimeType": kind, "buffer": text.encode()}
        self.page.locator("#composer input[type=file]").set_input_files(file)

    def option(self, label: str, index: int) -> None:
        self.page.get_by_label(label).select_option(index=index)

    def script(self, code: str) -> None:
        self.page.evaluate(code)

    def click(self, part: str) -> None:
        """Something that a selector of Playwright finds."""
        self.page.locator(part).last.click()

    def fill(self, part: str, text: str, times: int = 1) -> None:
        self.page.locator(part).fill(text * times)

    def scroll_to(self, part: str) -> None:
        self.page.locator(part).last.scroll_into_view_if_needed()

    def focus(self, part: str) -> None:
        self.page.locator(part).last.focus()

    def key(self, name: str) -> None:
        self.page.keyboard.press(name)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def other_version(self, place: str = "2 of 2") -> str:
        """Wait for the whole of another version of the answer."""
        self.page.get_by_text(place).wait_for()
        self.wait_done()
        return self.answer

    def wait_done(self) -> None:
        self.page.locator('#messages[aria-busy="false"]').wait_for()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something; the page's policy forbids the ``eval`` of Playwright's own way."""
        end = time.monotonic() + WAIT / 1000
        while not condition():
            assert time.monotonic() < end, "it never came true"
            self.page.wait_for_timeout(20)

    def wait_text(self, length: int) -> None:
        """Wait until an answer is longer than this."""
        self.until(lambda: self.answers.count() and len(self.answer) > length)

    def show_tokens(self) -> None:
        self.press("Tokens")
        self.answers.last.locator(".tokens").wait_for()

    def take(self, index: int, piece: str) -> None:
        """Open a token and choose an alternative."""
        self.token(index).click()
        self.alternative(piece).click()

    def type_instead(self, text: str) -> None:
        """Type another token or text in the panel that is open."""
        self.panel.get_by_label("Any other token or text").fill(text)
        self.panel.get_by_role("button", name="Use it").click()

    @contextlib.contextmanager
    def slow_line(self) -> Iterator[None]:
        """What the server sends arrives slowly, so that no answer is over before the test is: the
        demo model needs a second for all that its context holds."""
        line = self.context.new_cdp_session(self.page)
        conditions: dict[str, Any] = {"offline": False, "latency": 0, "uploadThroughput": -1}
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", conditions | {"downloadThroughput": SLOW})
        try:
            yield
        finally:
            line.send("Network.emulateNetworkConditions", conditions | {"downloadThroughput": -1})
            line.detach()

    # ---- what a person sees --------------------------------------------------------------------

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="Answer")

    @property
    def answer(self) -> str:
        """The text of the last answer, as plain text or as tokens."""
        shown = self.answers.last.locator(".content, .tokens > .token-text")
        return "".join(shown.all_text_contents())

    def token(self, index: int) -> Locator:
        return self.answers.last.locator(f'[data-index="{index}"]')

    def alternative(self, piece: str) -> Locator:
        return self.panel.locator(f"button[aria-label^='“{piece}”']")

    @property
    def panel(self) -> Locator:
        return self.page.locator("#alternatives")

    @property
    def focused(self) -> str:
        """The text or the name of what has the focus."""
        script = "document.activeElement.ariaLabel ?? document.activeElement.textContent"
        return str(self.page.evaluate(script))

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The conversations that the browser keeps."""
        script = "import('/page/app.js').then(({ session }) => session.stored())"
        return list(self.page.evaluate(script))

    def sees(self, part: str) -> None:
        self.page.locator(part).locator("visible=true").first.wait_for()

    def lacks(self, part: str) -> None:
        self.until(lambda: not self.page.locator(part).locator("visible=true").count())

    def lists(self, part: str, texts: Sequence[str]) -> None:
        """All such parts, in order, come to have these texts."""
        self.until(lambda: self.page.locator(part).all_inner_texts() == texts)

    def stands_before(self, part: str, text: str) -> None:
        """The cursor of a field does."""
        script = "box => box.value.slice(box.selectionStart)"
        assert str(self.page.locator(part).evaluate(script)).startswith(text)

    def is_at(self, pattern: str) -> None:
        """What has the focus has such a text or name."""
        self.until(lambda: re.fullmatch(pattern, self.focused))

    def in_view(self, part: str) -> None:
        """It is seen, and not scrolled out of what contains it."""
        assert self.page.locator(part).evaluate(IN_VIEW), part

    def counts(self, part: str, number: int) -> None:
        self.until(lambda: self.page.locator(part).count() == number)

    def keeps(self, *messages: int) -> None:
        """The browser keeps conversations with so many messages each."""
        self.until(lambda: [len(nodes) for nodes in self._nodes()] == [*messages])

    def note(self, name: str) -> None:
        """Remember the last answer, and all that the browser keeps, under a name."""
        self.noted[name] = self.answer, self._nodes()

    def rereads(self, name: str) -> None:
        """The last answer comes to be the one that was noted."""
        self.reads(re.escape(self.noted[name][0]))

    def rekeeps(self, name: str) -> None:
        """The browser comes to keep what was noted."""
        self.until(lambda: self._nodes() == self.noted[name][1])

    def _nodes(self) -> list[Any]:
        return [each["nodes"] for each in self.stored]

    def holds(self, part: str, value: str) -> None:
        self.until(lambda: self.page.locator(part).input_value() == value)

    def reads(self, pattern: str) -> None:
        """The last answer comes to be this one, and whole."""
        self.until(lambda: self.answers.count() and re.fullmatch(pattern, self.answer))
        self.wait_done()

    # ---- answers that no model gives at will -----------------------------------------------------

    def answer_with(
        self,
        events: Sequence[Mapping[str, Any]],
        end: bool = True,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Let the next request be answered with these events."""
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        body = "".join([*lines, "data: [DONE]\n\n"] if end else lines)
        given = {"content_type": "text/event-stream", "headers": headers, "body": body}
        self.refuse({"status": 200, **given})

    def refuse(self, how: Mapping[str, Any]) -> None:
        """Let the next request be answered with a status, and what else there is."""
        self.page.route("**/chat/completions", lambda route: route.fulfill(**how), times=1)

    def unreachable(self) -> None:
        """Let the next request reach no server."""
        self.page.route("**/chat/completions", lambda route: route.abort(), times=1)

    def answered(self, *events: Mapping[str, Any], tokens: bool = False) -> None:
        """Ask, and be answered with these events; ``tokens``: show them."""
        self.answer_with([*events, event(finish="stop")])
        self.ask("Some words.")
        if tokens:
            self.show_tokens()


def read(name: str) -> Any:
    """A file of ``tests/data/page``."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def event(text: str = "", *, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    """An event of a stream."""
    delta = {"content": text} if text else {}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish} | choice]}


def told(text: str, *, index: int = 0, **about: Any) -> dict[str, Any]:
    """An event with one token, and everything about it."""
    token = {
        "index": index,
        "id": 100 + index,
        "token": text,
        "bytes": list(text.encode()),
        "part": "content",
        "logprob": -0.1,
        "top_logprobs": [],
        "forced": False,
        "from_draft": False,
        "drafter": "",
        "attempts": 0,
    } | about
    entry = {name: token[name] for name in ("token", "bytes", "logprob", "top_logprobs")}
    inside = token["part"] == "content"
    return event(
        text if inside else "",
        token_ids=[token["id"]],
        tokens=[token],
        logprobs={"content": [entry] if inside else None},
    )


def contrast(*colors: str) -> float:
    """How much two opaque colors differ in lightness, as WCAG has it."""

    def lightness(color: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(lightness, colors))
    return (light + 0.05) / (dark + 0.05)


def box_of(part: Locator) -> FloatRect:
    """Where something is on the page, which it has to be."""
    box = part.bounding_box()
    assert box is not None
    return box
