"""Random controllers against a plain interpreter.

``Reference`` is the protocol of controllers over plain token lists, as slowly and plainly as can
be: what a controller's answers mean where nothing is cached, batched or delivered. ``Wild`` is a
controller that asks for anything, by numbers that it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Branch, Splice
from mlxgen.engine.branches import Path
from mlxgen.engine.control import Control
from mlxgen.tokens import Token
from tests.fakes.controllers import check_integrity, finish
from tests.fakes.speaking import Speaker

from ..effort import tries

Rank = Callable[[Sequence[Token]], list[Token]]


class Outcome(NamedTuple):
    """What one branch came to."""

    prompt: tuple[Token, ...]
    tokens: tuple[Token, ...]
    reason: str


class State(NamedTuple):
    """The history and the prompt's length, what to report, and why it ended."""

    history: list[Token]
    base: int
    back: int
    appended: list[Token]
    reason: str | None


@dataclass
class Wild:
    """Makes its answers of ``numbers``; everything that it knows it was told."""

    numbers: tuple[int, ...]
    alphabet: tuple[Token, ...]
    size: int
    history: list[Token]
    at: int = 0
    forks: int = 2
    calls: list[tuple[int, int, tuple[Token, ...]]] = field(default_factory=list)

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> list[Branch]:
        self.calls.append((branch_idx, last_backtrack, tuple(last_append)))
        assert last_backtrack <= len(self.history)
        del self.history[len(self.history) - last_backtrack :]
        self.history += last_append
        self.at += branch_idx
        if self.at >= len(self.numbers):
            return []
        kind = self.take(10)
        if kind == 0:
            return []
        if kind <= 2 and self.forks:
            self.forks -= 1
            return [self.branch() for _ in range(2 + self.take(2))]
        return [self.branch()]

    def take(self, most: int) -> int:
        number = self.numbers[self.at % len(self.numbers)]
        self.at += 1
        return number % most

    def branch(self) -> Branch:
        kind = self.take(6)
        back = self.take(4) if self.take(3) == 0 else 0
        back = min(back, len(self.history) - 1)
        if kind == 0:
            return Branch(back, None, [self.tokens(self.take(4))])
        mask = range(self.size) if kind < 3 else sorted({*self.tokens(3), self.alphabet[0]})
        runs = [[t, *self.tokens(2)] for t in self.alphabet[:2]] if kind == 4 else []
        splices = []
        if kind >= 4:
            left = len(self.history) - back
            for _ in range(1 + self.take(2)):
                when = self.tokens(self.take(3))
                more = self.tokens(self.take(3))
                splices.append(Splice(when, min(self.take(4), left + bool(more)), more))
        return Branch(back, mask, runs, splices)

    def tokens(self, count: int) -> list[Token]:
        return [self.alphabet[self.take(len(self.alphabet))] for _ in range(count)]


class Reference:
    """Runs a controller on ``rank``, the tokens from the likeliest on, after a history."""

    def __init__(self, rank: Rank, ends: set[Token], budget: int) -> None:
        self.rank = rank
        self.ends = ends
        self.budget = budget
        self.outcomes: dict[Path, Outcome] = {}
        self.calls: dict[Path, list[tuple[int, int, tuple[Token, ...]]]] = {}

    def run(self, prompt: Sequence[Token], controller: Wild) -> None:
        ready: list[tuple[Path, int, Wild, State]] = []
        ready.append(((), 0, controller, State(list(prompt), len(prompt), 0, [], None)))
        while ready:
            path, index, own, (history, base, back, appended, reason) = ready.pop()
            answer = [] if reason else own.mid_process(index, back, appended)
            if not answer:
                while path and path[-1] == 0:
                    path = path[:-1]
                whole = tuple(history)
                self.outcomes[path] = Outcome(whole[:base], whole[base:], reason or "stop")
                self.calls[path] = own.calls
            for i, branch in enumerate(answer):
                where, place = ((*path, i), i) if len(answer) > 1 else (path, index)
                twin = copy.deepcopy(own) if i else own
                ready.append((where, place, twin, self._apply(list(history), base, branch)))

    def _apply(self, history: list[Token], base: int, branch: Branch) -> State:
        before = len(history)
        lowest = before - branch.backtrack
        del history[lowest:]
        run = (
            list(branch.ff_tokens[0])
            if branch.sample_mask is None
            else self._sampled(history, branch)
        )
        if branch.sample_mask is not None:
            token = run[0]
            for splice in branch.splices:
                if not splice.when_sampled or token in splice.when_sampled:
                    history += run
                    del history[len(history) - splice.backtrack :]
                    kept = history[lowest:]
                    lowest = min(lowest, len(history))
                    del history[lowest:]
                    run = [*kept, *splice.ff_tokens]
                    break
        base = min(base, lowest)
        reason = None
        for token in run:
            history.append(token)
            if token in self.ends:
                reason = "stop"
            elif len(history) - base >= self.budget:
                reason = "length"
            if reason:
                break
        return State(history, base, before - lowest, history[lowest:], reason)

    def _sampled(self, history: list[Token], branch: Branch) -> list[Token]:
        assert branch.sample_mask is not None
        allowed = set(branch.sample_mask)
        token = next((t for t in self.rank(history) if t in allowed), min(allowed))
        runs = [list(run) for run in branch.ff_tokens if run[0] == token]
        return runs[0] if runs else [token]


# ---- the laws -----------------------------------------------------------------------------------


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
