"""Each example runs, and shows what it says it shows, whatever the demo model happens to write.

What the features do that an example uses has tests in the feature's room.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mlxgen

EXAMPLES = Path(__file__).parent.parent / "scripts" / "examples"


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load()


@pytest.fixture
def names(
    request: pytest.FixtureRequest, lm: mlxgen.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The names in the file of the example that the test is called after; its ``main`` finds the
    model loaded already."""
    monkeypatch.setattr(mlxgen, "load", lambda: lm)
    return runpy.run_path(str(EXAMPLES / f"{request.node.name.removeprefix('test_')}.py"))


def test_decline_unlikely(names: dict[str, Any]) -> None:
    result, hook = names["main"]()
    jsonschema.validate(json.loads(result.text), names["SCHEMA"])
    assert hook.doubts and all(doubt.prob < names["LIKELY"] for doubt in hook.doubts)
    assert result.usage.redraws == len(hook.doubts) - sum(c.exhausted for c in result.chunks)


@pytest.mark.slow
def test_as_it_means(names: dict[str, Any]) -> None:
    meant, drawn = names["main"](chains=24, each=(0, 8))
    assert abs(drawn[8] - meant) < abs(drawn[0] - meant) - 0.1


def test_revert_last_n(names: dict[str, Any]) -> None:
    every, is_fine = names["EVERY"], names["is_fine"]
    found = [names["main"](seed) for seed in (1, 2)]
    assert any(held.reverted for held, _ in found)
    for held, retracted in found:
        assert (held.text, held.reverted) == (retracted.text, retracted.reverted)
        assert not any(chunk.retract for chunk in held.chunks)
        runs = [held.chunks[i : i + every] for i in range(0, len(held.chunks) - every, every)]
        assert all(is_fine("".join(c.text for c in run)) or run[-1].exhausted for run in runs)


def test_uncertain_whitespace(names: dict[str, Any]) -> None:
    found = [names["main"](seed) for seed in (1, 2)]
    assert any(outcome.added for outcome in found)
    for outcome in found:
        jsonschema.validate(json.loads(outcome.without), names["SCHEMA"])
        assert outcome.text.replace(" ", "") == outcome.without.replace(" ", "")
        assert len(outcome.text) == len(outcome.without) + len(outcome.added)


def test_other_library(names: dict[str, Any]) -> None:
    texts = names["main"]()
    assert list(texts) == ["by hand", "lm-format-enforcer", "outlines-core"]
    assert all(re.fullmatch(names["PATTERN"], text) for text in texts.values())


def test_best_of_forks(names: dict[str, Any]) -> None:
    common, candidates = names["main"]()
    assert len({candidate.text for candidate in candidates}) > 1
    assert all(candidate.text.startswith(common) for candidate in candidates)
    scores = [candidate.score for candidate in candidates]
    assert scores == sorted(scores, reverse=True)
    assert all(candidate.forward_passes <= candidate.tokens for candidate in candidates)


def test_session_batch(names: dict[str, Any]) -> None:
    answer, listed, record, story = (row.session for row in names["main"]())
    assert "\n" not in answer.text
    prompt = answer.history[: answer.usage.prompt_tokens]
    assert answer.text == mlxgen.load().generate(prompt, stop="\n").text  # as alone
    assert re.fullmatch("(apples|pears), (plums|figs), ", listed.text)
    jsonschema.validate(json.loads(record.text), names["SCHEMA"])
    assert story.finish_reason in ("stop", "length")


def test_own_loop(names: dict[str, Any]) -> None:
    words, first, second = names["main"]()
    assert words in first.session.text and first.rewound == 0
    assert words not in second.session.text and second.rewound > 1
    for outcome, options in ((first, {}), (second, {"banned": words})):
        alone = mlxgen.load().generate(names["PROMPT"], heal=True, max_tokens=40, **options)
        assert alone.text == outcome.session.text


def test_yes_or_no(names: dict[str, Any]) -> None:
    answer = names["main"]()
    between = {"yes": "! The", "no": ". Still, the"}[answer.is_known]
    wanted = f"Do I know it? {answer.is_known}{between} capital of France is {answer.city}."
    assert answer.text == wanted and answer.city == "Paris"


def test_numbered_list(names: dict[str, Any]) -> None:
    items, result = names["main"]()
    for number, (line, (beginning, pattern)) in enumerate(
        zip(result.text.splitlines(), names["ITEMS"].items(), strict=True), start=1
    ):
        assert re.fullmatch(pattern, items[beginning])
        assert line == f"{number}. {beginning}{items[beginning]}."


def test_several_answers(names: dict[str, Any]) -> None:
    run, stats = names["main"]()
    stories = {branch: result.text for branch, result in run.results.items()}
    end = stories.pop(())
    assert list(run.controller.value) == [stories[i,] for i in (1, 2, 3)]
    assert end == max(stories.values(), key=len) + " ... The end."
    assert stats.steps < sum(len(result.tokens) for result in run.results.values())


def test_backtrack(names: dict[str, Any]) -> None:
    found = [names["main"](seed) for seed in (1, 2)]
    assert any(len(tried) > 1 for tried, _, _ in found)
    for tried, screen, result in found:
        fine = names["will_do"](tried[-1])
        assert screen == result.text and screen.removesuffix(".") == (tried[-1] if fine else "")
        assert not any(map(names["will_do"], tried[:-1]))


def test_quotes(names: dict[str, Any]) -> None:
    found, text = names["main"]()
    assert len(found) == names["QUOTES"]
    assert all(quote and quote in names["TEXT"] for quote in found)
    assert re.findall('"([^"]*)"', text) == found


def test_tree_sampling(names: dict[str, Any]) -> None:
    run = names["main"]()
    results = list(run.results.values())
    finished = [result for result in results if result.finish_reason == "filter"]
    assert len(results) > names["WIDTH"] >= len(finished) > 1 and not run.errors
    assert len({result.text for result in finished}) == len(finished)
    for result in finished:
        jsonschema.validate(json.loads(result.text), names["SCHEMA"])
    assert run.stats.steps < sum(len(result.tokens) for result in results) / 2


def test_loops(names: dict[str, Any]) -> None:
    text, deleted, usage = names["main"]()
    assert deleted and all(piece not in text for piece in deleted)
    assert usage.loops + bool(usage.looped) == len(deleted)


def test_checked_lines(names: dict[str, Any]) -> None:
    text, deleted, usage = names["main"]()
    sentences = text.split(".")[:-1]
    too_long = [sentence for sentence in sentences if len(sentence.split()) > names["MOST"]]
    assert deleted and bool(too_long) == bool(usage.violates)


def test_every_example_says_how_to_run_it_and_is_tested_here() -> None:
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        assert f".venv/bin/python scripts/examples/{path.name}\n" in text
        assert f"test_{path.stem}" in globals(), path.stem


@pytest.mark.slow
def test_an_example_runs_as_a_program() -> None:
    path = EXAMPLES / "best_of_forks.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("common: ")
