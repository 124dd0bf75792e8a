"""All slots of a runner, in groups of sequences that are about as long.

Whether a model computes the same in a batch as alone is found by trying: how it reads its caches is
what matters, and models of one name differ.

A group is one set of arrays: every slot of it has as many places as its longest sequence needs, and
a pass reads them all. So a sequence goes to a group of others that are about as long, from its
first token to its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache

from .alone import Alone
from .footprint import Footprint
from .layers import CacheFactory, Model
from .slot_caches import GROWTH
from .slots import Group, Slot, rooms_for

WASTE = 2  # there may be that many times as much padding as tokens
_HISTORIES = ([1, 2, 3, 4, 5, 6, 7], [5, 3], [2, 7, 1, 8])
_TOLERANCE = 0.02  # of the spread of the logits: half-precision sums differ with the batch


class Slots:
    """All slots of a runner, in groups.

    ``make`` builds the model's empty caches for one sequence; a pass may read up to ``spare``
    unused places. Raises ``StateError`` as ``Group`` does.
    """

    def __init__(self, make: CacheFactory, spare: int = 1 << 40) -> None:
        self._make, self._spare = make, spare
        self.groups = [Group(make)]
        self.recurrent, self.window = bool(self.groups[0].states), self.groups[0].window

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups)

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        return sum([group.nbytes for group in self.groups])

    def open(self, room: int) -> Slot:
        """An empty slot for a sequence of so many tokens, among others that are about as long."""
        for group in self.groups:
            if self._suits(room, [max(each.length, each.room) for each in group.members]):
                return group.add(room)
        self.groups.append(Group(self._make, len(self.groups)))
        return self.groups[-1].add(room)

    def move(self, alone: Alone) -> Slot:
        """A slot that holds what caches of one sequence do, which are not changed."""
        slot = self.open(alone.length + 1)
        try:
            for length, caches in alone.checkpoints:
                states = [each.cache for each in caches if isinstance(each, ArraysCache)]
                slot.checkpoints.add(length, states)
            if alone.length:
                slot.fill(alone.whole(), alone.others(), alone.length)
        except BaseException:
            slot.group.leave(slot)
            raise
        return slot

    def clear(self) -> None:
        """Free all slots, whatever is in them."""
        for group in self.groups:
            group.clear()

    def nbytes_with(
        self,
        footprint: Footprint,
        lengths: Mapping[Slot, int],
        joining: Iterable[int],
        ahead: int,
        twin_of: Slot | None = None,
    ) -> int:
        """The bytes of all buffers once the sequences in slots are those of ``lengths``, others of
        the lengths ``joining`` have come, and the longest of each group has grown by ``ahead``
        tokens; ``twin_of`` one that is forked."""
        groups = [
            [max(each.length, each.room, lengths[each]) for each in own.members if each in lengths]
            for own in self.groups
        ]
        if twin_of is not None:
            groups[twin_of.group.number].append(twin_of.room)
        for length in joining:
            place = next((own for own in groups if self._suits(length, own)), None)
            if place is None:
                groups.append(place := [])
            place.append(length)
        total = 0
        for i, own in enumerate(groups):
            if own:  # a group is freed with its last sequence
                held = self.groups[i].nbytes if i < len(self.groups) else 0
                total += max(held, footprint.together(rooms_for(len(own)), max(own) + ahead))
        return total

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        for group in self.groups:
            group.check_integrity()

    def _suits(self, length: int, others: Sequence[int]) -> bool:
        count, held = len(others) + 1, length + sum(others)
        padding = count * max(length, *others, 0) - held
        return padding <= min(WASTE * held, self._spare) + count * GROWTH


# ---- whether a batch equals one alone ----------------------------------------------------------


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
        kv, slot = Alone(make), group.add(len(history))
        for store in (kv, slot):
            store.forward(model, mx.array([history]))
            mx.eval(store.arrays())
        rows.append((kv, slot))
    for step in range(3):
        tokens = mx.array([[(3 * i + step) % 8 + 1] for i in range(len(rows))])
        before, slot = rows[1][0].fork(), rows[1][1]
        agreed += _compared(model, rows, tokens, [1] * len(rows))
        slot.go_back(slot.length - 1)  # run it again, to try a rewind as well
        agreed += _compared(model, [(before, slot)], tokens[1:2], [1])
        agreed += _compared(model, rows, tokens, [1, 0, 1])
    run = mx.array([[4, 4, 2], [5, 1, 0]])  # the second one is padded if it is not alone
    agreed += _compared(model, rows[:1], run[:1], [3])
    if not group.states:
        agreed += _compared(model, rows[1:], run, [3, 2])
    return all(agreed)


def _compared(
    model: Model, rows: Sequence[tuple[Alone, Slot]], tokens: mx.array, lengths: Sequence[int]
) -> list[bool]:
    """Whether the next tokens of consecutive rows give together what they give alone, for each."""
    first = rows[0][1]
    together = first.group.run(model, tokens, lengths, first.index)
    return [
        _alike(kv.forward(model, tokens[i : i + 1, :n])[0, -1], together[i, n - 1])
        for i, ((kv, _), n) in enumerate(zip(rows, lengths, strict=True))
        if n
    ]


def _alike(first: mx.array, second: mx.array) -> bool:
    one, two = np.array(first.astype(mx.float32)), np.array(second.astype(mx.float32))
    spread = float(one.max() - one.min())
    return bool(np.isfinite(two).all() and np.abs(one - two).max() <= _TOLERANCE * spread)
