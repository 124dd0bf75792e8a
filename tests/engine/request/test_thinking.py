"""A thinking budget: what follows when it is spent, whatever else a generation does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Regex
from mlxgen.engine.chunk import Chunk
from mlxgen.engine.request.parts import SENTENCE
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker

from ...effort import tries
from .kit import in_every_way, in_session

START, MARK = "<think>", "</think>"
FORM = mlxgen.After(MARK, Regex("Yes|No"), required=True)
SMILE = "😀".encode()


def thinker(thoughts: Sequence[str | int] = "x") -> Speaker:
    """It thinks without an end, unless the mark is there, and then it answers."""
    texts, answer = [piece for piece in (START, MARK, *thoughts) if isinstance(piece, str)], "Yes"

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


OTHERS: list[dict[str, Any]] = [
    *({"top_logprobs": 1}, {"hooks": [lambda draw: None]}, {"banned": ["never"]}),
    *({"hold_tokens": 3}, {"repetition_penalty": 1.01}, {"temperature": 0.2, "seed": 3}),
]
SPENT: list[tuple[Sequence[str | int], int | None, dict[str, Any], str]] = [
    ("x", 0, {}, f"\n{MARK}Yes"),
    ("x", 1, {}, f"x{SENTENCE}{MARK}Yes"),
    ("x", 7, {}, f"xxxxxxx{SENTENCE}{MARK}Yes"),
    (["a", "b", MARK], 3, {}, f"ab{MARK}Yes"),  # thoughts within the budget are left alone
    (["a", "b", MARK], None, {}, f"ab{MARK}Yes"),
    (list(SMILE), 2, {}, f"😀{SENTENCE}{MARK}Yes"),  # not inside a character
    ("x", 2, {"max_tokens": 10}, f"xx{SENTENCE}"[:10]),  # the answer counts to all tokens
    ("x", 2, {"filters": [Regex("x{6}")]}, "xxxxxx"),  # filters of the whole text come first
    ("x", 2, {"filters": [FORM], "close_json": True, "max_tokens": 200}, f"xx{SENTENCE}{MARK}Yes"),
    *[("x", 1, options, f"x{SENTENCE}{MARK}Yes") for options in OTHERS],
]


def test_when_the_budget_is_spent_the_answer_follows() -> None:
    for thoughts, budget, options, expected in SPENT:
        speaker, options = thinker(thoughts), {"thinking_budget": budget, **options}
        said = in_every_way(speaker, opened(speaker), **options)
        assert said[0] == expected
        assert in_session(speaker, opened(speaker), **options) == said
    forced = [chunk.forced for chunk in run(thinker(), thinking_budget=7)]
    assert forced[:9] == [False] * 7 + [True] * 2


def test_an_answer_in_a_form_is_closed_after_the_thinking() -> None:
    options: dict[str, Any] = {"filters": [FORM], "close_json": True, "max_tokens": 20}
    chunks = run(thinker(), thinking_budget=50, **options)
    assert text(chunks).endswith((f"{MARK}Yes", f"{MARK}No"))


def test_thinking_that_the_model_begins_itself_is_counted_from_its_mark() -> None:
    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        if not generated:
            return [speaker.token(START)]
        known = speaker.token(MARK) in generated
        return [speaker.end if known else speaker.token("x")]

    speaker = Speaker([START, MARK], say)
    assert text(list(speaker.lm.stream(PROMPT, thinking_budget=2))) == f"{START}xx{SENTENCE}{MARK}"


def test_a_text_without_thinking_is_not_limited() -> None:
    for speaker, prompt in (
        (thinker(), [*PROMPT, ord("\n")]),
        (Speaker([], lambda speaker, generated: [ord("x")]), PROMPT),  # which has no marks
    ):
        chunks = speaker.lm.stream(prompt, thinking_budget=2, max_tokens=9)
        assert text(list(chunks)) == "x" * 9


@pytest.mark.parametrize("banned", [SENTENCE[4:9], MARK], ids=["sentence", "mark"])
def test_what_is_banned_never_comes_not_even_here(banned: str) -> None:
    said = text(run(thinker(), thinking_budget=2, banned=[banned], max_tokens=100))
    assert banned not in said
    assert banned == MARK or said.endswith(f"{MARK}Yes")


@settings(max_examples=tries(64), deadline=None)
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
