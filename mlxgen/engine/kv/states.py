"""Layer caches of slots without keys for every token: recurrent states, and mlx-lm's own caches
that have no counterpart for several sequences.

Must never know which tokens they hold. Invariant: what a slot holds can be copied out, and restored
later, without changing the others.
"""

from __future__ import annotations

from typing import TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from .layers import LayerCache, arrays_in, can_trim, copied, owned
from .slot_caches import Pass

States: TypeAlias = list[mx.array | None]


class SlotStates(ArraysCache):  # type: ignore[misc]
    """The states of a recurrent layer: ``arrays`` whose first axis is the slots.

    A pass replaces states and does not update them in place. So the states before the last pass can
    be kept, and a single token can be taken back.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._held: States = [None] * size
        self._before = self._held
        self._slots = 0
        self._pass: Pass | None = None

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in self._held if array is not None]

    def face(self, single: bool) -> SlotStates:
        """The cache that the model gets."""
        return self

    def begin(self, step: Pass) -> None:
        self._pass = step
        self.cache = list(self._held) if step.whole else self._rows(step.slots)

    def end(self) -> None:
        step, new = self._pass, self.cache
        assert step is not None
        self._pass, self.cache = None, [None] * len(new)
        self._before = self._held
        if step.whole and all(step.runs):
            self._held = new
        else:
            self._replace(step.slots, new, step)

    def undo(self, slot: int, count: int) -> None:
        """Undo the last pass for one slot; it must have run one token."""
        only = slice(slot, slot + 1)
        self._replace(only, [None if a is None else a[only] for a in self._before])

    def put(self, slot: int, leaf: ArraysCache, slots: int) -> None:
        """Copy the state of one sequence to ``slot``."""
        self.restore(slot, leaf.cache)

    def get(self, slot: int, length: int, leaf: ArraysCache) -> None:
        leaf.cache = self.copy_of(slot)

    def copy_of(self, slot: int) -> States:
        """The state of one slot, in arrays that keep no other buffer alive."""
        return [None if a is None else owned(a) for a in self._rows(slice(slot, slot + 1))]

    def restore(self, slot: int, state: States | None) -> None:
        """Restore a state from ``copy_of``; ``None``: that of a sequence without tokens."""
        self._replace(slice(slot, slot + 1), state or [None] * len(self._held))

    def move(self, source: int, target: int, length: int) -> None:
        self.restore(target, self._rows(slice(source, source + 1)))

    def share(self, other: SlotStates) -> None:
        self._held = self._before = list(other._held)

    def keep(self, slots: int) -> None:
        """Resize to this many slots: drop those beyond, or add empty ones."""
        self._slots = slots
        held: States = []
        for array in self._held:
            if array is not None and array.shape[0] < slots:
                rest = [(0, slots - array.shape[0]), *[(0, 0)] * (array.ndim - 1)]
                array = mx.pad(array, rest)
            held.append(None if array is None else array[:slots])
        self._held = self._before = held

    def clear(self) -> None:
        self._held = self._before = [None] * len(self._held)
        self._slots = 0

    def _rows(self, slots: slice) -> States:
        return [None if a is None else a[slots] for a in self._held]

    def _replace(self, slots: slice, rows: States, step: Pass | None = None) -> None:
        """Replace the states of some slots; ``None`` is the state of a sequence without tokens. If
        the states come from a pass (``step``), only those of the slots that ran."""
        held: States = []
        for old, new in zip(self._held, rows, strict=True):
            if old is None and new is not None:
                old = mx.zeros((self._slots, *new.shape[1:]), new.dtype)
            if old is not None:
                before, old = old[slots], mx.array(old)
                new = mx.zeros_like(before) if new is None else new
                old[slots] = new if step is None else step.chosen(new, before)
            held.append(old)
        self._held = held


class Foreign:
    """A layer of one sequence in a cache of mlx-lm's own, of a kind without a counterpart for
    several sequences."""

    def __init__(self, leaf: LayerCache) -> None:
        self.leaf = leaf
        self.window = getattr(leaf, "max_size", None) or getattr(leaf, "chunk_size", None)
        self._fresh = copied(leaf)

    def face(self, single: bool) -> LayerCache:
        return self.leaf

    @property
    def arrays(self) -> list[mx.array]:
        return [] if self.leaf.empty() else list(arrays_in(self.leaf.state))

    def can_undo(self, count: int, ahead: int = 0) -> bool:
        """Whether ``count`` tokens can be taken back exactly once it holds ``ahead`` more."""
        return can_trim(self.leaf, count, ahead)

    def undo(self, slot: int, count: int) -> None:
        self.leaf.trim(count)

    def put(self, slot: int, leaf: LayerCache, slots: int) -> None:
        self.restore(slot, leaf)

    def get(self, slot: int, length: int, leaf: LayerCache) -> None:
        leaf.__dict__.update(vars(self.copy_of(slot)))

    def copy_of(self, slot: int) -> LayerCache:
        return copied(self.leaf)

    def restore(self, slot: int, state: LayerCache | None) -> None:
        """Restore a state from ``copy_of``; ``None``: that of a sequence without tokens."""
        self.leaf.__dict__.update(vars(copied(self._fresh if state is None else state)))

    def share(self, other: Foreign) -> None:
        self.restore(0, other.leaf)

    def keep(self, slots: int) -> None:
        """Does nothing: there is one slot."""

    def clear(self) -> None:
        self.restore(0, None)
