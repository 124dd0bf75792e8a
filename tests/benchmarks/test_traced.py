"""The timeline of one run of what is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import alternate
from benchmarks.single import PROMPT
from benchmarks.traced import Traced

import mlxgen

from ..fakes.chatting import Chatter


@pytest.mark.slow
def test_the_first_comparison_that_generates_is_traced_once_and_not_while_it_is_measured(
    tmp_path: Path,
) -> None:
    lm, runs = Chatter().lm, []

    def ours() -> None:
        runs.append(mlxgen.LanguageModel.watch is not None)
        lm.generate(PROMPT, max_tokens=3, ignore_eos=True)

    def other() -> None:
        lm.tokenizer.encode("x")

    with Traced(tmp_path / "trace.json") as traced:
        alternate.compare(other, other, 2)
        assert not traced.found
        alternate.compare(ours, other, 2)
        alternate.compare(ours, other, 2)
    assert runs == [False, True, False, False, False, False, False]
    events = json.loads((tmp_path / "trace.json").read_text())
    assert sum(event["name"] == "token" for event in events) == 3
    assert alternate.traced is None
