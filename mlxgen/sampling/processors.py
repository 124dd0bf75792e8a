"""What changes logits before truncation: logit biases, penalties and the masks of filters.

Pure functions over a batch. Invariant: a row's result depends on that row only; padding
changes nothing.

The ids of a row are distinct. If rows have different numbers of them, they are padded by
repeating the row's first id and its numbers: a second write of the same value. A row
without any takes id 0 with numbers that leave the logit as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

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


def adjust(
    logits: mx.array,
    biases: Sequence[mx.array],
    counts: Sequence[mx.array],
    penalties: Sequence[mx.array],
    repeating: Sequence[mx.array] = (),
) -> mx.array:
    """Logits [batch, vocab] as float32 with biases, then penalties, in mlx-lm's order, then DRY.

    The arrays are those of ``apply_bias``, ``apply_penalties`` and ``apply_bias`` again; empty:
    not applied.
    """
    logits = logits.astype(mx.float32)
    if biases:
        logits = apply_bias(logits, *biases)
    if penalties:
        logits = apply_penalties(logits, *counts, *penalties)
    if repeating:
        logits = apply_bias(logits, *repeating)
    return logits


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
