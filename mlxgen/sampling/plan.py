"""What stays the same from draw to draw while a batch keeps its rows.

Owns the grouping of rows by the work that they need, with their settings as arrays. Must
never know logits, seeds or masks. Invariant: how a row is drawn follows from its own
settings; other rows only decide which groups there are.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .candidates import CANDIDATES
from .rows import DrawRow
from .settings import SamplingSettings
from .stack import stack_biases, stack_limits, stack_penalties


class Kind(enum.IntEnum):
    """The work that a row needs."""

    GREEDY = 0  # the likeliest token
    PLAIN = 1  # any token, by its weight; min-p needs no order
    TOPLESS = 2  # the same after XTC, which needs none either
    RANKED = 3  # candidates, kept by comparing logits alone
    NUCLEUS = 4  # candidates, kept by their share of the probability
    WIDE = 5  # candidates, of which there may be more than are usually looked at

    @classmethod
    def of(cls, settings: SamplingSettings, vocab_size: int) -> Kind:
        top_k = settings.top_k if settings.top_k < vocab_size else 0
        if settings.temperature == 0:
            return cls.GREEDY
        if settings.top_p == 1 and top_k == 0:
            return cls.TOPLESS if settings.xtc_probability > 0 else cls.PLAIN
        if settings.top_p == 1 and settings.min_p == 0 and top_k >= CANDIDATES:
            return cls.WIDE
        if settings.top_p < 1 or settings.xtc_probability > 0:
            return cls.NUCLEUS
        return cls.RANKED

    @property
    def truncates(self) -> bool:
        """Whether rows are drawn from candidates only."""
        return self >= Kind.RANKED


class Part(NamedTuple):
    """The static facts of a group of rows: whether top-k and XTC may apply to any."""

    kind: Kind
    ranked: bool
    excludes: bool


class Form(NamedTuple):
    """The static facts of a plan: its groups, and what happens to logits before a draw."""

    parts: tuple[Part, ...]
    biased: bool
    penalised: bool


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that are drawn in the same way.

    ``places`` are their indexes in the batch, ``at`` the same as an array, ``None`` if
    the group is the whole batch. ``limits`` are the arrays of ``Limits``, none for
    greedy rows.
    """

    part: Part
    places: tuple[int, ...]
    at: mx.array | None
    settings: tuple[SamplingSettings, ...]
    limits: tuple[mx.array, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Groups and arrays for rows with certain settings, in a certain order.

    ``settings`` are the rows' own, a temperature for one draw included; ``order`` [batch]
    undoes the grouping, where there is more than one group; ``biases`` and ``penalties``
    are what ``stack`` makes of them. ``form`` is all that is not an array. ``given`` are
    the settings as they came: who holds the plan keeps them, and so their ids.
    """

    given: tuple[SamplingSettings, ...]
    settings: tuple[SamplingSettings, ...]
    groups: tuple[Group, ...]
    order: mx.array | None
    biases: tuple[mx.array, ...]
    penalties: tuple[mx.array, ...]
    form: Form


def make_plan(rows: Sequence[DrawRow], vocab_size: int) -> Plan:
    """Group ``rows`` and stack what their settings say."""
    settings = tuple(effective(row) for row in rows)
    places: dict[Kind, list[int]] = {}
    for place, each in enumerate(settings):
        places.setdefault(Kind.of(each, vocab_size), []).append(place)
    groups = tuple(_group(kind, places[kind], settings, vocab_size) for kind in sorted(places))
    order = None
    if len(groups) > 1:
        order = mx.array(np.argsort([place for group in groups for place in group.places]))
    biases, penalties = stack_biases(settings), stack_penalties(settings)
    return Plan(
        given=tuple(row.settings for row in rows),
        settings=settings,
        groups=groups,
        order=order,
        biases=biases,
        penalties=penalties,
        form=Form(tuple(group.part for group in groups), bool(biases), bool(penalties)),
    )


def effective(row: DrawRow) -> SamplingSettings:
    """A row's settings, with the temperature for this draw if it has one."""
    if row.temperature is None:
        return row.settings
    return replace(row.settings, temperature=row.temperature)


def _group(
    kind: Kind, places: list[int], settings: Sequence[SamplingSettings], vocab_size: int
) -> Group:
    chosen = tuple(settings[place] for place in places)
    return Group(
        part=Part(
            kind,
            ranked=kind.truncates and any(each.top_k > 0 for each in chosen),
            excludes=kind != Kind.GREEDY and any(each.xtc_probability > 0 for each in chosen),
        ),
        places=tuple(places),
        at=None if len(places) == len(settings) else mx.array(places),
        settings=chosen,
        limits=() if kind == Kind.GREEDY else stack_limits(chosen, vocab_size),
    )
