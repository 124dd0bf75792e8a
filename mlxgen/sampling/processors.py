"""What changes logits before truncation: logit biases, penalties and the masks of filters.

The first half changes logits; the second stacks the settings, counts and masks of rows as arrays.

Pure functions over a batch. Invariant: a row's result depends on that row only; padding
changes nothing.

The ids of a row are distinct. If rows have different numbers of them, they are padded by
repeating the row's first id and its numbers: a second write of the same value. A row
without any takes id 0 with numbers that leave the logit as it is. Arrays have the rows as their
first axis and at least one more, because every change of shape costs an operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .candidates import Truncation
from .rows import DrawRow
from .settings import SamplingSettings

WORD = 32  # tokens in one word of a mask


def padded_size(vocab_size: int) -> int:
    """The vocabulary's size, rounded up to whole words."""
    return vocab_size + -vocab_size % WORD


def pad_vocabulary(logits: mx.array) -> mx.array:
    """Logits [batch, vocab] as float32, filled up to whole words with -inf.

    Everything except a plain argmax works on these, because their rows divide into equal blocks.
    """
    logits = logits.astype(mx.float32)
    surplus = padded_size(logits.shape[-1]) - logits.shape[-1]
    if not surplus:
        return logits
    return mx.pad(logits, [(0, 0), (0, surplus)], constant_values=-mx.inf)


def apply_bias(logits: mx.array, ids: mx.array, biases: mx.array) -> mx.array:
    """Adds ``biases`` [batch, n] to the logits [batch, vocab] of ``ids`` [batch, n]."""
    changed = mx.take_along_axis(logits, ids, axis=-1) + biases
    return mx.put_along_axis(logits, ids, changed, axis=-1)


def apply_penalties(
    logits: mx.array,
    ids: mx.array,
    generated: mx.array,
    repetition: mx.array,
    presence: mx.array,
    frequency: mx.array,
) -> mx.array:
    """Penalises the tokens ``ids`` [batch, n] that occurred in the prompt or the output.

    ``generated`` [batch, n] is how often each was generated. The multiplicative
    ``repetition`` [batch, 1] penalty (Keskar et al. 2019) applies to all of them, the
    additive ``presence`` and ``frequency`` [batch, 1] to those that were generated.
    """
    chosen = mx.take_along_axis(logits, ids, axis=-1)
    chosen = mx.where(chosen < 0, chosen * repetition, chosen / repetition)
    chosen = chosen - mx.where(generated > 0, presence, 0.0) - frequency * generated
    return mx.put_along_axis(logits, ids, chosen, axis=-1)


def floors(logits: mx.array, sigmas: mx.array, least: mx.array) -> mx.array:
    """How far below the highest of the logits [batch, vocab] a token may lie, [batch, 1].

    Top-nσ (Tang et al. 2024) allows ``sigmas`` [batch, 1] standard deviations of all finite logits.
    Min-k (Ding et al. 2026) keeps the tokens before the steepest drop from one sorted logit to the
    next, relative to the range of the logits and divided by its place, and no fewer than ``least``
    [batch, 1] over that range. The narrower of both counts; -inf where neither is on.
    """
    logits = logits.astype(mx.float32)
    finite = mx.isfinite(logits)
    lowest = mx.min(mx.where(finite, logits, mx.inf), axis=-1, keepdims=True)
    logits = mx.where(finite, logits, lowest)
    count = mx.sum(finite, axis=-1, keepdims=True)
    mean = mx.sum(mx.where(finite, logits, 0.0), axis=-1, keepdims=True) / count
    squares = mx.sum(mx.where(finite, (logits - mean) ** 2, 0.0), axis=-1, keepdims=True)
    floor = mx.where(sigmas > 0, -sigmas * mx.sqrt(squares / count), -mx.inf)

    ordered = -mx.sort(-logits, axis=-1)
    span = ordered[:, :1] - ordered[:, -1:] + 1e-8
    drops = (ordered[:, :-1] - ordered[:, 1:]) / mx.arange(1, ordered.shape[-1])
    kept = mx.argmax(drops, axis=-1, keepdims=True) + 1
    kept = mx.maximum(kept, mx.floor(mx.maximum(least, 0.0) / span).astype(mx.uint32))
    last = mx.take_along_axis(ordered, mx.minimum(kept, ordered.shape[-1]) - 1, axis=-1)
    # A little lower, or the last token could be lost when this is added to the highest logit
    rounding = 2.4e-7 * (mx.abs(last) + mx.abs(ordered[:, :1]))
    cliff = last - ordered[:, :1] - rounding
    return mx.maximum(floor, mx.where(least >= 0, cliff, -mx.inf))


