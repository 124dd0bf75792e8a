"""All slots of a runner, in groups of sequences of similar length.

A group is one set of arrays: each of its slots has as many places as its longest sequence needs,
and a pass reads them all. So a sequence shares a group with others of similar length, from its
first token to its last. If a model does not compute the same for several sequences as for one, each
has a group of its own. That is found by trying: it depends on how the model reads its caches, and
models of one name differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import CacheList, KVCache

from ...errors import OptionError
from .footprint import Footprint
from .layers import CacheFactory, LayerCache, Model, leaves
from .slot_caches import GROWTH, Keys, Quantisation
from .slots import Group, Slot, rooms_for

WASTE = 2  # how many times as much padding as tokens there may be
_HISTORIES = ([1, 2, 3, 4, 5, 6, 7], [5, 3], [2, 7, 1, 8])
_TOLERANCE = 0.02  # relative to the spread of the logits: half-precision sums differ with the batch
_SIZES = (64, 32)  # of quantisation groups; the default is the first that fits


class Slots:
    """All slots of a runner, in groups.

    ``make`` builds the model's empty caches for one sequence. ``batches`` says whether several
    sequences may share a group: it is called once there are several; ``None`` means never. A pass
    may read up to ``spare`` unused places. ``own``: the model runs only with mlx-lm's own caches.
    """

    def __init__(
        self,
        make: CacheFactory,
        batches: Callable[[], bool] | None = None,
        spare: int = 1 << 40,
        *,
        own: bool = False,
    ) -> None:
        self.groups: list[Group] = []
        self._make, self.spare, self._own = make, spare, own
        self._ask = batches
        self.groups.append(Group(make, own=own))
        self.recurrent, self.window = bool(self.groups[0].states), self.groups[0].window

    def __del__(self) -> None:
        self.clear()  # groups and slots form cycles; large arrays must not wait for the collector

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups)

    @property
    def may_batch(self) -> bool:
        """Whether several sequences may share a group, as far as has been tried."""
        return self._ask is not None

    @property
    def batches(self) -> bool:
        """Whether several sequences may share a group; tries it if need be."""
        if self._ask is not None and (self.groups[0].is_single or not self._ask()):
            self._ask = None
        return self._ask is not None

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        return sum([group.nbytes for group in self.groups])

    def open(self, room: int) -> Slot:
        """An empty slot for a sequence of ``room`` tokens, among others of similar length."""
        for group in self.groups:
            lengths = [max(each.length, each.room) for each in group.members]
            if not lengths or (self.batches and self._suits(room, lengths)):
                return group.add(room)
        self.groups.append(Group(self._make, len(self.groups), own=self._own))
        return self.groups[-1].add(room)

    def fork(self, slot: Slot) -> Slot:
        """An independent copy of a slot, in the same group if several may share one."""
        twin = slot.group.add(slot.room) if self.batches else self.open(slot.room)
        twin.copy_from(slot)
        return twin

    def clear(self) -> None:
        """Free all slots, whatever they hold."""
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
        """The bytes of all buffers once the sequences in slots have these ``lengths``, sequences of
        the lengths ``joining`` have come, and the longest of each group has grown by ``ahead``
        tokens. ``twin_of``: a slot that is forked."""
        joining = [*joining, *([] if twin_of is None or self.batches else [twin_of.room])]
        if not self.batches:
            return sum(footprint.alone(length + ahead) for length in (*lengths.values(), *joining))
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
                slots, length, held = rooms_for(len(own)), max(own) + ahead, 0
                if i < len(self.groups):
                    group = self.groups[i]
                    held = group.nbytes
                    if slots > group.rooms:  # added slots get all the places of these
                        length = max(length, group.places - 1)
                total += max(held, footprint.together(slots, length))
        return total

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        for group in self.groups:
            group.check_integrity()

    def _suits(self, length: int, others: Sequence[int]) -> bool:
        count, held = len(others) + 1, length + sum(others)
        padding = count * max(length, *others, 0) - held
        return padding <= min(WASTE * held, self.spare) + count * GROWTH


def batch_equals_alone(model: Model, make: CacheFactory) -> bool:
    """Run a few tokens alone and batched, and compare; False if a model raises on a batch."""
    try:
        return _agree(model, make)
    except Exception:  # a model may do anything with caches that it does not know
        return False


def _agree(model: Model, make: CacheFactory) -> bool:
    group = Group(make)
    rows: list[tuple[Slot, Slot]] = []  # in mlx-lm's caches, and in a shared group
    # Machines that share a model combine each pass, so all passes run on every one of them.
    agreed: list[bool] = []
    for history in _HISTORIES:
        pair = Group(make, own=True).add(len(history)), group.add(len(history))
        for slot in pair:
            slot.forward(model, mx.array([history]))
            mx.eval(slot.arrays())
        rows.append(pair)
    for step in range(3):
        tokens = mx.array([[(3 * i + step) % 8 + 1] for i in range(len(rows))])
        before, slot = Group(make, own=True).add(0), rows[1][1]
        before.copy_from(rows[1][0])
        agreed += _compared(model, rows, tokens, [1] * len(rows))
        slot.go_back(slot.length - 1)  # run it again, to try a rewind as well
        agreed += _compared(model, [(before, slot)], tokens[1:2], [1])
        agreed += _compared(model, rows, tokens, [1, 0, 1])
    run = mx.array([[4, 4, 2], [5, 1, 0]])  # the second run is padded when batched
    agreed += _compared(model, rows[:1], run[:1], [3])
    if not group.states:
        agreed += _compared(model, rows[1:], run, [3, 2])
    return all(agreed)


def _compared(
    model: Model, rows: Sequence[tuple[Slot, Slot]], tokens: mx.array, lengths: Sequence[int]
) -> list[bool]:
    """For each of some consecutive rows: whether its next tokens give the same batched as alone."""
    first = rows[0][1]
    together = first.group.run(model, tokens, lengths, first.index)
    return [
        _alike(alone.forward(model, tokens[i : i + 1, :n])[0, -1], together[i, n - 1])
        for i, ((alone, _), n) in enumerate(zip(rows, lengths, strict=True))
        if n
    ]


def _alike(first: mx.array, second: mx.array) -> bool:
    one, two = np.array(first.astype(mx.float32)), np.array(second.astype(mx.float32))
    spread = float(one.max() - one.min())
    return bool(np.isfinite(two).all() and np.abs(one - two).max() <= _TOLERANCE * spread)


# ---- quantisation -------------------------------------------------------------------------------


def quantisation(
    model: Model,
    make: CacheFactory,
    bits: int,
    group_size: int | None,
    start: int,
    *,
    name: str,
) -> Quantisation:
    """How a model's KV can be quantised, from the graph of a pass; nothing is evaluated.

    Raises ``OptionError`` if none of it can be quantised, or not with these settings.
    """
    caches = make()
    model(mx.array([[0]]), cache=caches)
    plain = [leaf for leaf in leaves(caches) if type(leaf) is KVCache and not leaf.empty()]
    widths = {array.shape[-1] for leaf in plain for array in (leaf.keys, leaf.values)}
    if not widths:
        raise OptionError(
            "kv_bits",
            f"{name} has no layer to quantise: windows and recurrent states stay as they are;"
            " leave it out",
        )
    fitting = [size for size in _SIZES if not any(width % size for width in widths)]
    size = group_size or (fitting or _SIZES)[0]
    if any(width % size for width in widths):
        dimensions = " and ".join(map(str, sorted(widths)))
        raise OptionError(
            "kv_group_size",
            f"expected a divisor of the head dimension of {name}, {dimensions}, got {size}",
        )
    error: Exception | None = None
    for packed in (True, False)[bool(start) :]:
        found = Quantisation(bits, size, start, packed)
        try:
            group = Group(lambda how=found: quantised(make(), how))  # type: ignore[misc]
            group.add(1).forward(model, mx.array([[0]]))
            return found
        except Exception as reason:  # a model may do anything with caches it does not know
            error = reason
    raise OptionError(
        "kv_bits", f"{name} cannot run with a quantised KV cache ({error}); leave it out"
    ) from error


def quantised(caches: list[LayerCache], how: Quantisation) -> list[LayerCache]:
    """Empty caches, with those that can be quantised replaced by quantised ones."""

    def one(layer: Any) -> LayerCache:
        if type(layer) is CacheList:
            return CacheList(*map(one, layer.caches))
        return Keys(how=how) if type(layer) is KVCache else layer

    return [one(layer) for layer in caches]
