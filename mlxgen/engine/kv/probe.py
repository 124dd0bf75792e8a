"""Whether a model computes the same for a sequence in a batch as for the sequence alone.

Owns the answer, which is found by trying. Must never know the names of architectures: what
matters is how a model reads its caches, and models of one name differ. Invariant: the answer
is yes only if rows of different lengths, one with a longer run, all agreed.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .alone import Alone
from .layers import CacheFactory, Model
from .slots import Slot, Slots

_HISTORIES = ([1, 2, 3, 4, 5, 6, 7], [5, 3], [2, 7, 1, 8])
_TOLERANCE = 0.02  # of the spread of the logits: half-precision sums differ with the batch


def batch_equals_alone(model: Model, make: CacheFactory) -> bool:
    """Run a few tokens both ways and compare; false also for a model that raises on a batch."""
    if not Slots.possible(make):
        return False
    try:
        return _agree(model, make)
    except Exception:  # whatever a model does with caches that it does not know
        return False


def _agree(model: Model, make: CacheFactory) -> bool:
    slots = Slots(make)
    rows: list[tuple[Alone, Slot]] = []
    for history in _HISTORIES:
        kv = Alone(make)
        kv.forward(model, mx.array([history]))
        mx.eval(kv.arrays())
        rows.append((kv.fork(), slots.join(kv)))
    for step in range(3):
        tokens = mx.array([[(3 * i + step) % 8 + 1] for i in range(len(rows))])
        alone = [kv.forward(model, tokens[i : i + 1])[:, -1] for i, (kv, _) in enumerate(rows)]
        together = slots.run(model, tokens, [1] * len(rows), [slot for _, slot in rows])
        if not _alike(mx.concatenate(alone), together[:, -1]):
            return False
        rows[1][1].go_back(rows[1][1].length - 1)  # run it again, to try a rewind as well
        again = slots.run(model, tokens[1:2], [1], [rows[1][1]])
        if not _alike(alone[1], again[:, -1]):
            return False
    return _runs_agree(model, slots, rows)


def _runs_agree(model: Model, slots: Slots, rows: list[tuple[Alone, Slot]]) -> bool:
    """The same for several tokens at a time, of one row and of two side by side."""
    run = mx.array([[4, 4, 2], [5, 1, 0]])  # the second one is padded if it is not alone
    alone = [
        kv.forward(model, run[i : i + 1, :n])[0, -1]
        for (kv, _), i, n in zip(rows, (0, 0, 1), (3, 3, 2), strict=True)
    ]
    if not _alike(alone[0], slots.run(model, run[:1], [3], [rows[0][1]])[0, -1]):
        return False
    if slots.recurrent:
        return True
    both = slots.run(model, run, (3, 2), [slot for _, slot in rows[1:]])
    return _alike(alone[1], both[0, -1]) and _alike(alone[2], both[1, 1])


def _alike(first: mx.array, second: mx.array) -> bool:
    one, two = np.array(first.astype(mx.float32)), np.array(second.astype(mx.float32))
    spread = float(one.max() - one.min())
    return bool(np.isfinite(two).all() and np.abs(one - two).max() <= _TOLERANCE * spread)
