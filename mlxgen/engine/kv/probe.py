"""Whether a model computes the same for a sequence in a batch as for the sequence alone.

Owns the answer, which is found by trying. Must never know the names of architectures: what
matters is how a model reads its caches, and models of one name differ. Invariant: the answer
is yes only if rows of different lengths, one with a longer run, all agreed.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from .alone import Alone
from .layers import CacheFactory, Model
from .slots import Group, Slot

_HISTORIES = ([1, 2, 3, 4, 5, 6, 7], [5, 3], [2, 7, 1, 8])
_TOLERANCE = 0.02  # of the spread of the logits: half-precision sums differ with the batch


def batch_equals_alone(model: Model, make: CacheFactory) -> bool:
    """Run a few tokens both ways and compare; false also for a model that raises on a batch."""
    try:
        return _agree(model, make)
    except Exception:  # of ``Group``, or whatever a model does with caches that it does not know
        return False


def _agree(model: Model, make: CacheFactory) -> bool:
    group = Group(make)
    rows: list[tuple[Alone, Slot]] = []
    # Machines that share a model add up every pass of it, so all of them are run in any case.
    agreed: list[bool] = []
    for history in _HISTORIES:
        kv = Alone(make)
        kv.forward(model, mx.array([history]))
        mx.eval(kv.arrays())
        slot = group.add(len(history))
        group.run(model, mx.array([history]), [len(history)], slot.index)
        mx.eval(group.arrays())
        rows.append((kv, slot))
    for step in range(3):
        tokens = mx.array([[(3 * i + step) % 8 + 1] for i in range(len(rows))])
        before, slot = rows[1][0].fork(), rows[1][1]
        agreed += _compared(model, group, rows, tokens, [1] * len(rows))
        slot.go_back(slot.length - 1)  # run it again, to try a rewind as well
        agreed += _compared(model, group, [(before, slot)], tokens[1:2], [1])
        agreed += _compared(model, group, rows, tokens, [1, 0, 1])
    run = mx.array([[4, 4, 2], [5, 1, 0]])  # the second one is padded if it is not alone
    agreed += _compared(model, group, rows[:1], run[:1], [3])
    if not group.recurrent:
        agreed += _compared(model, group, rows[1:], run, [3, 2])
    return all(agreed)


def _compared(
    model: Model,
    group: Group,
    rows: Sequence[tuple[Alone, Slot]],
    tokens: mx.array,
    lengths: Sequence[int],
) -> list[bool]:
    """Whether the next tokens of consecutive rows give together what they give alone, for each."""
    together = group.run(model, tokens, lengths, rows[0][1].index)
    return [
        _alike(kv.forward(model, tokens[i : i + 1, :n])[0, -1], together[i, n - 1])
        for i, ((kv, _), n) in enumerate(zip(rows, lengths, strict=True))
        if n
    ]


def _alike(first: mx.array, second: mx.array) -> bool:
    one, two = np.array(first.astype(mx.float32)), np.array(second.astype(mx.float32))
    spread = float(one.max() - one.min())
    return bool(np.isfinite(two).all() and np.abs(one - two).max() <= _TOLERANCE * spread)
