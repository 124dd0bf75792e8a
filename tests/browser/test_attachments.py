"""Files and images that go with a message: chosen, dropped, pasted, refused, drafted, sent."""

from __future__ import annotations

import base64
import re
from pathlib import Path
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


def see(chat: Chat) -> None:
    """Let the page believe that the model takes images."""

    def fulfil(route: Route) -> None:
        props = route.fetch().json()
        route.fulfill(json=props | {"modalities": {"vision": True, "audio": False}})

    chat.page.route("**/props?*", fulfil)
    chat.reload()
    chat.page.get_by_role("button", name="Attach text files or images").wait_for()


def test_a_file_is_sent_as_a_named_block_and_shown_as_a_chip(chat: Chat, tmp_path: Path) -> None:
    chat.set(GREEDY)
    file = tmp_path / "hello.py"
    file.write_text(CODE)
    chat.page.locator("#composer input[type=file]").set_input_files(file)
    chat.page.get_by_text(re.compile(r"16 B · about \d+ tokens")).wait_for()
    chat.reload()
    body = chat.asking(lambda: chat.ask("What is it?"))
    message = body["messages"][0]
    assert message["content"] == f"hello.py:\n````py\n{CODE}````\n\nWhat is it?"
    assert chat.page.locator(".tray li").count() == 0
    sent = chat.page.get_by_role("article", name="You")
    sent.get_by_text("hello.py").click()
    chat.until(lambda: sent.locator("pre").text_content() == CODE)
    chat.reload()
    assert chat.page.get_by_role("article", name="You").get_by_text("hello.py").is_visible()
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
    ]
    hand(chat, "drop", *files)
    chat.page.locator(".tray li").wait_for()
    assert chat.page.locator(".tray .name").all_text_contents() == ["e.txt"]
    said = chat.page.locator(".tray .problem").inner_text()
    assert "“a.bin” is not text in UTF-8." in said
    assert "“b.txt” is not text in UTF-8." in said
    assert "“c.txt” is too large: files may have up to 2 MB, and it has 2 MB." in said
    assert "“d.png” is an image, and this model takes no images." in said


def test_images_are_shown_and_sent_where_the_model_takes_them(chat: Chat) -> None:
    see(chat)
    hand(chat, "paste", ("dot.png", "image/png", PNG))
    box = box_of(chat.page.get_by_alt_text("dot.png"))
    assert min(box["width"], box["height"]) > 40  # room for its button
    address = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    body = chat.asking(lambda: chat.say("What is it?"))
    content = body["messages"][0]["content"]
    image = {"type": "image_url", "image_url": {"url": address}}
    assert content == [image, {"type": "text", "text": "What is it?"}]
    chat.wait_done()
    chat.reload()
    shown = chat.page.get_by_role("article", name="You").get_by_alt_text("dot.png")
    chat.until(lambda: shown.evaluate("image => image.naturalWidth") == 2)


def test_drafts_survive_a_reload_in_the_conversation_that_they_are_for(chat: Chat) -> None:
    message = chat.page.get_by_label("Message", exact=True)
    chat.ask("What is 3 + 4?", GREEDY)
    message.fill("to be continued")
    hand(chat, "drop", ("notes.txt", "text/plain", b"a note"))
    chat.page.locator(".tray .name").wait_for()
    chat.reload()
    chat.until(lambda: message.input_value() == "to be continued")
    assert chat.page.locator(".tray .name").inner_text() == "notes.txt"
    chat.press("New conversation")
    assert message.input_value() == ""
    assert chat.page.locator(".tray li").count() == 0
