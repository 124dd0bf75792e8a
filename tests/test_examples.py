"""Each example shows what it says it shows, whatever the demo model happens to write."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mlxgen

EXAMPLES = Path(__file__).parent.parent / "scripts" / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))

Example = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load()


@pytest.fixture
def example(lm: mlxgen.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Runs an example's file as a module; its ``main`` then finds the model loaded already."""
    monkeypatch.setattr(mlxgen, "load", lambda: lm)

    def names_of(name: str) -> dict[str, Any]:
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))

    return names_of


def test_unlikely_tokens_are_declined_and_the_json_stays_valid(example: Example) -> None:
    names = example("decline_unlikely")
    likely, most = names["LIKELY"], names["MAX_RESAMPLE"]
    result, hook = names["main"]()
    jsonschema.validate(json.loads(result.text), names["SCHEMA"])
    assert result.finish_reason == "filter"
    assert hook.doubts, "at this temperature some draw is unlikely"
    exhausted = sum(chunk.exhausted for chunk in result.chunks)
    assert result.usage.redraws == len(hook.doubts) - exhausted
    for chunk in result.chunks:
        doubts = [doubt for doubt in hook.doubts if doubt.position == chunk.index]
        assert all(doubt.prob < likely for doubt in doubts)
        wanted = [names["TEMPERATURE"] / 2**n for n in range(1, len(doubts) + 1)]
        assert [doubt.temperature for doubt in doubts] == wanted
        assert chunk.attempts == len(doubts) - chunk.exhausted <= most
        assert chunk.exhausted == (hook.prob[chunk.index] < likely)


def test_moves_bring_texts_nearer_to_what_the_model_means(example: Example) -> None:
    meant, drawn = example("as_it_means")["main"](chains=60, each=(0, 16))
    assert abs(drawn[16] - meant) < abs(drawn[0] - meant) - 0.1


def test_runs_that_a_validator_refuses_are_taken_back_held_or_retracted(example: Example) -> None:
    names = example("revert_last_n")
    every, is_fine = names["EVERY"], names["is_fine"]
    reverted = 0
    for seed in (1, 2):
        held, retracted = names["main"](seed)
        reverted += len(held.reverted)
        assert (held.text, held.reverted) == (retracted.text, retracted.reverted)
        assert not any(chunk.retract for chunk in held.chunks)
        assert [chunk.index for chunk in held.chunks] == list(range(len(held.chunks)))
        stood = sum(chunk.exhausted for chunk in held.chunks)
        retractions = sum(chunk.retract > 0 for chunk in retracted.chunks)
        assert retractions == len(held.reverted) - stood
        for start in range(0, len(held.chunks), every):
            run = held.chunks[start : start + every]
            whole = len(run) == every or run[-1].finish_reason == "stop"
            text = "".join(chunk.text for chunk in run)
            assert not whole or is_fine(text) or run[-1].exhausted
    assert reverted, "in two stories some run has a word twice"


def test_uncertainty_becomes_white_space_that_the_filter_never_hears_of(
    example: Example, lm: mlxgen.LanguageModel
) -> None:
    names = example("uncertain_whitespace")
    added = 0
    for seed in (1, 2):
        outcome = names["main"](seed)
        added += len(outcome.added)
        jsonschema.validate(json.loads(outcome.without), names["SCHEMA"])
        pieces = [lm.vocabulary.piece(token) for token in outcome.tokens]
        assert {pieces[position] for position in outcome.added} <= {b" "}
        assert b"".join(pieces).decode() == outcome.text
        assert outcome.text.replace(" ", "") == outcome.without.replace(" ", "")
        assert len(outcome.text) == len(outcome.without) + len(outcome.added)
        assert not any(
            outcome.added.issuperset(range(start, start + names["MOST"] + 1))
            for start in outcome.added
        )
    assert added, "of two records that nobody described some value is uncertain"


def test_filters_of_other_libraries_hold_when_the_stream_is_rewound(example: Example) -> None:
    names = example("other_library")
    texts = names["main"]()
    assert list(texts) == ["by hand", "lm-format-enforcer", "outlines-core"]
    for name, text in texts.items():
        assert re.fullmatch(names["PATTERN"], text), name


