"""The sampler: from the settings and logits of a batch to its tokens.

Two bounded caches make repeated draws cheap: plans, which group rows by the work that they need,
and compiled programs for groups of rows. Invariant: a draw depends on its logits and its
``DrawRow`` only, never on earlier calls or on the rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..recent import Recent
from .processors import (
    apply_bias,
    apply_penalties,
    column,
    floors,
    padded,
    padded_size,
    stack_counts,
    stack_limits,
    stack_masks,
)
from .program import NOTHING, Variant, joined, make_draw, only
from .race import chance
from .rows import Draw, DrawRow, Method, Want
from .settings import SamplingSettings

if TYPE_CHECKING:
    from ..tokens import Token

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_FLOORS = ("top_n_sigma", "min_k")
_PLANS = 64  # kept; a batch rarely alternates between more than a few
KEPT = 128
"""Compiled programs that are kept, each for inputs of one shape.

MLX keeps a trace for every shape that a compiled function has met, as long as the function
lives, and a trace of a draw takes 10 to 300 kB. With one shape for each program, dropping a
program frees its trace.
"""


class Group(NamedTuple):
    """Rows that are drawn in the same way.

    ``places`` are their indexes in the batch; ``at`` is the same as an array, or ``None`` for the
    batch as it is. ``limits`` (the arrays of ``Truncation``; empty for greedy rows), ``floors``,
    ``biases`` and ``penalties`` (arguments of functions of ``processors``; empty if no row has any)
    are those of their ``settings``.
    ``avoids_repetitions``: one of them may have ``DrawRow.repeating``.
    """

    method: Method
    places: tuple[int, ...]
    at: mx.array | None
    settings: tuple[SamplingSettings, ...]
    limits: tuple[mx.array, ...]
    floors: tuple[mx.array, ...]
    biases: tuple[mx.array, ...]
    penalties: tuple[mx.array, ...]
    avoids_repetitions: bool
    excludes: bool
    aims: bool


class DrawPlan(NamedTuple):
    """What stays the same while a batch keeps its rows: groups, and arrays of their settings.

    ``order`` [batch] finds the rows in the concatenated results of the groups; ``None`` if
    these are the batch as it is. ``given`` are the settings as they came: a plan keeps them
    alive, and so their ids.
    """

    given: tuple[SamplingSettings, ...]
    groups: tuple[Group, ...]
    order: mx.array | None

    @classmethod
    def of(cls, rows: Sequence[DrawRow], vocab_size: int) -> DrawPlan:
        """Groups ``rows`` and stacks their settings."""
        settings = tuple(row.effective for row in rows)
        places: dict[Method, list[int]] = {}
        for place, each in enumerate(settings):
            places.setdefault(Method.of(each, vocab_size), []).append(place)
        groups = []
        for method, own in sorted(places.items()):
            chosen = tuple(settings[place] for place in own)
            biases = [(list(each.logit_bias), list(each.logit_bias.values())) for each in chosen]

            def stacked(
                names: Sequence[str], of: Sequence[SamplingSettings] = chosen
            ) -> tuple[mx.array, ...]:
                return tuple(column(getattr(each, name) for each in of) for name in names)

            group = Group(
                method=method,
                places=tuple(own),
                at=None if len(own) == len(rows) else mx.array(own),
                settings=chosen,
                limits=() if method is Method.GREEDY else stack_limits(chosen, vocab_size),
                floors=stacked(_FLOORS) if any(each.has_floor for each in chosen) else (),
                biases=padded(biases) if any(each.logit_bias for each in chosen) else (),
                penalties=stacked(_PENALTIES) if any(each.penalises for each in chosen) else (),
                avoids_repetitions=any(each.avoids_repetitions for each in chosen),
                excludes=any(each.xtc_probability > 0 for each in chosen),
                aims=any(each.aims for each in chosen),
            )
            groups.append(group)
        joined = np.concatenate([group.places for group in groups])
        order = mx.array(np.argsort(joined)) if len(groups) > 1 else None
        return cls(tuple(row.settings for row in rows), tuple(groups), order)


class Sampler:
    """Draws tokens for batches of rows over one vocabulary.

    ``vocab_size`` is the width of the logits. ``xtc_special`` are the tokens that XTC
    never excludes (mlx-lm spares end of sequence and newline). A sampler belongs to the
    thread that evaluates its draws.
    """

    __slots__ = ("_plans", "_programs", "_spared", "vocab_size")

    def __init__(self, vocab_size: int, *, xtc_special: Iterable[Token] = ()) -> None:
        self.vocab_size = vocab_size
        special = [token for token in xtc_special if token < vocab_size]
        self._spared: mx.array | None = None
        if special:
            spared = np.zeros(padded_size(vocab_size), dtype=bool)
            spared[special] = True
            self._spared = mx.array(spared)
        self._plans: dict[Hashable, DrawPlan] = {}  # a lock would cost a tenth of a greedy draw
        self._programs: Recent[Hashable, Callable[..., Any]] = Recent(KEPT)

    def sample(
        self,
        logits: mx.array,
        rows: Sequence[DrawRow],
        *,
        want: Want = NOTHING,
        exact: bool = False,
    ) -> Draw:
        """Draws one token for each row of ``logits`` [batch, vocab], of any float type.

        Nothing is evaluated: submit the result with ``mx.async_eval``. Draw rows for which
        ``Draw.exact`` is False again from the same logits with ``exact=True``, which sorts
        the whole vocabulary (rows that were exact get the same token from both). Several
        positions of one sequence are rows like any others.
        """
        assert logits.shape == (len(rows), self.vocab_size), (logits.shape, len(rows))
        plan = self._plan(rows)
        if plan.order is None:
            return self._draw(logits, rows, plan.groups[0], want, exact)
        draws = [self._draw(logits, rows, group, want, exact) for group in plan.groups]
        return joined(draws, plan.order)

    def distribution(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """The probabilities [batch, vocab] with which each row of ``logits`` is drawn.

        The order is logit bias, penalties, DRY and mask; then top-p, min-p, top-nσ and min-k, XTC
        and top-k, each on what the ones before it left of the untempered distribution; then the
        temperature, and what adaptive-p prefers. What top-nσ and min-k allow follows from the
        logits before the mask.
        """
        draw = self.sample(logits, rows, want=Want(distribution=True), exact=True)
        assert draw.distribution is not None
        return draw.distribution

    def _draw(
        self,
        logits: mx.array,
        rows: Sequence[DrawRow],
        group: Group,
        want: Want,
        exact: bool,
    ) -> Draw:
        if group.at is not None:
            logits = logits[group.at]
            rows = [rows[place] for place in group.places]
        inputs = [logits]
        if group.biases or group.penalties or group.avoids_repetitions:
            inputs = [self._adjusted(logits, rows, group)]
        method = group.method
        draws = method is not Method.GREEDY
        variant = Variant(
            Method.COMPLETE if exact and method is Method.TRUNCATED else method,
            draws and group.excludes,
            draws and group.aims,
            masked=bool([row for row in rows if row.words is not None]),
            changed=inputs[0] is not logits and (want.logprob or want.top > 0),
            final=want.candidates > 0 or (want.prob and not draws),
            own=want.logprob or want.top > 0,
            whole=want.distribution,
        )
        if variant.changed:
            inputs.append(logits)
        if variant.masked:
            inputs.append(stack_masks(rows, self.vocab_size))
        if draws:
            inputs.extend(self._bounded(inputs[0], group))
            chances = [chance(row.seed, row.position, row.attempt) for row in rows]
            inputs.append(mx.array([each.key for each in chances], mx.uint32))
            if variant.excludes:
                thresholds = [
                    (math.log(each.xtc_threshold) if each.xtc_threshold else -math.inf)
                    if chance.xtc < each.xtc_probability
                    else math.inf
                    for each, chance in zip(group.settings, chances, strict=True)
                ]
                inputs.append(column(thresholds))
            if variant.aims:
                aims = zip(group.settings, rows, strict=True)
                assert all(row.target is not None or not each.aims for each, row in aims)
                inputs.append(column(-1.0 if row.target is None else row.target for row in rows))
        key = (variant, len(rows), inputs[0].dtype)
        program = self._programs.get(key, lambda: mx.compile(make_draw(variant, self._spared)))
        return only(program(*inputs), want)

    @staticmethod
    def _adjusted(logits: mx.array, rows: Sequence[DrawRow], group: Group) -> mx.array:
        """Logits [batch, vocab] with biases, then penalties, in mlx-lm's order, then DRY; the same
        array if nothing applies, else float32."""
        repeats = group.avoids_repetitions and any(row.repeating is not None for row in rows)
        if not (group.biases or group.penalties or repeats):
            return logits
        logits = logits.astype(mx.float32)
        if group.biases:
            logits = apply_bias(logits, *group.biases)
        if group.penalties:
            logits = apply_penalties(logits, *stack_counts(group.settings, rows), *group.penalties)
        if repeats:
            given = [((), ()) if row.repeating is None else row.repeating for row in rows]
            tables = [(ids, -np.asarray(penalties)) for ids, penalties in given]
            logits = apply_bias(logits, *padded(tables))
        return logits

    def _bounded(self, logits: mx.array, group: Group) -> tuple[mx.array, ...]:
        """The limits, with what the shape of the logits allows as min-p's."""
        if not group.floors:
            return group.limits
        inverse_temperature, top_p, log_min_p, top_k = group.limits
        floor = mx.maximum(log_min_p, floors(logits, *group.floors))
        return inverse_temperature, top_p, floor, top_k

    def _plan(self, rows: Sequence[DrawRow]) -> DrawPlan:
        # A plan holds its rows' settings, so no other settings get their ids while it is kept
        key = tuple([item for row in rows for item in (id(row.settings), row.temperature)])
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = DrawPlan.of(rows, self.vocab_size)
        return plan
