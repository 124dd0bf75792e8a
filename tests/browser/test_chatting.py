"""Talking to the model: streams, stops, tools, images, code, edited answers, models, the engine."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from ..server.running import Running
from .driving import ENDLESS, FACT, GREEDY, PERSON, Chat, box_of, event

if TYPE_CHECKING:
    from playwright.sync_api import Route


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAFElEQVR4nGNkYGD4z8DAwMAEIhgAAA8DAQNxDOOxAAAA"
    "AElFTkSuQmCC"
)


def test_an_answer_streams_in_and_one_that_is_stopped_frees_the_row_and_can_be_gone_on_from(
    chat: Chat, server: Running
) -> None:
    chat.set(ENDLESS)
    with chat.slow_line():
        chat.say("Go on.")
        chat.wait_text(20)
        early = chat.answer
        chat.wait_text(len(early) + 20)
        assert chat.answer.startswith(early)
        chat.page.keyboard.press("Escape")
        chat.wait_done()
        server.wait_idle()
        kept = chat.answer
        assert len(kept) < 1800
        assert "stopped" in chat.answers.last.inner_text()
        figures = chat.answers.last.locator(".stats").inner_text()
        speed = r"\d+ tokens · \d+(\.\d)? tokens/s · first token after \d+(\.\d)? m?s"
        assert re.search(speed, figures)
        chat.press("Continue")
        chat.wait_text(len(kept) + 20)
        chat.press("Stop")
        chat.wait_done()
    assert re.fullmatch("[a-z ]+", chat.answer)


def test_a_call_of_a_tool_is_shown_its_result_goes_back_and_the_transcript_has_both(
    chat: Chat, tmp_path: Path
) -> None:
    question = "What is the weather in Oslo?"
    chat.press(f"Let it call a tool {question}")
    chat.page.get_by_label("Result of get_weather").fill("12 degrees, rain")
    assert '{"city": "Oslo"}' in chat.answers.last.inner_text()
    assert "waiting for the tool" in chat.answers.last.inner_text()
    chat.press("Send the result")
    chat.answers.nth(1).wait_for()
    chat.wait_done()
    assert "waiting for the tool" not in chat.answers.first.inner_text()
    assert "12 degrees, rain" in chat.page.get_by_role("article", name="Results").inner_text()
    assert "Oslo" in chat.answer
    answer = chat.answer.strip()
    with chat.page.expect_download() as download:
        chat.choose(question, "Download as Markdown")
    assert download.value.suggested_filename == "What-is-the-weather-in-Oslo.md"
    download.value.save_as(tmp_path / "it.md")
    call = '```json\n{"city": "Oslo"}\n```'
    assert (tmp_path / "it.md").read_text() == (
        f"# {question}\n\n## User\n\n{question}\n\n"
        f"## Assistant\n\nCalls get_weather:\n\n{call}\n\n"
        "## Tool\n\nResult of get_weather:\n\n```\n12 degrees, rain\n```\n\n"
        f"## Assistant\n\n{answer}\n"
    )


@pytest.mark.slow
def test_an_answer_grows_on_while_another_conversation_is_open(chat: Chat) -> None:
    chat.set(ENDLESS | {"Maximum tokens": "80"})
    with chat.slow_line():
        chat.say("Go on.")
        chat.wait_text(5)
        chat.press("New conversation")
        assert chat.answers.count() == 0
        chat.page.get_by_role("button", name="Go on. …").wait_for()
        chat.page.get_by_role("button", name="Go on.", exact=True).wait_for()
        chat.press("Go on.")
    told = re.compile(r"\d+ tokens · (?!.*stopped)")
    chat.until(lambda: told.search(chat.answers.last.inner_text()))


@pytest.mark.slow
def test_code_is_set_apart_and_can_be_copied_by_a_button_that_stays_in_view(chat: Chat) -> None:
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Look:\n```py\nprint('<b>')\n```\nDone."
    chat.answered(event(text[:12]), event(text[12:]))
    assert chat.answers.last.locator("pre").inner_text() == "print('<b>')"
    chat.press("Copy the code")
    chat.page.get_by_text("Copied").wait_for()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "print('<b>')"
    chat.press("Copy the answer")
    chat.until(lambda: chat.page.evaluate("navigator.clipboard.readText()") == text)
    lines = "\n".join(f"line_{k}" for k in range(200))
    chat.answered(event(f"Look:\n```\n{lines}\n```\nDone."))
    scroll = chat.page.locator("#scroll")
    top = scroll.evaluate("e => { e.scrollTop = 2000; return e.getBoundingClientRect().top; }")
    box = chat.answers.last.get_by_role("button", name="Copy the code").bounding_box()
    assert box is not None and 0 <= box["y"] - top < 20


@pytest.mark.slow
def test_an_edited_answer_goes_on_under_its_schema_with_the_tokens_that_stay(chat: Chat) -> None:
    first = chat.extract()
    chat.edit(first.split("Maria", maxsplit=1)[0] + 'Elena", "age": 5')
    body = chat.asking(lambda: chat.press("Go on from here"))
    chat.other_version()
    record = json.loads(chat.answer)
    jsonschema.validate(record, PERSON)
    assert record["name"] == "Elena" and str(record["age"]).startswith("5")
    assert body["json_schema"] == PERSON
    chat.show_tokens()
    labels = chat.answers.last.locator(".token").evaluate_all("all => all.map((t) => t.ariaLabel)")
    typed = [k for k, label in enumerate(labels) if "typed" in label]
    assert typed == list(range(typed[0], typed[-1] + 1)) and typed[0] >= 3
    assert all("%" in label for k, label in enumerate(labels) if k not in typed)
    assert all("unknown" in labels[k] for k in typed)
    assert len(body["prefix_tokens"]) == typed[-1] + 1


@pytest.mark.slow
def test_an_answer_is_drawn_anew_from_the_cursor(chat: Chat) -> None:
    chat.ask(FACT, GREEDY | {"Seed": "5"})
    chat.set({"Temperature": "2"})
    chat.edit("The capital of")
    body = chat.asking(lambda: chat.press("Generate again from the cursor"))
    chat.other_version()
    assert len(body["prefix_tokens"]) < 5 and body["temperature"] == 2 and body["seed"] != 5
    assert chat.answer.startswith("The capital of")
    chat.show_tokens()
    chat.token(4).click()
    body = chat.asking(lambda: chat.press("Generate again from here"))
    assert len(body["prefix_tokens"]) == 4
    chat.wait_done()
    again = chat.page.get_by_text("3 of 3").or_(chat.page.get_by_text("It came out the same"))
    again.first.wait_for()


@pytest.mark.slow
def test_the_editor_opens_at_the_paragraph_that_was_clicked(chat: Chat) -> None:
    rest = "\n\n".join(["Three."] * 60)
    chat.answered(event(f"One.\n\nTwo, *and* more.\n\n{rest}"))
    chat.answers.last.get_by_text("Two,").click()
    chat.answers.last.get_by_role("button", name="Edit", exact=True).click()
    box = chat.page.get_by_label("Edited answer")
    assert box.evaluate("box => box.value.slice(box.selectionStart)").startswith("Two, *and*")
    assert box.evaluate("box => box.scrollTop") == 0  # and it is in view
    chat.page.keyboard.press("Escape")
    assert box.count() == 0


@pytest.mark.slow
def test_several_calls_are_answered_at_once_and_one_with_an_error(chat: Chat) -> None:
    calls = [
        {"index": k, "id": f"call{k}", "function": {"name": "f", "arguments": f'{{"k": {k}}}'}}
        for k in range(2)
    ]
    chat.answer_with([event(delta={"tool_calls": calls}), event(finish="tool_calls")])
    chat.ask("Call it twice.")
    first = chat.page.get_by_label("Result of f, call 1")
    first.fill('{"a": 1')
    chat.page.get_by_text("Not valid JSON:").wait_for()
    first.fill('{"a": 1}')
    chat.page.get_by_text("Valid JSON", exact=True).wait_for()
    chat.page.get_by_label("Answer with an error").last.check()
    chat.page.get_by_label("Result of f, call 2").fill("no such k")
    body = chat.asking(lambda: chat.press("Send the results"))
    results = body["messages"][-2:]
    assert [one["tool_call_id"] for one in results] == ["call0", "call1"]
    assert [json.loads(one["content"]) for one in results] == [{"a": 1}, {"error": "no such k"}]
    chat.wait_done()


@pytest.mark.slow
# Hands files to the page as a drop or a paste does; the browser's own dialogs cannot be driven.
def test_images_are_shown_and_sent_where_the_model_takes_them(chat: Chat) -> None:
    def fulfil(route: Route) -> None:
        props = route.fetch().json()
        route.fulfill(json=props | {"modalities": {"vision": True, "audio": False}})

    chat.page.route("**/props?*", fulfil)
    chat.reload()
    chat.page.get_by_role("button", name="Attach text files or images").wait_for()
    chat.hand("paste", ("dot.png", "image/png", PNG.decode("latin-1")))
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


@pytest.mark.slow
def test_the_engine_panel_asks_only_while_it_is_open(chat: Chat) -> None:
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url))
    chat.ask(FACT, GREEDY)
    assert not any(url.endswith("/metrics") for url in asked)
    chat.press("Engine")
    panel = chat.page.get_by_role("dialog", name="Engine")
    panel.get_by_text("Weights").wait_for()
    assert re.search(r"Device\s+\S+", panel.inner_text())
    chat.page.keyboard.press("Escape")
    chat.until(panel.is_hidden)


def serve_models(chat: Chat, **first: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Let the page believe that the server has these models; what is changed in the dictionary that
    this returns is what the page is told next. A route that is taken away and set again would let
    a question through that the page asks in between."""
    models = dict(first)

    def fulfil(route: Route) -> None:
        data = [{"id": n, "status": s, "max_model_len": 4096} for n, s in models.items()]
        route.fulfill(json={"object": "list", "data": data})

    chat.page.route("**/v1/models", fulfil)
    return models


