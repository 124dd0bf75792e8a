"""The Python examples of each page run one after the other, and print what the page shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import LanguageModel

from .pages import PAGES, Page
from .shell import ADDRESS

MARIA = {"name": "Maria", "age": 34, "city": "Lisbon"}
STORY = r"there (was|lived) a \w+ named [A-Z]"
WITH_PYTHON = [page for page in PAGES if page.blocks("python")]


def readme(names: dict[str, Any], printed: list[str], lm: LanguageModel) -> None:
    """The first example tells a story, takes it back, and tells two ends."""
    answer, _, story = printed[0].partition("\n")
    assert answer == "The capital of France is Paris."
    first, *ends = story.split("\n... ")
    assert re.search(rf"{STORY}|named [A-Z]", first)
    kept = names["stream"].text
    assert first.startswith(kept) and len(kept) < len(first)
    assert len(ends) == 2 and ends[0] != ends[1]


def library(names: dict[str, Any], printed: list[str], lm: LanguageModel) -> None:
    assert re.search(STORY, printed[0].partition("\n")[0])
    assert "The capital of France is Paris. stop Usage(" in printed[0]
    assert names["lm"] is lm


def taking_back(names: dict[str, Any], printed: list[str], lm: LanguageModel) -> None:
    """The first record is right at any seed, and what is banned would have come."""
    prompt = [{"role": "user", "content": names["request"]}]
    filters = [mlxgen.JsonSchema(names["schema"], closed=True)]
    for seed in range(4):
        result = lm.generate(prompt, filters=filters, temperature=0.7, seed=seed)
        assert json.loads(result.text) == MARIA
    word, expression = names["banned"]
    freely = lm.generate("Once upon a time", max_tokens=40).text
    assert word in freely or expression.search(freely)


def server(names: dict[str, Any], printed: list[str], lm: LanguageModel) -> None:
    assert re.search(r"fox named [A-Z]", printed[0]) and "suddenly" not in printed[0]


MEANT: dict[str, Callable[[dict[str, Any], list[str], LanguageModel], None]] = {
    "README.md": readme,
    "docs/library.md": library,
    "docs/taking-back.md": taking_back,
    "docs/server.md": server,
}
"""What holds of the names that a page's examples leave, and of what each of them printed."""


@pytest.mark.parametrize("page", WITH_PYTHON, ids=repr)
def test_examples_run_and_print_what_their_page_shows(
    page: Page,
    lm: LanguageModel,
    reader: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    printed = []
    for block in page.blocks("python"):
        code = block.code
        if ADDRESS in code:
            code = code.replace(ADDRESS, request.getfixturevalue("server").url)
        placed = "\n" * (block.line - 1) + code  # so that a traceback names the page's line
        exec(compile(placed, str(page.path), "exec"), names)
        printed.append(capsys.readouterr().out)
        if block.output is not None:
            assert printed[-1] == block.output, f"{page}:{block.line}"
    if page.name in MEANT:
        MEANT[page.name](names, printed, lm)
