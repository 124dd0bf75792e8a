"""Answers that a person changes: edited, saved, gone on from, drawn anew, deleted and put back."""

from __future__ import annotations

import json

import jsonschema
import pytest

from .driving import FACT, GREEDY, PERSON, Chat, event

pytestmark = pytest.mark.slow


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
