"""What stays the same from draw to draw while a batch keeps its rows.

A plan groups rows by the work that they need, with their settings as arrays. It knows no
logits, seeds or masks. Invariant: how a row is drawn follows from its own settings; other
rows only decide which groups there are, and how many rows each has.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import mlx.core as mx

from .candidates import CANDIDATES
from .rows import DrawRow
from .settings import SamplingSettings
from .stack import stack_biases, stack_limits, stack_penalties

# A batch of one group and no more rows than this is drawn as it is: no logits are copied.
SMALL_BATCH = 32
_EXACT = 8  # rows; from here on, sizes have three significant bits


class Kind(enum.IntEnum):
    """The work that a row needs."""

    GREEDY = 0  # the most likely token
    PLAIN = 1  # any token, by its weight; min-p and XTC need no order
    RANKED = 2  # candidates, kept by comparing logits alone
    NUCLEUS = 3  # candidates, kept by their share of the probability
    WIDE = 4  # candidates, possibly more than a draw usually looks at

    @property
    def truncates(self) -> bool:
        """Whether rows are drawn from candidates only."""
        return self >= Kind.RANKED


class Method(NamedTuple):
    """How a row is drawn, apart from numbers: its kind, and whether XTC applies."""

    kind: Kind
    excludes: bool

    @classmethod
    def of(cls, settings: SamplingSettings, vocab_size: int) -> Method:
        top_k = settings.top_k if settings.top_k < vocab_size else 0
        excludes = settings.xtc_probability > 0
        if settings.temperature == 0:
            return cls(Kind.GREEDY, False)
        if settings.top_p == 1 and top_k == 0:
            return cls(Kind.PLAIN, excludes)
        if settings.top_p == 1 and settings.min_p == 0 and top_k >= CANDIDATES:
            return cls(Kind.WIDE, excludes)
        return cls(Kind.NUCLEUS if settings.top_p < 1 or excludes else Kind.RANKED, excludes)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that are drawn in the same way.

    ``places`` are their indexes in the batch. Unless the group is the whole of a small batch,
    the last one is repeated up to one of a few sizes, because each size needs a program of its
    own. ``at`` is the same as an array, or ``None`` if that is the batch as it is. ``settings``,
    ``limits`` (the arrays of ``Truncation``; empty for greedy rows), ``biases`` and ``penalties``
    (from ``stack``) are those of these places. ``avoids_repetitions``: one of them may have
    ``DrawRow.repeating``.
    """

    method: Method
    places: tuple[int, ...]
    at: mx.array | None
    settings: tuple[SamplingSettings, ...]
    limits: tuple[mx.array, ...]
    biases: tuple[mx.array, ...]
    penalties: tuple[mx.array, ...]
    avoids_repetitions: bool


@dataclass(frozen=True, slots=True, eq=False)
class DrawPlan:
    """Groups and arrays for rows with certain settings, in a certain order.

    ``order`` [batch] finds the rows in the concatenated results of the groups; ``None`` if
    these are the batch as it is. ``given`` are the settings as they came: a plan keeps them
    alive, and so their ids.
    """

    given: tuple[SamplingSettings, ...]
    groups: tuple[Group, ...]
    order: mx.array | None


def make_plan(rows: Sequence[DrawRow], vocab_size: int) -> DrawPlan:
    """Groups ``rows`` and stacks their settings."""
    settings = tuple(effective(row) for row in rows)
    places: dict[Method, list[int]] = {}
    for place, each in enumerate(settings):
        places.setdefault(Method.of(each, vocab_size), []).append(place)
    groups, order, start = [], [0] * len(rows), 0
    for method in sorted(places):
        group = _group(method, places[method], settings, vocab_size)
        for index, place in enumerate(places[method], start):
            order[place] = index
        start += len(group.places)
        groups.append(group)
    return DrawPlan(
        given=tuple(row.settings for row in rows),
        groups=tuple(groups),
        order=mx.array(order) if len(groups) > 1 or start > len(rows) else None,
    )


def effective(row: DrawRow) -> SamplingSettings:
    """A row's settings, with the temperature for this draw if it has one."""
    if row.temperature is None:
        return row.settings
    return replace(row.settings, temperature=row.temperature)


def size_for(rows: int) -> int:
    """The number of rows, at least ``rows``, that a batch is padded to.

    1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 and so on: few sizes, with at most a quarter more
    rows.
    """
    if rows <= _EXACT:
        return rows
    step = 1 << ((rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def _group(
    method: Method, places: list[int], settings: Sequence[SamplingSettings], vocab_size: int
) -> Group:
    if not len(places) == len(settings) <= SMALL_BATCH:
        places = [*places, *places[-1:] * (size_for(len(places)) - len(places))]
    chosen = tuple(settings[place] for place in places)
    return Group(
        method=method,
        places=tuple(places),
        at=None if len(places) == len(settings) == len(set(places)) else mx.array(places),
        settings=chosen,
        limits=() if method.kind == Kind.GREEDY else stack_limits(chosen, vocab_size),
        biases=stack_biases(chosen),
        penalties=stack_penalties(chosen),
        avoids_repetitions=any(each.avoids_repetitions for each in chosen),
    )
