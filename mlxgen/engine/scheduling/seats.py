"""Where each sequence is, and the bytes of all KV: who waits, runs, generates or rests.

Owns who may begin and who has to give way, by places and bytes, and what is left for the prefix
cache. Must never know what comes of a sequence. Invariant: a sequence is in one place, and those
that hold KV fit the limit together with the prefix cache a few steps from now; an estimate is never
below what is then allocated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from weakref import WeakSet

from ...errors import CapacityError
from ...loading.memory import MemoryPlan
from ..kv import SMALLEST, Activations, Slot
from ..kv.commands import Limit
from ..kv.kv import NOWHERE
from ..limits import Account, Limits
from ..prefix.store import BlockStore
from ..runtime import ModelRuntime
from ..step.handle import Handle
from ..step.step import Loop
from .prefill import Prefill

HEADROOM = 64  # tokens that every sequence must have room for
HEADROOM_STEP = 32  # tokens by which a request grows until its bytes are counted again


class Seats:
    """See the module. ``plan`` is what it goes by; ``account`` counts those that gave way."""

    def __init__(
        self,
        lm: ModelRuntime,
        limits: Limits,
        loop: Loop,
        cache: BlockStore | None,
        account: Account,
    ) -> None:
        self._limits, self._loop, self._cache, self._account = limits, loop, cache, account
        self._footprint, self._activations = lm.footprint, lm.activations
        self.plan = lm.memory.with_caches(limits.max_bytes)
        self._before = self.plan  # the largest of those under which what is held was accepted
        # And those of models that draft, as long as anybody has them
        self._caches: WeakSet[BlockStore] = WeakSet([] if cache is None else [cache])
        self.queue: deque[Handle] = deque()
        self.parked: list[Handle] = []
        self.prefill = Prefill(loop, cache, self.for_cache, self.leave_for_cache, lm.places)
        self._counted: list[tuple[Handle, int]] = []  # those whose bytes were, and their lengths

    # ---- places ----------------------------------------------------------------------------

    @property
    def running(self) -> list[Handle]:
        """Those that generate, and those whose prompts run."""
        return [*self._loop.handles, *self.prefill.turns]

    @property
    def everywhere(self) -> list[Handle]:
        """All."""
        return [*self.running, *self.queue, *self.parked]

    @property
    def free(self) -> int:
        """How many more may run now."""
        return max(0, self._limits.max_batch - len(self.running))

    @property
    def room(self) -> int:
        """How many more may come now."""
        return self._limits.max_queue + self.free - len(self.queue)

    def add(self, handle: Handle) -> None:
        """Queue one that comes. Raises ``CapacityError`` if its prompt alone could never run."""
        if not self.everywhere:
            self._before = self.plan  # nobody is left to whom more was promised
        self._caches.update(handle.drafts.caches)
        length, needed = len(handle.history), self._needed(handle)
        if needed > self.plan.caches:
            raise CapacityError(
                f"a prompt of {length} tokens needs {needed:,} bytes for its KV cache, "
                f"but max_bytes={self.plan.caches:,}; shorten it or raise the limit"
            )
        check_pieces(self._activations, length, self.plan.activations)
        self.queue.append(handle)

    def next(self) -> Handle | None:
        """The first in the queue, if it may begin now: there are bytes for it, and it is not beside
        one that begins again after a fault."""
        if not self.queue or not self.free:
            return None
        if any(handle.faults for handle in self.running):
            return None  # others would fail with it
        return self.queue[0] if self.fits(self.queue[0]) else None

    def fits(self, handle: Handle) -> bool:
        """Whether a sequence could be prefilled and run now, if the prefix cache makes room."""
        return self._needed_soon(handle) <= self.plan.caches or not self.running

    def begin(self, handle: Handle) -> None:
        """Run its prompt. It takes what it begins with now, if that would be evicted to make room
        for it."""
        self.prefill.add(handle)
        if self._cache is None or self.cached <= self.for_cache():
            return
        count = self._cache.match(handle.history)
        if 2 * count >= len(handle.history) and self.lends(count):
            self.prefill.begin(handle)

    def take_out(self, handle: Handle) -> None:
        """From wherever it is; a place in the slots is free then."""
        if handle in self._loop.handles:
            self._loop.leave(handle)
        elif handle in self.prefill.turns:
            self.prefill.remove(handle)
        elif handle in self.queue:
            self.queue.remove(handle)
        elif handle in self.parked:
            self.parked.remove(handle)

    # ---- bytes -----------------------------------------------------------------------------

    @property
    def promised(self) -> int:
        """The most bytes of a sequence that runs alone: what was accepted under a larger plan may
        still grow as large."""
        return max(self.plan.caches, self._before.caches)

    @property
    def cached(self) -> int:
        """Bytes of the prefix caches."""
        return sum([cache.nbytes for cache in self._caches])

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV of all sequences, and of all slots."""
        held = [*self.running, *self.parked]
        return self._loop.runner.slots.nbytes + sum([each.drafts.nbytes for each in held])

    def follow(self, plan: MemoryPlan) -> None:
        """Go by another plan from now on."""
        if self.plan.caches > self._before.caches:
            self._before = self.plan
        self.plan = plan
        self._counted = []  # have the next ``make_room`` look
        self.leave_for_cache(plan.caches)
        if self._cache is not None:
            self._loop.runner.do(Limit(plan.caches))

    def lends(self, tokens: int) -> bool:
        """Whether so many tokens may be held twice for a moment, beyond the limit: while they go
        from a sequence to the prefix cache, or back."""
        free = self.plan.left - self.plan.caches - self.plan.activations
        return self._footprint.alone(tokens) <= free

    def piece(self) -> int:
        """The most tokens of a prompt that may run at once, after the longest of those that run."""
        room = max(self.plan.activations, self._before.activations)
        held = max([len(handle.history) for handle in self.prefill.turns])
        return self._activations.most(room, held)

    def for_cache(self, leaving: Handle | None = None) -> int:
        """Bytes that the prefix cache may hold; those of who is ``leaving`` are free."""
        return self.plan.caches - self._needed_soon(without=leaving)

    def leave_for_cache(self, room: int) -> None:
        """Let the prefix caches hold no more than ``room`` bytes now."""
        fit(self._caches, room)

    def make_room(self) -> Handle | None:
        """See to it that every request can grow; the last one to come goes back to the queue.

        Returns the one that has no room though it is alone, if there is one.
        """
        counted = [(handle, len(handle.history) // HEADROOM_STEP) for handle in self.running]
        if counted == self._counted:  # nobody has come, gone or grown by much
            return None
        self._counted = counted
        while (needed := self._needed_soon()) > self.plan.caches:
            self.leave_for_cache(0)
            resting = [handle for handle in self.parked if handle.kv.length]
            if resting:
                self.preempt(resting[-1])
                continue
            running = self.running
            if len(running) < 2:
                outgrown = running and self._needed(running[0]) > self.promised
                return running[0] if outgrown else None
            last = running[-1]
            self.take_out(last)
            self.preempt(last)
            self.queue.appendleft(last)
        self.leave_for_cache(self.plan.caches - needed)
        return None

    def preempt(self, handle: Handle) -> None:
        """Free a sequence's KV: all of it is run again when it takes part again."""
        handle.forget()
        handle.restart()
        self._account.preempted += 1

    def _needed(self, handle: Handle) -> int:
        """The bytes that a sequence takes with one token more."""
        length = len(handle.history) + 1
        return self._footprint.alone(length) + handle.drafts.nbytes_at(length)

    def _needed_soon(self, more: Handle | None = None, without: Handle | None = None) -> int:
        """Bytes of all KV a few steps from now, with one sequence ``more`` or ``without`` one."""
        resting = [handle for handle in self.parked if handle.kv.length]
        rows = [handle for handle in (*self.running, *resting) if handle is not without]
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
        slots = self._loop.runner.slots
        return total + slots.nbytes_with(self._footprint, held, joining, HEADROOM, twin_of)


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
