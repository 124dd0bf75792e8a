"""What one step does: who runs before the draw, who is drawn, and who runs after it.

Decided from a few facts about each request. Everything here is a value, and rows are named by
their places in the list that was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

FEW = 4  # rows up to which several tokens of each take hardly longer in one pass than in two


class Standing(NamedTuple):
    """What a plan has to know of a request.

    ``is_ready``: the logits for its next position are at hand. ``is_behind``: it has more to run
    than goes between two steps of the others. ``is_first``: it has no token yet. ``is_last``: its
    budget ends with the next token.
    ``drafts``: tokens are about to be drafted after that. ``expects_forced``: its filters are
    likely to force a run after it.
    """

    is_ready: bool
    is_behind: bool = False
    is_first: bool = False
    is_last: bool = False
    drafts: bool = False
    expects_forced: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """``first`` run what they have pending, then all ``drawn`` are drawn; if ``looks`` is true,
    the pass after their tokens is submitted before these are known. What those ``beside`` have
    pending goes through with the pass after the draw in any case. If ``opens`` is true, they are
    first tokens, and out before anything else is submitted: MLX lets few tasks wait, so a pass is
    submitted only when most of it has been run."""

    first: tuple[int, ...]
    drawn: tuple[int, ...]
    looks: bool
    beside: tuple[int, ...]
    opens: bool = False

    @classmethod
    def of(cls, rows: Sequence[Standing]) -> StepPlan:
        """The plan for these rows."""
        return _planned(tuple(rows))

    @classmethod
    def _made(cls, rows: Sequence[Standing]) -> StepPlan:
        ready = tuple([i for i, row in enumerate(rows) if row.is_ready])
        idle = tuple([i for i, row in enumerate(rows) if not (row.is_ready or row.is_behind)])
        everybody = tuple(sorted(ready + idle))
        if everybody and all(rows[i].is_first for i in everybody):
            return cls(idle, everybody, looks=False, beside=(), opens=True)
        first, drawn = ((), ready) if ready else (idle, idle)
        looks = _looks_ahead([rows[i] for i in drawn])
        return cls(first, drawn, looks, idle if ready else ())


@lru_cache(256)  # nearly every step has the plan of the one before it
def _planned(rows: tuple[Standing, ...]) -> StepPlan:
    return StepPlan._made(rows)


def _looks_ahead(drawn: Sequence[Standing]) -> bool:
    """Whether to submit the next pass before the tokens are known.

    Drafts are made from tokens that are known. If most rows are about to be fast-forwarded,
    token and forced run rather go through in one pass after the draw, unless there are more than a
    ``FEW`` rows.
    """
    forced, last = 0, True
    for row in drawn:
        if row.drafts:
            return False
        forced += row.expects_forced
        last = last and row.is_last
    return not last and (len(drawn) > FEW or 2 * forced <= len(drawn) - len(drawn) % 2)
