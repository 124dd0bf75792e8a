"""Streams that go on under other options."""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen
from mlxgen import OptionError, Regex
from tests.fakes.speaking import PROMPT, Speaker, endless
from tests.fakes.speaking import letters as alphabet


def rest(stream: mlxgen.Stream) -> str:
    return "".join(chunk.text for chunk in stream)


def babbler(**options: Any) -> Speaker:
    def say(self: Speaker, generated: list[int]) -> dict[int, float]:
        return {97 + (len(generated) + i) % 26: -0.1 * i for i in range(5)} | {48: -9.0, 49: -9.1}

    return Speaker([], say, **options)


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_filters_hold_from_there_on(draft: str) -> None:
    with babbler().lm.stream(PROMPT, max_tokens=20, draft=draft) as stream:
        for _ in range(4):
            next(stream)
        stream.rewind(1, filters=Regex("[01]{3}"))
        assert stream.text == "abc"
        assert rest(stream) == "000"
        assert stream.finish_reason == "filter"
        stream.rewind(to=2, filters=())
        assert rest(stream) == alphabet(18, 2)


def test_sampling_and_stops_hold_from_there_on() -> None:
    with babbler().lm.stream(PROMPT, max_tokens=20, seed=1) as stream:
        for _ in range(4):
            next(stream)
        stream.rewind(0, logit_bias={ord("0"): 50.0}, stop="bcd", repetition_penalty=1.0)
        assert next(stream).text == "0"
        stream.rewind(0, logit_bias={}, stop="ghi", dry_multiplier=0.0)
        assert rest(stream) == "f"
        assert (stream.text, stream.finish_reason) == ("abcd0f", "stop")


def test_a_penalty_that_comes_later_knows_what_was_written_before() -> None:
    lm = mlxgen.load()
    with lm.stream("Once upon a time", max_tokens=24) as stream:
        for _ in range(8):
            next(stream)
        stream.rewind(0, repetition_penalty=1.5, dry_multiplier=1.0)
        kept = stream.tokens
        changed = [*kept, *(chunk.token for chunk in stream)]
    options: dict[str, Any] = {"repetition_penalty": 1.5, "dry_multiplier": 1.0}
    whole = lm.generate("Once upon a time", max_tokens=24, prefix=kept, **options)
    assert changed == list(whole.tokens)


def test_a_fork_may_have_options_of_its_own() -> None:
    stream = babbler().lm.stream(PROMPT, max_tokens=8)
    for _ in range(4):
        next(stream)
    one, two = stream.fork(2, filters=Regex("[01]{3}"), top_k=1)
    assert rest(one) == rest(two) == "000"
    assert rest(stream) == "efgh"


def test_what_cannot_change_is_refused_and_nothing_has_changed() -> None:
    with endless().lm.stream(PROMPT, max_tokens=8) as stream:
        for _ in range(4):
            next(stream)
        for wrong, message in (
            ({"max_tokens": 3}, "max_tokens: cannot change within a text"),
            ({"temperature": -1}, "temperature: expected a number"),
            ({"filters": Regex("(")}, "regex|Regex|pattern|parenthesis"),
            ({"stop_tokens": [10**6]}, "stop_tokens: expected token ids from 0"),
        ):
            with pytest.raises(mlxgen.MlxgenError, match=message):
                stream.rewind(2, **wrong)
            with pytest.raises(mlxgen.MlxgenError, match=message):
                stream.fork(1, **wrong)
        with pytest.raises(OptionError, match="there is no such option"):
            stream.rewind(2, heat=1)  # type: ignore[call-arg]
        assert rest(stream) == "efgh"
