"""Random controllers against a plain interpreter, and on every kind of cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.control import Control
from mlxgen.tokens import Token
from tests.engine.control_reference import Reference, Wild
from tests.fakes.controllers import check_integrity, finish
from tests.fakes.speaking import Speaker

from ..effort import tries

LETTERS = tuple(b"abcdef")
WIDE = ("é", "😀", "ab")  # of which some have tokens, and the others several bytes


def ranked(history: Sequence[Token], end: Token) -> list[Token]:
    """Some order of the letters, by the whole history; now and then the end comes first."""
    state = 7
    for token in history:
        state = (state * 31 + token) % 1009
    letters = sorted(LETTERS, key=lambda t: (t * state) % 13)
    return [end, *letters] if state % 11 == 0 else [*letters, end]


def finish_looking(run: Control[Any]) -> None:
    """Run to the end, looking at every invariant on the way."""
    step = run._scheduler.step

    def looking() -> Any:
        events = step()
        check_integrity(run)
        return events

    run._scheduler.step = looking  # type: ignore[method-assign]
    finish(run)
    for result in run.results.values():
        indexes = [chunk.index for chunk in result.chunks if chunk.token is not None]
        assert indexes == list(range(len(result.tokens)))


@settings(max_examples=tries(240))
@given(
    numbers=st.lists(st.integers(0, 719), min_size=1, max_size=40),
    prompt=st.lists(st.sampled_from(LETTERS), min_size=1, max_size=6),
    budget=st.integers(1, 12),
)
def test_a_random_controller_does_what_the_plain_interpreter_says(
    numbers: list[int], prompt: list[Token], budget: int
) -> None:
    speaker = Speaker([], lambda self, history: ranked(history, self.end), prompt_length=0)
    size = speaker.lm.vocab_size

    def wild() -> Wild:
        return Wild(tuple(numbers), (*LETTERS, speaker.end), size, list(prompt))

    reference = Reference(lambda history: ranked(history, speaker.end), {speaker.end}, budget)
    reference.run(prompt, wild())
    run = speaker.lm.control(prompt, wild(), max_tokens=budget)
    finish_looking(run)
    found = {b: (r.tokens, r.finish_reason) for b, r in run.results.items()}
    assert found == {b: (o.tokens, o.reason) for b, o in reference.outcomes.items()}
    calls: dict[Any, Any] = {b: run.controller_of(b).calls for b in found}  # type: ignore[attr-defined]
    assert calls == reference.calls
    assert all(r.text == speaker.vocabulary.decode(r.tokens) for r in run.results.values())
    prompts = {b: r.usage.prompt_tokens for b, r in run.results.items()}
    assert prompts == {b: len(o.prompt) for b, o in reference.outcomes.items()}
    assert run.stats.running == run.stats.queued == run.stats.kv_bytes == 0


@settings(max_examples=tries(60))
@given(
    numbers=st.lists(st.integers(0, 719), min_size=1, max_size=30),
    stop=st.sampled_from(["ab", "bca", "😀", "éé", "d"]),
    hold=st.integers(0, 3),
)
def test_text_with_split_characters_and_stops_is_exact_under_backtracks(
    numbers: list[int], stop: str, hold: int
) -> None:
    speaker = Speaker(WIDE, lambda self, history: ranked(history, self.end), prompt_length=0)
    alphabet = (*"😀".encode(), *"é".encode(), *b"abcd", speaker.token("ab"))
    wild = Wild(tuple(numbers), alphabet, speaker.lm.vocab_size, list(b"a"))
    run = speaker.lm.control(list(b"a"), wild, max_tokens=16, stop=stop, hold_tokens=hold)
    finish_looking(run)
    for result in run.results.values():
        whole = speaker.vocabulary.decode(result.tokens)
        assert result.text == (whole.partition(stop)[0] if result.stop else whole)
        assert (stop in whole) == (result.stop is not None)


# ---- real caches