@pytest.mark.slow
def test_a_model_is_chosen_for_a_conversation_and_its_load_is_shown(chat: Chat) -> None:
    loaded, unloaded = {"value": "loaded"}, {"value": "unloaded"}
    failed = {**unloaded, "failed": True, "reason": "no weights"}
    models = serve_models(chat, demo=loaded, other=unloaded, bad=failed)
    chat.page.route("**/v1/models/load", lambda route: None)  # it takes for ever
    chat.page.reload()
    opener = chat.page.get_by_role("button", name="Model: demo, loaded.")
    opener.click()
    menu = chat.page.get_by_role("dialog", name="Models")
    assert "no weights" in menu.inner_text()
    models["other"] = {"value": "loading", "progress": 0.4}
    menu.get_by_role("button", name="other").click()
    assert menu.is_hidden()
    chat.page.get_by_role("button", name="Model: other, loading").click()
    assert "Loading … 40 %" in menu.inner_text()
    assert menu.get_by_role("progressbar").get_attribute("value") == "0.4"
    chat.page.keyboard.press("Escape")
    models["other"] = loaded
    chat.page.get_by_role("button", name="Model: other, loaded").wait_for()
    chat.answer_with([event("Hello."), event(finish="stop")])
    body = chat.asking(lambda: chat.ask("Hello!"))
    assert body["model"] == "other"
    del models["other"], models["bad"]
    chat.page.reload()
    gone = chat.page.get_by_text("The model other is not on this server any more, so demo answers.")
    gone.wait_for()
    chat.press("Use demo from now on")
    chat.until(gone.is_hidden)
    assert chat.stored[0]["settings"]["model"] == "demo"
