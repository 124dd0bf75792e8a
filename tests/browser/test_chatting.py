"""Talking to the model: streams, stops, settings, thoughts, tools, versions, reloads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..server.running import Running
from .driving import ENDLESS, Chat, event


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
