"""The sampler: from the settings and logits of a batch to its tokens.

Invariant: a draw depends on its logits and its ``DrawRow`` only, never on earlier calls or on the
rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..recent import Recent
from .program import (
    CANDIDATES,
    Numbers,
    Outputs,
    Reach,
    Variant,
    change,
    make_draw,
    padded_size,
    wanted,
)
from .race import chance
from .rows import Change, Draw, DrawRow, Want
from .settings import SamplingSettings

if TYPE_CHECKING:
    from ..tokens import Token

NOTHING = Want()
MAX_INVERSE_TEMPERATURE = 1e20  # more could overflow in float32
KEPT = 128
"""How many compiled programs are kept, each for inputs of one shape.

MLX keeps a trace for every shape that a compiled function has met, as long as the function
lives, and a trace of a draw takes 10 to 300 kB. With one shape for each program, dropping a
program frees its trace.
"""
_LEAST_CHANGES = 16  # room for the tokens whose logits change


class Sampler:
    """Draws tokens for batches of rows over one vocabulary.

    ``vocab_size`` is the width of the logits. ``xtc_special`` are the tokens that XTC
    never excludes (mlx-lm spares end of sequence and newline). A sampler belongs to the
    thread that evaluates its draws.
    """

    __slots__ = ("_programs", "_spared", "vocab_size")

    def __init__(self, vocab_size: int, *, xtc_special: Iterable[Token] = ()) -> None:
        self.vocab_size = vocab_size
        special = [token for token in xtc_special if token < vocab_size]
        self._spared: mx.array | None = None
        if special:
            spared = np.zeros(padded_size(vocab_size), dtype=bool)
            spared[special] = True
            self._spared = mx.array(spared)
        self._programs: Recent[Hashable, Callable[..., Any]] = Recent(KEPT)

    def sample(
        self,
        logits: mx.array,
        rows: Sequence[DrawRow],
        *,
        want: Want = NOTHING,
        exact: bool = False,
    ) -> Draw:
        """Draw one token for each row of ``logits`` [batch, vocab], of any float type.

        Nothing is evaluated: submit the result with ``mx.async_eval``. Draw rows for which
        ``Draw.exact`` is False again from the same logits with ``exact=True``, which sorts
        the whole vocabulary (rows that were exact get the same token from both). Several
        positions of one sequence are rows like any others.
        """
        assert logits.shape == (len(rows), self.vocab_size), (logits.shape, len(rows))
        settings: list[SamplingSettings] = []
        groups: dict[Reach, list[int]] = {}
        for place, row in enumerate(rows):
            own = row.settings
            if row.temperature is not None:
                own = replace(own, temperature=row.temperature)
            settings.append(own)
            reach = Reach.BEST if own.temperature == 0 else _reach(own, self.vocab_size, exact)
            groups.setdefault(reach, []).append(place)
        if len(groups) == 1:
            return Draw(**self._draw(logits, rows, settings, reach, want))
        parts = [
            self._draw(
                logits[mx.array(places)],
                [rows[place] for place in places],
                [settings[place] for place in places],
                reach,
                want,
            )
            for reach, places in groups.items()
        ]
        order = mx.array(np.argsort(np.concatenate(list(groups.values()))))
        found = {}
        for name in {name: None for part in parts for name in part}:
            # Where there is no such field, all rows are exact, and none aims
            kind = mx.bool_ if name == "exact" else mx.float32
            arrays = [part.get(name, mx.ones(part["token"].shape, kind)) for part in parts]
            found[name] = mx.concatenate(arrays)[order]
        return Draw(**found)

    def distribution(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """The probabilities [batch, vocab] with which each row of ``logits`` is drawn.

        The order is logit bias, penalties, DRY and mask; then top-p, min-p, top-nσ and min-k, XTC
        and top-k, each on what the ones before it left of the untempered distribution; then the
        temperature, and adaptive-p's preference. What top-nσ and min-k allow follows from the
        logits before the mask.
        """
        draw = self.sample(logits, rows, want=Want(distribution=True), exact=True)
        assert draw.distribution is not None
        return draw.distribution

    def _draw(
        self,
        logits: mx.array,
        rows: Sequence[DrawRow],
        settings: Sequence[SamplingSettings],
        reach: Reach,
        want: Want,
    ) -> Outputs:
        masked = changed = bounds = excludes = aims = False
        for each, row in zip(settings, rows, strict=True):
            masked |= row.words is not None
            changed |= bool(row.changes or each.logit_bias)
        own = words = table = keys = None
        if changed:
            own = logits if want.logprob or want.top else None
            logits = _changed(logits, settings, rows)
        if masked:
            words = _stacked(rows, self.vocab_size)
        if reach is not Reach.BEST:
            numbers, pairs = [], []
            for each, row in zip(settings, rows, strict=True):
                bounds |= each.top_n_sigma > 0 or each.min_k >= 0
                excludes |= each.xtc_probability > 0
                aims |= row.target is not None  # a greedy row that is warmed for a draw has none
                drawn, threshold = chance(row.seed, row.position, row.attempt), math.inf
                if drawn.xtc < each.xtc_probability:
                    threshold = math.log(each.xtc_threshold) if each.xtc_threshold else -math.inf
                pairs.append(drawn.key)
                numbers.append(
                    Numbers(
                        inverse_temperature=min(1 / each.temperature, MAX_INVERSE_TEMPERATURE),
                        top_p=each.top_p,
                        log_min_p=math.log(each.min_p) if each.min_p else -math.inf,
                        top_k=each.top_k or math.inf,
                        sigmas=each.top_n_sigma,
                        min_k=each.min_k,
                        log_threshold=threshold,
                        target=-1.0 if row.target is None else row.target,
                    )
                )
            table, keys = mx.array(numbers, mx.float32), mx.array(pairs, mx.uint32)
        reports = want != NOTHING
        variant = Variant(reach, bounds, excludes, aims, reports)
        key = (variant, len(rows), logits.dtype, own is None, masked)
        program = self._programs.get(key, lambda: mx.compile(make_draw(variant, self._spared)))
        outputs: Outputs = program(logits, own, words, table, keys)
        return wanted(outputs, want) if reports else outputs


def _reach(settings: SamplingSettings, vocab_size: int, exact: bool) -> Reach:
    """Which tokens a row is drawn from, by weight."""
    top_k = settings.top_k if settings.top_k < vocab_size else 0
    if settings.top_p == 1 and top_k == 0:
        return Reach.PLAIN
    bounded = settings.top_p < 1 or settings.min_p > 0 or settings.has_floor
    return Reach.FEW if (bounded or top_k < CANDIDATES) and not exact else Reach.ALL


def _changed(
    logits: mx.array, settings: Sequence[SamplingSettings], rows: Sequence[DrawRow]
) -> mx.array:
    """Logits [batch, vocab] as float32, after the biases, then the changes of each row."""
    changes = [
        (*([_bias(each)] if each.logit_bias else ()), *row.changes)
        for each, row in zip(settings, rows, strict=True)
    ]
    for together in zip_longest(*changes):
        most = max(len(each.ids) for each in together if each is not None)
        width = max(_LEAST_CHANGES, 1 << (most - 1).bit_length())  # grows rarely, as a history does
        # A row without changes has token 0 with numbers that leave its logit as it is
        ids = np.zeros((len(rows), width), np.int32)
        factors, less = np.ones(ids.shape, np.float32), np.zeros(ids.shape, np.float32)
        for row, each in enumerate(together):
            if each is not None:
                for array, values in zip((ids, factors, less), each, strict=True):
                    array[row] = values[0]
                    array[row, : len(values)] = values
        logits = change(logits.astype(mx.float32), *map(mx.array, (ids, factors, less)))
    return logits


def _bias(settings: SamplingSettings) -> Change:
    biases = settings.logit_bias
    less = -np.fromiter(biases.values(), np.float64, len(biases))
    return Change(np.fromiter(biases, np.int32, len(biases)), np.ones(len(biases)), less)


def _stacked(rows: Sequence[DrawRow], vocab_size: int) -> mx.array:
    """Masks as words [rows, words, 1]; a row without a mask allows every token."""
    if len(rows) == 1 and rows[0].words is not None:
        return mx.array(rows[0].words[None, :, None])
    words = np.full((len(rows), padded_size(vocab_size) // 32, 1), -1, dtype=np.int32)
    for place, row in enumerate(rows):
        if row.words is not None:
            words[place, :, 0] = row.words
    return mx.array(words)
