"""Hooks that end a text or put something into it, and the probabilities that chunks report."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import HookError, PostSamplingResult, Regex
from mlxgen.engine.chunk import Chunk
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter


def test_a_hook_can_end_the_text() -> None:
    def enough(result: PostSamplingResult) -> None:
        result.end = result.text_after.endswith("d")

    speaker = reciter(list("abcdefgh"))
    each: list[dict[str, Any]] = [{}, {"hold_tokens": 2}, {"allow_retract": True}]
    for options in each:
        result = speaker.lm.generate(PROMPT, hooks=enough, **options)
        assert (result.text, result.finish_reason) == ("abcd", "stop")
    held = speaker.lm.generate(PROMPT, hooks=enough, filters=[Regex("[a-z]{8}")])
    assert (held.text, held.finish_reason) == ("abcd", "length")


def test_a_hook_can_put_a_run_after_a_token() -> None:
    def aside(result: PostSamplingResult) -> None:
        if result.sampled_token == ord("c") and not result.is_forced:
            result.put = [ord("("), ord("!"), ord(")")]

    chunks = list(endless().lm.stream(PROMPT, hooks=aside, max_tokens=10))
    assert "".join(chunk.text for chunk in chunks) == "abc(!)ghij"
    assert [chunk.forced for chunk in chunks] == [False] * 3 + [True] * 3 + [False] * 4
    several = endless().lm.batch([PROMPT] * 2, hooks=aside, max_tokens=10).run()
    assert [each.text for each in several] == ["abc(!)ghij"] * 2


def test_what_a_hook_puts_has_to_be_allowed() -> None:
    def put(result: PostSamplingResult) -> None:
        result.put = [ord("1")]

    with pytest.raises(HookError, match=r"a hook put \[49\] after position 0, which the filters"):
        endless().lm.generate(PROMPT, hooks=put, filters=[Regex("[a-z]+")])

    def nonsense(result: PostSamplingResult) -> None:
        result.put = [10**6]

    with pytest.raises(HookError, match=r"put=\[1000000\] at position 0; expected token ids from"):
        endless().lm.generate(PROMPT, hooks=nonsense)


def test_a_run_that_a_hook_puts_ends_with_the_budget() -> None:
    def more(result: PostSamplingResult) -> None:
        result.put = [ord("x")] if not result.is_forced else []

    result = endless().lm.generate(PROMPT, hooks=more, max_tokens=5)
    assert (result.text, result.finish_reason) == ("axcxe", "length")


def mixed() -> Speaker:
    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        return {ord("a"): 0.0, ord("b"): 0.0, ord("c"): -100.0}

    return Speaker([], say)


def probs(chunks: list[Chunk]) -> list[float | None]:
    return [None if chunk.prob is None else round(chunk.prob, 3) for chunk in chunks]


def test_chunks_tell_how_likely_a_token_was_after_everything() -> None:
    lm = mixed().lm
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 1.0, "seed": 1}
    assert probs(list(lm.stream(PROMPT, **options))) == [None] * 3
    wanted: list[dict[str, Any]] = [{"top_logprobs": 0}, {"top_candidates": 1}]
    for asked in wanted:
        given = {**options, **asked}
        assert probs(list(lm.stream(PROMPT, **given))) == [0.5] * 3
        held = {**given, "filters": [Regex("a{3}|a{2}b")]}
        assert probs(list(lm.stream(PROMPT, **held))) == [1, 1, 0.5]
        several = lm.batch([PROMPT] * 2, **given).run()
        assert [probs(list(each.chunks)) for each in several] == [[0.5] * 3] * 2
