"""A thinking budget: what follows when it is spent, whatever else a generation does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import OptionError, Regex
from mlxgen.engine.chunk import Chunk
from mlxgen.engine.request.ways import SENTENCE
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker

from ...effort import tries

START, MARK = "<think>", "</think>"
BEGUN = [*PROMPT, ord("\n")]
"""A prompt of two tokens, of which the last one is to be the mark."""
SMILE = "😀".encode()


def thinker(thoughts: Sequence[str | int] = "x", answer: Sequence[str] = "Yes") -> Speaker:
    """It thinks without an end, unless the mark is there, and then it answers."""
    texts = [piece for piece in (START, MARK, *thoughts, *answer) if isinstance(piece, str)]

    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        mark = speaker.token(MARK)
        if mark not in generated:
            thought = thoughts[len(generated) % len(thoughts)]
            return [speaker.token(thought), speaker.token("z")]
        said = len(generated) - generated.index(mark) - 1
        return [speaker.token(answer[said]) if said < len(answer) else speaker.end]

    return Speaker(texts, say, prompt_length=2)


def opened(speaker: Speaker) -> list[Token]:
    """A prompt that opens the thinking."""
    return [*PROMPT, speaker.token(START)]


def text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def run(speaker: Speaker, **options: Any) -> list[Chunk]:
    return list(speaker.lm.stream(opened(speaker), **options))


@pytest.mark.parametrize("budget", [1, 2, 7])
def test_when_the_budget_is_spent_the_answer_follows(budget: int) -> None:
    chunks = run(thinker(), thinking_budget=budget)
    assert text(chunks) == "x" * budget + SENTENCE + MARK + "Yes"
    assert [chunk.forced for chunk in chunks[: budget + 2]] == [False] * budget + [True] * 2
    assert chunks[-1].finish_reason == "stop"


def test_a_budget_of_zero_closes_the_thinking_at_once() -> None:
    assert text(run(thinker(), thinking_budget=0)) == f"\n{MARK}Yes"


def test_thoughts_within_the_budget_are_left_alone() -> None:
    speaker = thinker(["a", "b", MARK])
    chunks = run(speaker, thinking_budget=3)
    assert text(chunks) == f"ab{MARK}Yes" and not any(chunk.forced for chunk in chunks)
    assert text(run(speaker)) == f"ab{MARK}Yes"


def test_thinking_that_the_model_begins_itself_is_counted_from_its_mark() -> None:
    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        if not generated:
            return [speaker.token(START)]
        known = speaker.token(MARK) in generated
        return [speaker.end if known else speaker.token("x")]

    speaker = Speaker([START, MARK], say)
    assert text(list(speaker.lm.stream(PROMPT, thinking_budget=2))) == f"{START}xx{SENTENCE}{MARK}"


def test_a_text_that_begins_without_thinking_is_not_limited() -> None:
    speaker = thinker()
    chunks = speaker.lm.stream(BEGUN, thinking_budget=2, max_tokens=9)
    assert text(list(chunks)) == "x" * 9


def test_a_model_without_marks_is_not_affected() -> None:
    speaker = Speaker([], lambda speaker, generated: [speaker.token("x")])
    chunks = speaker.lm.stream(PROMPT, thinking_budget=0, max_tokens=5)
    assert text(list(chunks)) == "xxxxx"


def test_the_sentence_waits_for_the_end_of_a_character() -> None:
    assert text(run(thinker(list(SMILE)), thinking_budget=2)).startswith(f"😀{SENTENCE}{MARK}Yes")


def test_the_answer_counts_to_the_end_of_all_tokens() -> None:
    chunks = run(thinker(), thinking_budget=2, max_tokens=10)
    assert len(chunks) == 10 and chunks[-1].finish_reason == "length"
    assert text(chunks) == ("xx" + SENTENCE)[:10]


def seen(chunks: Sequence[Chunk]) -> list[Any]:
    return [(chunk.token, chunk.forced, chunk.finish_reason) for chunk in chunks]


@pytest.mark.parametrize(
    "options",
    [
        {"draft": "ngram"},
        {"top_logprobs": 1},
        {"hooks": [lambda draw: None]},
        {"banned": ["never"]},
        {"hold_tokens": 3},
        {"repetition_penalty": 1.01},
        {"temperature": 0.2, "seed": 3},
        {"filters": [mlxgen.After(MARK, Regex("Yes"), required=True)]},
    ],
    ids=lambda options: ", ".join(options),
)
def test_it_is_the_same_with_every_other_option(options: dict[str, Any]) -> None:
    plain = [chunk.token for chunk in run(thinker(), thinking_budget=5)]
    found = [chunk.token for chunk in run(thinker(), thinking_budget=5, **options)]
    assert found == plain[: len(found)] and len(found) >= len(plain) - 1


@pytest.mark.parametrize("banned", [SENTENCE[4:9], MARK], ids=["sentence", "mark"])
def test_what_is_banned_never_comes_not_even_here(banned: str) -> None:
    chunks = run(thinker(), thinking_budget=2, banned=[banned], max_tokens=100)
    assert banned not in text(chunks)


def test_a_ban_of_the_sentence_does_not_keep_the_mark_away() -> None:
    chunks = run(thinker(), thinking_budget=2, banned=[SENTENCE[4:9]])
    assert text(chunks).endswith(f"{MARK}Yes")


def test_filters_of_the_whole_text_come_first() -> None:
    chunks = run(thinker(), thinking_budget=2, filters=[Regex("x{6}")])
    assert text(chunks) == "xxxxxx"


def test_an_answer_in_a_form_may_be_closed_after_the_thinking() -> None:
    form = mlxgen.After(MARK, Regex("Yes|No"), required=True)
    chunks = run(thinker(), thinking_budget=2, filters=[form], close_json=True, max_tokens=200)
    assert text(chunks) == f"xx{SENTENCE}{MARK}Yes"
    chunks = run(thinker(), thinking_budget=50, filters=[form], close_json=True, max_tokens=20)
    assert text(chunks).endswith((f"{MARK}Yes", f"{MARK}No"))


def test_batches_give_what_each_gives_alone() -> None:
    speaker = thinker()
    budgets: list[Any] = [{"thinking_budget": n} for n in (0, 3, 5, 40)]
    alone = [seen(run(speaker, **each)) for each in budgets]
    found: list[list[Chunk]] = [[] for _ in budgets]
    for index, chunk in speaker.lm.batch([opened(speaker)] * 4, each=budgets):
        found[index].append(chunk)
    assert [seen(chunks) for chunks in found] == alone


def test_a_session_gives_the_same() -> None:
    speaker = thinker()
    expected = [chunk.token for chunk in run(speaker, thinking_budget=3)]
    session = mlxgen.Session(speaker.tokenizer, prompt=opened(speaker), thinking_budget=3)
    while session.finish_reason is None:
        forced = session.forced()
        if forced:
            session.push_token(forced[0])
            continue
        logits = np.full(speaker.vocabulary.size, -9.0, np.float32)
        logits[int(next(iter(speaker.model.script(tuple(session.history)))))] = 0
        session.push_logits(logits)
    assert session.tokens == expected


@settings(max_examples=tries(40), deadline=None)
@given(st.integers(0, 6), st.lists(st.tuples(st.integers(1, 90), st.integers(0, 90)), max_size=3))
def test_back_and_on_again_gives_the_same(budget: int, moves: list[tuple[int, int]]) -> None:
    speaker = thinker()
    whole = [chunk.token for chunk in run(speaker, thinking_budget=budget)]
    with speaker.lm.stream(opened(speaker), thinking_budget=budget) as stream:
        for on, back in moves:
            for _, chunk in zip(range(on), stream, strict=False):
                if chunk.finish_reason is not None:
                    break
            stream.rewind(min(back, len(stream.tokens)))
        (twin,) = stream.fork()
        list(stream), list(twin)
        assert stream.tokens == twin.tokens == whole


def test_a_controller_is_told_that_it_cannot_be_combined() -> None:
    controller: Any = None
    with pytest.raises(OptionError, match="thinking_budget"):
        thinker().lm.control(PROMPT, controller, thinking_budget=3)


@pytest.mark.parametrize("value", [-1, 1.5, True, "9"])
def test_a_budget_is_a_number_of_tokens(value: Any) -> None:
    with pytest.raises(OptionError, match="thinking_budget"):
        thinker().lm.stream(PROMPT, thinking_budget=value)
