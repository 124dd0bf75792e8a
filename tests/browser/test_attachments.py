"""Files and images that go with a message: chosen, dropped, pasted, refused, drafted, sent."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest

from .driving import GREEDY, Chat, box_of

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.slow

CODE = "print('``` é')\n"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAFElEQVR4nGNkYGD4z8DAwMAEIhgAAA8DAQNxDOOxAAAA"
    "AElFTkSuQmCC"
)
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


def hand(chat: Chat, kind: str, *files: tuple[str, str, bytes | int]) -> None:
    """Give the page files; a number is the size of a long one."""
    given = [
        [name, type, data if isinstance(data, int) else list(data)] for name, type, data in files
    ]
    chat.page.evaluate(HAND, [kind, "#message" if kind == "paste" else "#main", given])


def choose(chat: Chat, name: str, kind: str, data: bytes) -> None:
    """Choose a file with the composer's button."""
    file = {"name": name, "mimeType": kind, "buffer": data}
    chat.page.locator("#composer input[type=file]").set_input_files(file)  # type: ignore[arg-type]


def test_a_file_is_drafted_sent_as_a_named_block_and_shown_as_a_chip(chat: Chat) -> None:
    message = chat.page.get_by_label("Message", exact=True)
    chat.set(GREEDY)
    choose(chat, "hello.py", "text/x-python", CODE.encode())
    chat.page.get_by_text(re.compile(r"16 B · about \d+ tokens")).wait_for()
    message.fill("to be continued")
    chat.reload()
    chat.until(lambda: message.input_value() == "to be continued")
    body = chat.asking(lambda: chat.ask("What is it?"))
    content = f"hello.py:\n````py\n{CODE}````\n\nWhat is it?"
    assert body["messages"][0]["content"] == content
    assert chat.page.locator(".tray li").count() == 0
    sent = chat.page.get_by_role("article", name="You")
    sent.get_by_text("hello.py").click()
    chat.until(lambda: sent.locator("pre").text_content() == CODE)
    chat.reload()
    assert chat.page.get_by_role("article", name="You").get_by_text("hello.py").is_visible()
    # A draft is of its conversation alone.
    message.fill("and on")
    hand(chat, "drop", ("notes.txt", "text/plain", b"a note"))
    chat.page.locator(".tray .name").wait_for()
    chat.press("New conversation")
    assert message.input_value() == "" and chat.page.locator(".tray li").count() == 0
    chat.page.go_back()
    chat.until(lambda: message.input_value() == "and on")
    assert chat.page.locator(".tray .name").inner_text() == "notes.txt"
    # What is edited keeps its files, less those that are taken away.
    chat.page.get_by_role("button", name="Edit", exact=True).first.click()
    chat.press("Remove hello.py")
    body = chat.asking(lambda: chat.press("Ask this instead"))
    assert body["messages"][0]["content"] == "What is it?"
    chat.wait_done()


def test_what_is_no_text_is_refused_with_a_sentence(chat: Chat) -> None:
    files: list[tuple[str, str, bytes | int]] = [
        ("a.bin", "", b"a\x00b"),
        ("b.txt", "text/plain", b"\xff\xfe"),
        ("c.txt", "text/plain", 2_000_001),
        ("d.png", "image/png", PNG),
        ("e.txt", "text/plain", b"fine"),
        ("f.pdf", "application/pdf", b"%PDF-1.7"),
    ]
    hand(chat, "drop", *files)
    chat.page.locator(".tray li").wait_for()
    assert chat.page.locator(".tray .name").all_text_contents() == ["e.txt"]
    said = chat.page.locator(".tray .problem").inner_text()
    for sentence in (
        "“a.bin” is not text in UTF-8.",
        "“b.txt” is not text in UTF-8.",
        "“c.txt” is too large: files may have up to 2 MB, and it has 2 MB.",
        "“d.png” is an image, and this model takes no images.",
        "“f.pdf” is a PDF. Copy its text into the message",
    ):
        assert sentence in said


def test_images_are_shown_and_sent_where_the_model_takes_them(chat: Chat) -> None:
    def fulfil(route: Route) -> None:
        props = route.fetch().json()
        route.fulfill(json=props | {"modalities": {"vision": True, "audio": False}})

    chat.page.route("**/props?*", fulfil)
    chat.reload()
    chat.page.get_by_role("button", name="Attach text files or images").wait_for()
    hand(chat, "paste", ("dot.png", "image/png", PNG))
    box = box_of(chat.page.get_by_alt_text("dot.png"))
    assert min(box["width"], box["height"]) > 40  # room for its button
    address = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    body = chat.asking(lambda: chat.say("What is it?"))
    image = {"type": "image_url", "image_url": {"url": address}}
    assert body["messages"][0]["content"] == [image, {"type": "text", "text": "What is it?"}]
    chat.wait_done()
    chat.reload()
    shown = chat.page.get_by_role("article", name="You").get_by_alt_text("dot.png")
    chat.until(lambda: shown.evaluate("image => image.naturalWidth") == 2)
