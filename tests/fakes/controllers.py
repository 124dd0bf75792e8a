"""Controllers that tests write down, and the log of what they were told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mlxgen import Branch, Control, Wait
from mlxgen.engine.branches import Path
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.tokens import Token

from .speaking import Speaker


class Call(NamedTuple):
    """What ``mid_process`` was given."""

    branch_idx: int
    last_backtrack: int
    last_append: list[Token]


Answer = list[Branch] | Wait


class Recited:
    """Answers one after the other, the last one for ever; ``calls`` is shared by its copies."""

    def __init__(self, *answers: Answer, calls: list[Call] | None = None) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = [] if calls is None else calls

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> Answer:
        self.calls.append(Call(branch_idx, last_backtrack, list(last_append)))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def fork(self) -> Recited:
        return Recited(*self.answers, calls=self.calls)


class Told:
    """Asks a function of the history, which it keeps from what it is told alone."""

    def __init__(
        self, prompt: Sequence[Token], decide: Callable[[int, list[Token]], Answer]
    ) -> None:
        self.history = list(prompt)
        self.decide = decide

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> Answer:
        del self.history[len(self.history) - last_backtrack :]
        self.history += last_append
        return self.decide(branch_idx, self.history)


def check_integrity(run: Control[Any]) -> None:
    """Look at the invariants of its scheduler, which is its own."""
    assert isinstance(run._scheduler, Scheduler)
    run._scheduler.check_integrity()


def finish(run: Control[Any]) -> dict[Path, str]:
    """Run to the end; the texts by branch, put together as a screen would show them."""
    screens: dict[Path, str] = {}
    for branch, chunk in run:
        if branch in screens:
            text = screens[branch]
            screens[branch] = text[: len(text) - chunk.retract] + chunk.text
        else:
            screens[branch] = run.text(branch)
        assert screens[branch] == run.text(branch)
    for branch, screen in screens.items():
        assert screen == run.results[branch].text
    return screens


def anything(speaker: Speaker, **more: Any) -> Branch:
    return Branch(sample_mask=range(speaker.lm.vocab_size), **more)


def alphabet(*, end_after: int | None = 12, **options: Any) -> Speaker:
    """Says the alphabet from where the text stands; ends after so many tokens, or never."""

    def say(self: Speaker, generated: list[Token]) -> list[Token]:
        if end_after is not None and len(generated) >= end_after:
            return [self.end]
        last = generated[-1] if generated and 97 <= generated[-1] <= 122 else 96
        return [97 + (last - 96 + i) % 26 for i in range(26)] + [*b'0123456789"{}:,. \n', self.end]

    return Speaker([], say, **options)
