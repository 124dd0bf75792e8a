"""The Python examples of each page run one after the other, and print what the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import LanguageModel

from .pages import PAGES, README, Page, page
from .shell import ADDRESS

MARIA = {"name": "Maria", "age": 34, "city": "Lisbon"}
WITH_PYTHON = [page for page in PAGES if page.blocks("python")]


def run(page: Page, request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[str]]:
    """The names that a page's examples leave, and what each of them printed."""
    names: dict[str, Any] = {}
    printed = []
    capsys = request.getfixturevalue("capsys")
    capsys.readouterr()
    for block in page.blocks("python"):
        code = block.code
        if ADDRESS in code:
            code = code.replace(ADDRESS, request.getfixturevalue("server").url)
        placed = "\n" * (block.line - 1) + code  # so that a traceback names the page's line
        exec(compile(placed, str(page.path), "exec"), names)
        printed.append(capsys.readouterr().out)
    return names, printed


@pytest.mark.parametrize("page", WITH_PYTHON, ids=repr)
def test_examples_run_and_print_what_their_page_shows(
    page: Page, reader: Path, request: pytest.FixtureRequest
) -> None:
    _, printed = run(page, request)
    for block, found in zip(page.blocks("python"), printed, strict=True):
        if block.output is not None:
            assert found == block.output, f"{page}:{block.line}"


def test_the_first_example_tells_a_story_takes_it_back_and_tells_two_ends(
    reader: Path, request: pytest.FixtureRequest
) -> None:
    names, printed = run(README, request)
    answer, _, story = printed[0].partition("\n")
    assert answer == "The capital of France is Paris."
    first, *ends = story.split("\n... ")
    assert re.search(r"there (was|lived) a \w+ named [A-Z]|named [A-Z]", first)
    kept = names["stream"].text
    assert first.startswith(kept) and len(kept) < len(first)
    assert len(ends) == 2 and ends[0] != ends[1]


def test_the_first_lines_of_the_library_tell_a_story_and_answer(
    reader: Path, request: pytest.FixtureRequest
) -> None:
    names, printed = run(page("docs/library.md"), request)
    assert re.search(r"there (was|lived) a \w+ named [A-Z]", printed[0].partition("\n")[0])
    assert "The capital of France is Paris. stop Usage(" in printed[0]
    assert names["lm"] is request.getfixturevalue("lm")


def test_the_first_record_is_right_at_any_seed(
    lm: LanguageModel, reader: Path, request: pytest.FixtureRequest
) -> None:
    names, _ = run(page("docs/taking-back.md"), request)
    prompt = [{"role": "user", "content": names["request"]}]
    filters = [mlxgen.JsonSchema(names["schema"], closed=True)]
    for seed in range(4):
        result = lm.generate(prompt, filters=filters, temperature=0.7, seed=seed)
        assert json.loads(result.text) == MARIA


def test_what_is_banned_on_its_page_would_have_come(
    lm: LanguageModel, reader: Path, request: pytest.FixtureRequest
) -> None:
    names, _ = run(page("docs/taking-back.md"), request)
    word, expression = names["banned"]
    freely = lm.generate("Once upon a time", max_tokens=40).text
    assert word in freely or expression.search(freely)


def test_the_first_stream_of_the_server_is_a_story(
    reader: Path, request: pytest.FixtureRequest
) -> None:
    _, printed = run(page("docs/server.md"), request)
    assert re.search(r"fox named [A-Z]", printed[0])
    assert "suddenly" not in printed[0]
