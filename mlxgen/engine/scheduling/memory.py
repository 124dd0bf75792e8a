"""The bytes that sequences need, and what they leave to the prefix caches.

Owns the plan that a scheduler goes by, and the sums. Must never know who waits or why: it is told
who holds KV. An estimate is never below what is then allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakSet

from ...errors import CapacityError
from ...loading.memory import MemoryPlan
from ..kv.footprint import SMALLEST, Activations
from ..kv.groups import Slots
from ..kv.kv import NOWHERE
from ..kv.slots import Slot
from ..limits import Limits
from ..prefix.store import BlockStore
from ..runtime import ModelRuntime
from ..step.handle import Handle

HEADROOM = 64  # tokens of growth that every sequence must have room for


class Memory:
    """See the module. ``caches``: the prefix cache and those of drafting models, while they are in
    use."""

    def __init__(
        self, lm: ModelRuntime, limits: Limits, slots: Slots, cache: BlockStore | None
    ) -> None:
        self._footprint, self._activations, self._slots = lm.footprint, lm.activations, slots
        self.plan = lm.memory.with_caches(limits.max_bytes)
        self._before = self.plan  # the largest plan under which a present sequence was accepted
        self.caches: WeakSet[BlockStore] = WeakSet([] if cache is None else [cache])

    def admit(self, handle: Handle, *, alone: bool) -> None:
        """Raise ``CapacityError`` if the prompt of a new sequence could never run; ``alone``: there
        is no other sequence, to which more was promised."""
        if alone:
            self._before = self.plan
        self.caches.update(handle.drafts.caches)
        length, needed = len(handle.history), self.needed(handle)
        if needed > self.plan.caches:
            raise CapacityError(
                f"a prompt of {length} tokens needs {needed:,} bytes for its KV cache, "
                f"but max_bytes={self.plan.caches:,}; shorten it or raise the limit"
            )
        check_pieces(self._activations, length, self.plan.activations)

    def follow(self, plan: MemoryPlan) -> None:
        """Go by another plan from now on."""
        if self.plan.caches > self._before.caches:
            self._before = self.plan
        self.plan = plan
        self.fit(plan.caches)

    @property
    def promised(self) -> int:
        """The most bytes of a sequence that runs alone: one that was accepted under a larger plan
        may still grow as large."""
        return max(self.plan.caches, self._before.caches)

    @property
    def cached(self) -> int:
        """The bytes of the prefix caches."""
        return sum([cache.nbytes for cache in self.caches])

    def held(self, rows: Iterable[Handle]) -> int:
        """The bytes of all slots, and of what the drafters of these rows hold."""
        return self._slots.nbytes + sum([each.drafts.nbytes for each in rows])

    def needed(self, handle: Handle) -> int:
        """The bytes that a sequence takes with one more token."""
        length = len(handle.history) + 1
        return self._footprint.alone(length) + handle.drafts.nbytes_at(length)

    def needed_soon(self, rows: Iterable[Handle], more: Handle | None = None) -> int:
        """Bytes of all KV of these rows a few steps ahead, with one ``more``, or a fork of one."""
        total = 0
        held: dict[Slot, int] = {}
        joining: list[int] = []  # those that hold nothing yet
        for handle in rows if more is None else [*rows, more]:
            length = len(handle.history)
            total += handle.drafts.nbytes_at(length + HEADROOM)
            if handle.kv.slot is NOWHERE:
                joining.append(length)
            else:
                held[handle.kv.slot] = length
        twin_of = None if more is None or more.kv.slot is NOWHERE else more.kv.slot
        return total + self._slots.nbytes_with(self._footprint, held, joining, HEADROOM, twin_of)

    def lends(self, tokens: int) -> bool:
        """Whether this many tokens may be held twice for a moment, beyond the limit, while they are
        copied from a sequence to the prefix cache or back."""
        free = self.plan.left - self.plan.caches - self.plan.activations
        return self._footprint.alone(tokens) <= free

    def piece(self, rows: Sequence[Handle]) -> int:
        """The most tokens of a prompt that may run at once, after the longest of these rows."""
        room = max(self.plan.activations, self._before.activations)
        return self._activations.most(room, max([len(handle.history) for handle in rows]))

    def fit(self, room: int) -> None:
        """Let the prefix caches hold no more than ``room`` bytes now."""
        fit(self.caches, room)


def fit(caches: Iterable[BlockStore], room: int) -> None:
    """Let these hold no more than ``room`` bytes together; each gives up its share."""
    nbytes = {cache: cache.nbytes for cache in caches}
    held, room = sum(nbytes.values()), max(0, room)
    if held > room:
        for cache, own in nbytes.items():
            cache.shrink(room * own // held)


def check_pieces(activations: Activations, length: int, room: int) -> None:
    """Raise ``CapacityError`` if a prompt does not fit ``room`` even in the smallest pieces."""
    needed = activations.nbytes(min(SMALLEST, length), length)
    if needed > room:
        raise CapacityError(
            f"a prompt of {length} tokens needs {needed:,} bytes besides its KV cache, even in "
            f"pieces of {SMALLEST} tokens, but {max(0, room):,} are left; shorten it, or allow "
            "fewer bytes for KV caches"
        )
