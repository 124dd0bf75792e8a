"""The sampler: settings and logits of a batch to tokens.

Owns the caches that make repeated draws cheap: plans of rows, and compiled programs.
Must never know sequences, text or where logits come from. Invariant: a draw depends on
its logits and its ``DrawRow`` only, never on earlier calls or on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from .distribution import final_distribution
from .draws import INNER, OUTER, Uniforms, uniforms
from .plan import Group, Kind, Plan, make_plan
from .processors import padded_size
from .program import Program, Request, make_program, needs_outer, outputs
from .rows import Draw, DrawRow, Want
from .speculation import Verified, verify
from .stack import column, stack_counts, stack_masks, stack_thresholds

if TYPE_CHECKING:
    from ..tokens import Token

_PLANS = 64  # that are kept; a batch rarely has more than a few in turn
_NOTHING = Want()


class Sampler:
    """Draws tokens for batches of rows over one vocabulary.

    ``vocab_size`` is the width of the logits. ``xtc_special`` are the tokens that XTC
    never excludes (mlx-lm spares end of sequence and newline). A sampler belongs to the
    thread that evaluates its draws.
    """

    __slots__ = ("_plans", "_programs", "_spared", "_special", "vocab_size")

    def __init__(self, vocab_size: int, *, xtc_special: Iterable[Token] = ()) -> None:
        self.vocab_size = vocab_size
        self._special = [token for token in xtc_special if token < vocab_size]
        self._spared: mx.array | None = None
        if self._special:
            spared = np.zeros(padded_size(vocab_size), dtype=bool)
            spared[self._special] = True
            self._spared = mx.array(spared)
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._programs: dict[Request, tuple[Program, tuple[str, ...]]] = {}

    def sample(
        self,
        logits: mx.array,
        rows: Sequence[DrawRow],
        *,
        want: Want = _NOTHING,
        exact: bool = False,
    ) -> Draw:
        """Draw one token for each row of ``logits`` [batch, vocab], of any float type.

        Nothing is evaluated: submit the result with ``mx.async_eval``. Rows for which
        ``Draw.exact`` is False are to be drawn again from the same logits with
        ``exact=True``, which sorts the whole vocabulary (rows that were exact get the
        same token from both). Several positions of one sequence are rows like any others.
        """
        assert logits.shape == (len(rows), self.vocab_size), (logits.shape, len(rows))
        plan = self._plan(rows)
        masked = any(row.words is not None for row in rows)
        request = Request(plan.form, masked, exact, want)
        inputs = [logits, *plan.biases]
        if plan.penalties:
            inputs.extend(stack_counts(plan.settings, rows))
            inputs.extend(plan.penalties)
        if masked:
            inputs.append(stack_masks(rows, self.vocab_size))
        for group in plan.groups:
            if group.at is not None:
                inputs.append(group.at)
            if group.part.kind == Kind.GREEDY:
                continue
            inputs.extend(group.limits)
            numbers = _uniforms(rows, group)
            inputs.append(column([each[INNER] for each in numbers]))
            if needs_outer(request, group.part, self.vocab_size):
                inputs.append(column([each[OUTER] for each in numbers]))
            if group.part.excludes:
                inputs.append(stack_thresholds(group.settings, numbers))
        if plan.order is not None:
            inputs.append(plan.order)
        program, fields = self._program(request)
        results = program(*inputs)
        if len(fields) == 1:
            return Draw(results[0])
        return Draw(**dict(zip(fields, results, strict=True)))

    def distribution(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """The probabilities [batch, vocab] that rows are drawn with: ``final_distribution``."""
        return final_distribution(logits, rows, xtc_special=self._special)

    def verify(
        self, logits: mx.array, rows: Sequence[DrawRow], drafted: mx.array, probs: mx.array
    ) -> Verified:
        """Test ``drafted`` [n], drawn from ``probs`` [n, vocab]: see ``speculation.verify``."""
        return verify(logits, rows, drafted, probs, xtc_special=self._special)

    def _program(self, request: Request) -> tuple[Program, tuple[str, ...]]:
        known = self._programs.get(request)
        if known is None:
            program = make_program(request, self._spared)
            known = self._programs[request] = (program, outputs(request))
        return known

    def _plan(self, rows: Sequence[DrawRow]) -> Plan:
        # A plan holds its rows' settings, so that their ids stay theirs while it is kept
        key = tuple([item for row in rows for item in (id(row.settings), row.temperature)])
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = make_plan(rows, self.vocab_size)
        return plan


def _uniforms(rows: Sequence[DrawRow], group: Group) -> list[Uniforms]:
    chosen = rows if group.at is None else [rows[place] for place in group.places]
    return [uniforms(row.seed, row.position, row.attempt) for row in chosen]
