"""The bytes of all KV and of a piece of a prompt: what is held, and what will be needed soon.

Invariant: an estimate is never below what is then allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from ...errors import CapacityError
from ...loading.memory import MemoryPlan
from ..kv import SMALLEST, Activations, Footprint
from ..kv.commands import Limit
from ..prefix.store import BlockStore
from ..step.handle import Handle
from ..step.runner import Runner

HEADROOM = 64  # tokens that every request must have room for


class Memory:
    """What a ``plan`` allows for all KV of a runner, the prefix ``cache`` included, and those of
    models that draft."""

    def __init__(
        self,
        plan: MemoryPlan,
        footprint: Footprint,
        activations: Activations,
        runner: Runner,
        cache: BlockStore | None,
    ) -> None:
        self.plan = plan
        self._before = plan  # the largest of those under which what is held was accepted
        self._footprint = footprint
        self._activations = activations
        self._runner = runner
        self._cache = cache
        # And those of models that draft, as long as anybody has them
        self._caches: WeakSet[BlockStore] = WeakSet([] if cache is None else [cache])

    @property
    def limit(self) -> int:
        """The most bytes of all KV, but for what a single sequence was promised."""
        return self.plan.caches

    @property
    def promised(self) -> int:
        """The most bytes of a sequence that runs alone."""
        return max(self.limit, self._before.caches)

    def follow(self, plan: MemoryPlan) -> None:
        """Go by another plan. A sequence that was accepted under a larger one may still grow as
        large, alone, until ``forget``."""
        if self.plan.caches > self._before.caches:
            self._before = self.plan
        self.plan = plan
        self.leave_for_cache(self.limit)
        if self._cache is not None:
            self._runner.do(Limit(self.limit))

    def forget(self) -> None:
        """Forget what was promised: nobody is left to whom it was."""
        self._before = self.plan

    @property
    def cached(self) -> int:
        """Bytes of the prefix caches."""
        return sum([cache.nbytes for cache in self._caches])

    def know(self, handle: Handle) -> None:
        """Count the prefix caches of the models that draft for a handle from now on."""
        self._caches.update(handle.drafts.caches)

    def needed(self, handle: Handle) -> int:
        """The bytes that a sequence takes with one token more."""
        length = len(handle.history) + 1
        return self._footprint.alone(length) + handle.drafts.nbytes_at(length)

    def check_prompt(self, handle: Handle) -> None:
        """Raise ``CapacityError`` for a prompt that could never run."""
        length, needed = len(handle.history), self.needed(handle)
        if needed > self.limit:
            raise CapacityError(
                f"a prompt of {length} tokens needs {needed:,} bytes for its KV cache, "
                f"but max_bytes={self.limit:,}; shorten it or raise the limit"
            )
        check_pieces(self._activations, length, self.plan.activations)

    def lends(self, tokens: int) -> bool:
        """Whether so many tokens may be held twice for a moment, beyond the limit: while they go
        from a sequence to the prefix cache, or back."""
        free = self.plan.left - self.plan.caches - self.plan.activations
        return self._footprint.alone(tokens) <= free

    def piece(self, held: int) -> int:
        """The most tokens of a prompt that may run at once after ``held`` others."""
        room = max(self.plan.activations, self._before.activations)
        return self._activations.most(room, held)

    def held(self, handles: Iterable[Handle]) -> int:
        """Bytes of the KV of these, and of all slots."""
        slots = self._runner.slots
        total = slots.nbytes if slots is not None else 0
        for handle in handles:
            total += handle.kv.nbytes if slots is None else 0
            total += handle.drafts.nbytes
        return total

    def needed_soon(
        self, handles: Iterable[Handle], more: Handle | None = None, without: Handle | None = None
    ) -> int:
        """Bytes of all KV of these a few steps from now, with one sequence ``more``, or ``without``
        one."""
        slots, rows = self._runner.slots, [handle for handle in handles if handle is not without]
        total, lengths = 0, list[int]()  # of those without a slot
        for handle in [*rows, *([] if more is None else [more])]:
            length = len(handle.history)
            total += handle.drafts.nbytes_at(length + HEADROOM)
            if handle.kv.slot is None:
                lengths.append(length)
        if slots is None:
            return total + sum([self._footprint.alone(length + HEADROOM) for length in lengths])
        held = {each.kv.slot: len(each.history) for each in rows if each.kv.slot is not None}
        twin_of = None if more is None else more.kv.slot
        return total + slots.nbytes_with(self._footprint, held, lengths, HEADROOM, twin_of)

    def leave_for_cache(self, room: int) -> None:
        """Let the prefix caches hold no more than ``room`` bytes now."""
        fit(self._caches, room)


def fit(caches: Iterable[BlockStore], room: int) -> None:
    """Let these hold no more than ``room`` bytes together; each gives up its share."""
    nbytes = {cache: cache.nbytes for cache in caches}
    held, room = sum(nbytes.values()), max(0, room)
    if held > room:
        for cache, own in nbytes.items():
            cache.shrink(room * own // held)


def check_pieces(activations: Activations, length: int, room: int) -> None:
    """Raise ``CapacityError`` if a prompt does not fit ``room`` even in the smallest of pieces."""
    needed = activations.nbytes(min(SMALLEST, length), length)
    if needed > room:
        raise CapacityError(
            f"a prompt of {length} tokens needs {needed:,} bytes besides its KV cache, even in "
            f"pieces of {SMALLEST} tokens, but {max(0, room):,} are left; shorten it, or allow "
            "fewer bytes for KV caches"
        )
