"""What a new user sees first: the README's examples, with the demo model, give sensible answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import LanguageModel
from mlxgen.engine.scheduling.scheduler import Scheduler

from .server.wire.test_demo_model import Desk

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
MARIA = {"name": "Maria", "age": 34, "city": "Lisbon"}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return mlxgen.load()


@pytest.fixture
def desk(lm: LanguageModel) -> Iterator[Desk]:
    scheduler = Scheduler(lm)
    yield Desk(lm, scheduler)
    scheduler.close()


def blocks(heading: str, kind: str) -> list[str]:
    """The code of one kind under a heading."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)
    assert found, heading
    return found


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_first_command_answers_its_question(lm: LanguageModel) -> None:
    question = re.search(r'^scripts/run --prompt "(.*)"$', README, re.MULTILINE)
    assert question is not None
    result = lm.generate([{"role": "user", "content": question[1]}])
    assert result.text.endswith("The capital of France is Paris.")


def test_the_first_lines_of_the_library_tell_a_story_and_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = run(blocks("The library", "python")[0])
    assert names["result"].text.endswith("The capital of France is Paris.")
    story = capsys.readouterr().out.partition("\n")[0]
    assert re.search(r"there (was|lived) a \w+ named [A-Z]", story)


def test_the_first_filter_example_extracts_what_was_asked_for(
    lm: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    code = blocks("Taking tokens back", "python")[0]
    names = run(code, mlxgen=mlxgen, lm=lm)
    assert json.loads(names["result"].text) == MARIA
    assert capsys.readouterr().out.strip() == str(MARIA)
    assert f"# {MARIA}" in code
    prompt = [{"role": "user", "content": names["request"]}]
    filters = [mlxgen.JsonSchema(names["schema"], closed=True)]
    for seed in range(4):
        result = lm.generate(prompt, filters=filters, temperature=0.7, seed=seed)
        assert json.loads(result.text) == MARIA


def test_the_first_request_to_the_server_extracts_what_was_asked_for(desk: Desk) -> None:
    sent = re.search(r"-d '(\{.*\})'", blocks("The server", "console")[0], re.DOTALL)
    assert sent is not None
    body = json.loads(sent[1])
    message = desk.chat(**body)["message"]
    assert message["content"] in README and json.loads(message["content"]) == MARIA
    assert message["reasoning_content"]
    for seed in range(4):
        again = desk.chat(**body, temperature=0.7, seed=seed)["message"]["content"]
        assert json.loads(again) == MARIA


def test_the_first_stream_of_the_server_is_a_story(desk: Desk) -> None:
    code = blocks("The server", "python")[0]
    asked = re.search(r"messages=(\[.*\]),$", code, re.MULTILINE)
    extra = re.search(r"extra_body=(\{.*\})", code)
    assert asked is not None and extra is not None
    fields = json.loads(extra[1])
    text = desk.chat(messages=json.loads(asked[1]), **fields)["message"]["content"]
    assert re.match(r"Once upon a time .* named [A-Z]", text)
    assert not any(banned in text for banned in fields["banned_strings"])