def test_the_filter_written_by_hand_can_only_go_forwards(
    example: Example, lm: mlxgen.LanguageModel
) -> None:
    names = example("other_library")
    filter = names["PartialMatch"]("ab|cd", lm)
    assert not hasattr(filter, "rewind") and not hasattr(filter, "fork")
    a, d = (lm.vocabulary.continue_with(data)[0] for data in (b"a", b"d"))
    filter.advance(a)
    with pytest.raises(mlxgen.FilterError):
        filter.advance(d)
    assert filter.text == "a"


def test_the_best_of_several_forks_that_share_their_history(example: Example) -> None:
    names = example("best_of_forks")
    common, candidates = names["main"]()
    assert len(candidates) == names["FORKS"]
    assert all(candidate.text.startswith(common) for candidate in candidates)
    assert len({candidate.text for candidate in candidates}) > 1
    scores = [candidate.score for candidate in candidates]
    assert scores == sorted(scores, reverse=True) and max(scores) <= 0
    for candidate in candidates:  # no fork ran the prompt or the common tokens again
        assert candidate.forward_passes <= candidate.tokens


def test_sessions_drive_mlx_lms_batch_generator(example: Example, lm: mlxgen.LanguageModel) -> None:
    names = example("session_batch")
    rows = names["main"]()
    for row in rows:
        session = row.session
        assert [chunk.token for chunk in row.chunks] == session.tokens
        assert "".join(chunk.text for chunk in row.chunks) == session.text
        assert [chunk.finish_reason is not None for chunk in row.chunks].index(True) == (
            len(row.chunks) - 1
        ), "nothing was pushed behind the end"
        # Every push used one position, and the cache never had to go back.
        assert (session.keep, len(session.pending)) == (len(session.history) - 1, 1)
    answer, listed, record, story = (row.session for row in rows)
    assert "\n" not in answer.text
    assert re.fullmatch("(apples|pears), (plums|figs), ", listed.text)
    assert (listed.finish_reason, rows[1].chunks[-1].stop) == ("stop", names["STOP"])
    assert len(lm.vocabulary.continue_with(names["STOP"].encode())) > 1
    assert record.finish_reason == "filter"
    jsonschema.validate(json.loads(record.text), names["SCHEMA"])
    assert story.usage.prompt_tokens < len(lm.vocabulary.encode("Once upon a ti"))
    assert story.finish_reason == "stop" or len(story.tokens) == 24


def test_a_row_of_the_batch_says_what_it_says_alone(
    example: Example, lm: mlxgen.LanguageModel
) -> None:
    session = example("session_batch")["main"]()[0].session
    prompt = session.history[: session.usage.prompt_tokens]
    assert session.text == lm.generate(prompt, stop="\n").text


def test_bans_and_healing_work_in_a_loop_of_ones_own(
    example: Example, lm: mlxgen.LanguageModel
) -> None:
    names = example("own_loop")
    words, first, second = names["main"]()
    assert words in first.session.text and first.rewound == 0
    assert words not in second.session.text and second.rewound > 1
    prompt = names["PROMPT"]
    for outcome, options in ((first, {}), (second, {"banned": words})):
        session = outcome.session
        assert session.usage.prompt_tokens < len(lm.vocabulary.encode(prompt))
        assert lm.vocabulary.decode(session.history) == prompt + session.text
        assert outcome.runs == len(session.tokens) + outcome.rewound
        alone = lm.generate(prompt, heal=True, max_tokens=40, **options)
        assert (alone.text, list(alone.tokens)) == (session.text, session.tokens)


def test_a_program_asks_yes_or_no_and_goes_on_by_the_answer(example: Example) -> None:
    names = example("yes_or_no")
    answer = names["main"]()
    assert answer.is_known in ("yes", "no") and answer.city in names["CITIES"]
    between = {"yes": "! The", "no": ". Still, the"}[answer.is_known]
    wanted = f"Do I know it? {answer.is_known}{between} capital of France is {answer.city}."
    assert answer.text == wanted
    assert answer.city == "Paris"