def apply_mask(logits: mx.array, words: mx.array) -> mx.array:
    """Sets the logits [batch, vocab] of tokens that ``words`` [batch, words, 1] forbid to -inf.

    Bit ``t % 32`` of word ``t // 32`` allows token t. The words cover the whole vocabulary.
    """
    batch, vocab = logits.shape
    places = mx.array(np.arange(WORD, dtype=np.int32))
    shifted = (words >> places).reshape(batch, -1)
    if shifted.shape[-1] != vocab:
        shifted = shifted[:, :vocab]
    return mx.where((shifted & 1) != 0, logits, mx.array(-mx.inf, logits.dtype))


# ---- arrays of rows -----------------------------------------------------------------------------

MAX_INVERSE_TEMPERATURE = 1e20  # more could overflow in float32

_LEAST_COUNTS = 64

Table: TypeAlias = tuple[Sequence[int] | npt.NDArray[Any], Sequence[float] | npt.NDArray[Any]]


def column(numbers: Iterable[float]) -> mx.array:
    """Numbers as float32 [n, 1]."""
    return mx.array([[number] for number in numbers], mx.float32)


def stack_limits(settings: Sequence[SamplingSettings], vocab_size: int) -> Truncation:
    """Temperature and truncation; a greedy row counts as temperature 1 without truncation."""
    drawn = [each if each.temperature else SamplingSettings(temperature=1) for each in settings]
    return Truncation(
        inverse_temperature=column(
            min(1 / each.temperature, MAX_INVERSE_TEMPERATURE) for each in drawn
        ),
        top_p=column(each.top_p for each in drawn),
        log_min_p=column(math.log(each.min_p) if each.min_p else -math.inf for each in drawn),
        top_k=mx.array(
            [[each.top_k if 0 < each.top_k < vocab_size else vocab_size] for each in drawn]
        ),
    )


def stack_counts(
    settings: Sequence[SamplingSettings], rows: Sequence[DrawRow]
) -> tuple[mx.array, mx.array]:
    """The tokens so far and how often each was generated [rows, n], of rows that penalise.

    n is a power of two, so that a growing history rarely changes the arrays' shapes.
    """
    tables: list[Table] = []
    for each, row in zip(settings, rows, strict=True):
        assert not each.penalises or row.counts is not None, "settings that penalise need counts"
        tables.append(row.counts.table() if each.penalises and row.counts is not None else ((), ()))
    return padded(tables, _LEAST_COUNTS)


def padded(tables: Sequence[Table], least: int = 16) -> tuple[mx.array, mx.array]:
    """Ids and numbers [rows, n], filled up with the first of each row; n is a power of two."""
    most = max(len(ids) for ids, _ in tables)
    width = max(least, 1 << (most - 1).bit_length())
    found = np.zeros((len(tables), width), np.int32), np.zeros((len(tables), width), np.float32)
    for row, table in enumerate(tables):
        for array, values in zip(found, table, strict=True):
            if len(values):
                array[row] = values[0]
                array[row, : len(values)] = values
    return mx.array(found[0]), mx.array(found[1])


def stack_masks(rows: Sequence[DrawRow], vocab_size: int) -> mx.array:
    """Masks as words [rows, words, 1]; a row without a mask allows every token."""
    if len(rows) == 1 and rows[0].words is not None:
        return mx.array(rows[0].words[None, :, None])
    words = np.full((len(rows), padded_size(vocab_size) // 32, 1), -1, dtype=np.int32)
    for place, row in enumerate(rows):
        if row.words is not None:
            words[place, :, 0] = row.words
    return mx.array(words)
