"""The settings, counts and masks of rows, padded and stacked as arrays of a batch.

Invariant: arrays have the rows as their first axis and at least one more, because every
change of shape costs an operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .candidates import Truncation
from .draws import Chance
from .processors import padded_size
from .rows import DrawRow
from .settings import SamplingSettings

MAX_INVERSE_TEMPERATURE = 1e20  # more could overflow in float32

_LEAST_BIASES, _LEAST_COUNTS = 16, 64

_Table: TypeAlias = tuple[Sequence[int] | npt.NDArray[Any], Sequence[float] | npt.NDArray[Any]]


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


def stack_thresholds(settings: Sequence[SamplingSettings], chances: Sequence[Chance]) -> mx.array:
    """The logarithm of XTC's threshold [rows, 1]; infinite if this draw excludes nothing."""
    return column(
        (math.log(each.xtc_threshold) if each.xtc_threshold else -math.inf)
        if each.temperature > 0 and chance.xtc < each.xtc_probability
        else math.inf
        for each, chance in zip(settings, chances, strict=True)
    )


def stack_biases(settings: Sequence[SamplingSettings]) -> tuple[mx.array, ...]:
    """Ids and biases [rows, n], n a power of two; empty if no row has any."""
    if not any(each.logit_bias for each in settings):
        return ()
    tables = [(list(each.logit_bias), list(each.logit_bias.values())) for each in settings]
    return _padded(tables, _LEAST_BIASES)


def stack_penalties(settings: Sequence[SamplingSettings]) -> tuple[mx.array, ...]:
    """Repetition, presence and frequency penalties [rows, 1]; empty if no row has any."""
    if not any(each.penalises for each in settings):
        return ()
    return (
        column(each.repetition_penalty for each in settings),
        column(each.presence_penalty for each in settings),
        column(each.frequency_penalty for each in settings),
    )


def stack_counts(
    settings: Sequence[SamplingSettings], rows: Sequence[DrawRow]
) -> tuple[mx.array, mx.array]:
    """The tokens so far and how often each was generated [rows, n], of rows that penalise.

    n is a power of two, so that a growing history rarely changes the arrays' shapes.
    """
    tables: list[_Table] = []
    for each, row in zip(settings, rows, strict=True):
        assert not each.penalises or row.counts is not None, "settings that penalise need counts"
        tables.append(row.counts.table() if each.penalises and row.counts is not None else ((), ()))
    return _padded(tables, _LEAST_COUNTS)


def stack_repeating(rows: Sequence[DrawRow]) -> tuple[mx.array, ...]:
    """Ids and what to add to their logits [rows, n], n a power of two; empty if there are none."""
    if all(row.repeating is None for row in rows):
        return ()
    given = [((), ()) if row.repeating is None else row.repeating for row in rows]
    return _padded([(ids, -np.asarray(penalties)) for ids, penalties in given], _LEAST_BIASES)


def _padded(tables: Sequence[_Table], least: int) -> tuple[mx.array, mx.array]:
    """Ids and numbers [rows, n], filled up with the first of each row (see ``processors``)."""
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
