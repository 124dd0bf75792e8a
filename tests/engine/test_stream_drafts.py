"""What a consumer of a stream and its hooks can tell is the same with drafts and without."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Chunk, LanguageModel, MlxgenError, PostSamplingResult, Stream

from ..effort import tries

PROMPTS = ("Once upon a time", "one two three one two three one two", "What is 2 + 3? 5")
DRAFTS = ("auto", "ngram")


@cache
def demo() -> LanguageModel:
    return mlxgen.load()


def goes_back(result: PostSamplingResult) -> None:
    """A hook whose decisions depend on how far back it may go."""
    can = result.can_rewind
    if not result.attempt and (result.position * 7 + can) % 5 == 0:
        result.rewind = min(2, can)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(1, 7)),
        st.tuples(st.just("rewind"), st.integers(1, 5)),
        st.tuples(st.just("again"), st.integers(1, 5)),  # put what was there before, or stays there
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("fork"), st.integers(0, 1)),
    ),
    min_size=1,
    max_size=7,
)
OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1.0]),
        "seed": st.integers(0, 3),
        "max_tokens": st.integers(8, 40),
    },
    optional={
        "hooks": st.just([goes_back]),
        "hold_tokens": st.integers(0, 4),
        "allow_retract": st.just(True),
        "banned": st.sampled_from([["the"], [" a "], ["e", "!"]]),
        "stop": st.sampled_from([["."], [" and", "so"]]),
        "repetition_penalty": st.just(1.1),
        "close_json": st.just(True),
        "loops": st.just("take back"),
        "filters": st.just([mlxgen.Regex(r"[a-zA-Z ,.!?\n0-9\[\]{}\"]*")]),
    },
)


def played(
    draft: str, prompt: str, actions: list[tuple[str, int]], options: dict[str, Any]
) -> list[Any]:
    told: list[Any] = []
    streams: list[Stream] = [demo().stream(prompt, draft=draft, **options)]
    last: list[int] = []

    def take(stream: Stream, count: int) -> None:
        for _ in range(count):
            chunk = next(stream, None)
            if chunk is None:
                return
            told.append(seen(chunk))

    for action, count in [*actions, ("next", 99)]:
        stream = streams[-1]
        try:
            if action == "next":
                take(stream, count)
            elif action == "rewind":
                last = stream.tokens[-count:]
                stream.rewind(tokens=len(last))
            elif action == "again":
                stream.append(last[:count])
            elif action == "append":
                stream.append(demo().vocabulary.encode(" so big a", special=False)[:count])
            else:
                (twin,) = stream.fork()
                streams.append(twin) if count else take(twin, 5)
        except MlxgenError as error:
            told.append((action, type(error).__name__))
        told.append((action, stream.tokens, stream.text, stream.finish_reason))
    told.append(stream.usage.completion_tokens)
    for stream in streams:
        stream.close()
    return told


def seen(chunk: Chunk) -> tuple[Any, ...]:
    return chunk.token, chunk.text, chunk.retract, chunk.index, chunk.attempts, chunk.finish_reason


@pytest.mark.parametrize("draft", DRAFTS)
@settings(max_examples=tries(100), deadline=None)
@given(st.sampled_from(PROMPTS), ACTIONS, OPTIONS)
def test_nobody_can_tell_whether_tokens_were_drafted(
    draft: str, prompt: str, actions: list[tuple[str, int]], options: dict[str, Any]
) -> None:
    if "close_json" in options and "filters" not in options:
        del options["close_json"]
    if "allow_retract" in options:  # a retraction that is under way is known earlier with drafts
        actions = [each for each in actions if each[0] == "next"]
    plain = played("off", prompt, actions, options)
    assert played(draft, prompt, actions, options) == plain


@pytest.mark.parametrize("draft", ["off", *DRAFTS])
def test_what_was_put_stays_in_a_fork_and_before_more_that_is_put(draft: str) -> None:
    run = demo().vocabulary.encode(" so big and", special=False)
    with demo().stream(PROMPTS[0], draft=draft, temperature=0, max_tokens=30) as stream:
        for _ in range(3):
            next(stream)
        known = stream.tokens
        stream.append(run)
        (twin,) = stream.fork()
        stream.append(run[:2])
        assert [next(twin).token for _ in run] == run
        assert [next(stream).token for _ in range(len(run) + 2)] == [*run, *run[:2]]
        assert twin.tokens == [*known, *run]
        assert twin.text + run_text(run[:2]) == stream.text


def run_text(run: list[int]) -> str:
    return b"".join(map(demo().vocabulary.piece, run)).decode()


def test_a_fork_before_the_first_token_keeps_what_closes_its_json() -> None:
    schema = mlxgen.JsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 2})
    options: dict[str, Any] = {"filters": [schema], "close_json": True, "max_tokens": 12, "seed": 3}
    stream = demo().stream("A list of long stories: ", temperature=1.5, **options)
    for twin in [*stream.fork(2), stream]:
        chunks = list(twin)
        assert chunks[-1].finish_reason == "filter" and twin.text.endswith("]")