def test_a_numbered_list_has_an_item_of_each_kind(example: Example) -> None:
    names = example("numbered_list")
    items, result = names["main"]()
    lines = result.text.splitlines()
    assert len(lines) == len(names["ITEMS"])
    for number, (line, (beginning, pattern)) in enumerate(
        zip(lines, names["ITEMS"].items(), strict=True), start=1
    ):
        assert re.fullmatch(pattern, items[beginning])
        assert line == f"{number}. {beginning}{items[beginning]}."
    assert items["The capital of France is "] == "Paris"
    assert result.usage.forward_passes < result.usage.completion_tokens


def test_several_answers_are_written_side_by_side_and_waited_for(example: Example) -> None:
    names = example("several_answers")
    run, stats = names["main"]()
    stories = {branch: result.text for branch, result in run.results.items()}
    end = stories.pop(())
    assert list(run.controller.value) == [stories[i,] for i in (1, 2, 3)]
    for hero, text in zip(names["HEROES"], run.controller.value, strict=True):
        assert text.startswith(hero)
    assert end == max(stories.values(), key=len) + " ... The end."
    assert sorted(run.controller.variables["finished"].split()) == sorted(names["HEROES"])
    tokens = sum(len(result.tokens) for result in run.results.values())
    assert stats.steps < tokens


def test_lines_that_will_not_do_are_taken_back(example: Example) -> None:
    names = example("backtrack")
    taken_back = 0
    for seed in (1, 2):
        tried, screen, result = names["main"](seed)
        kept = screen.removesuffix(".")
        assert screen == result.text
        if names["will_do"](tried[-1]):
            assert kept == tried[-1]
        else:
            assert kept == "" and len(tried) == names["MOST"]
        assert not any(names["will_do"](line) for line in tried[:-1])
        taken_back += len(tried) - 1
        assert result.usage.rewound_tokens >= sum(bool(line) for line in tried[:-1])
    assert taken_back, "with one of two seeds the first line will not do"


def test_quotes_are_taken_from_the_text(example: Example) -> None:
    names = example("quotes")
    quotes, text = names["main"]()
    assert len(quotes) == names["QUOTES"]
    assert all(quote and quote in names["TEXT"] for quote in quotes)
    assert re.findall('"([^"]*)"', text) == quotes


def test_a_tree_forks_where_it_is_unsure_and_loses_its_losers(example: Example) -> None:
    names = example("tree_sampling")
    run = names["main"]()
    score = names["score"]
    results = list(run.results.values())
    finished = [result for result in results if result.finish_reason == "filter"]
    losers = [result for result in results if result.finish_reason == "stop"]
    assert len(finished) + len(losers) == len(results) > names["WIDTH"] >= len(finished) > 1
    assert not run.errors and losers
    assert len({result.text for result in finished}) == len(finished)
    for result in finished:
        jsonschema.validate(json.loads(result.text), names["SCHEMA"])
    assert all(score(result.chunks) < 0 for result in finished)
    for result in losers:
        with pytest.raises(json.JSONDecodeError):
            json.loads(result.text)
    passes = run.stats.steps
    assert passes < sum(len(result.tokens) for result in results) / 2


def test_every_example_says_how_to_run_it_and_is_tested_here() -> None:
    source = Path(__file__).read_text()
    for name in NAMES:
        text = (EXAMPLES / f"{name}.py").read_text()
        assert f".venv/bin/python scripts/examples/{name}.py\n" in text
        assert f'example("{name}")' in source
        assert len(text.splitlines()) <= 90


def test_an_example_runs_as_a_program() -> None:
    path = EXAMPLES / "best_of_forks.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("common: ")


def test_what_repeats_itself_is_taken_back_and_shown(example: Example) -> None:
    text, deleted, usage = example("loops")["main"]()
    assert usage.loops + bool(usage.looped) == len(deleted)
    assert deleted, "the demo model repeats itself after this prompt"
    assert all(piece not in text for piece in deleted)


def test_lines_that_a_check_complains_about_are_shown_and_taken_back(example: Example) -> None:
    names = example("checked_lines")
    text, deleted, usage = names["main"]()
    assert deleted, "the first sentence is too long"
    sentences = text.split(".")[:-1]
    too_long = [sentence for sentence in sentences if len(sentence.split()) > names["MOST"]]
    assert bool(too_long) == bool(usage.violates)
