"""Where each sequence is: it waits in the queue, its prompt runs, it generates, or it rests.

Owns who may begin and who has to give way, by places and bytes. Must never know what comes of a
sequence. Invariant: a sequence is in one place, and those that hold KV fit the limit together with
the prefix cache a few steps from now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ...tokens import Token
from ..limits import Account, Limits
from ..prefix.store import BlockStore
from ..step.handle import Handle
from ..step.step import Loop
from .memory import Memory
from .prefill import Prefill

HEADROOM_STEP = 32  # tokens by which a request grows until its bytes are counted again


class Seats:
    """See the module. ``places`` says where in a prompt a snapshot is worth keeping; ``account``
    counts those that gave way."""

    def __init__(
        self,
        limits: Limits,
        memory: Memory,
        loop: Loop,
        cache: BlockStore | None,
        places: Callable[[Sequence[Token]], list[int]],
        account: Account,
    ) -> None:
        self._limits, self._memory, self._loop, self._cache = limits, memory, loop, cache
        self.queue: deque[Handle] = deque()
        self.parked: list[Handle] = []
        self.prefill = Prefill(loop, cache, self.for_cache, memory.leave_for_cache, places)
        self._account = account
        self._counted: list[tuple[Handle, int]] = []  # those whose bytes were, and their lengths

    @property
    def running(self) -> list[Handle]:
        """Those that generate, and those whose prompts run."""
        return [*self._loop.handles, *self.prefill]

    @property
    def everywhere(self) -> list[Handle]:
        """All."""
        return [*self.running, *self.queue, *self.parked]

    @property
    def kv_bytes(self) -> int:
        """What they hold."""
        return self._memory.held([*self.running, *self.parked])

    @property
    def free(self) -> int:
        """How many more may run now."""
        return max(0, self._limits.max_batch - len(self._loop.handles) - len(self.prefill))

    @property
    def room(self) -> int:
        """How many more may come now."""
        return self._limits.max_queue + self.free - len(self.queue)

    # ---- who runs --------------------------------------------------------------------------

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
        return self._needed_soon(handle) <= self._memory.limit or not self.running

    def begin(self, handle: Handle) -> None:
        """Run its prompt. It takes what it begins with now, if that would be evicted to make room
        for it."""
        self.prefill.add(handle)
        if self._cache is None or self._memory.cached <= self.for_cache():
            return
        count = self._cache.match(handle.history)
        if 2 * count >= len(handle.history) and self._memory.lends(count):
            self.prefill.begin(handle)

    def take_out(self, handle: Handle) -> None:
        """From wherever it is; a place in the slots is free then."""
        if handle in self._loop.handles:
            self._loop.leave(handle)
        elif handle in self.prefill:
            self.prefill.remove(handle)
        elif handle in self.queue:
            self.queue.remove(handle)
        elif handle in self.parked:
            self.parked.remove(handle)

    # ---- bytes -----------------------------------------------------------------------------

    def for_cache(self, leaving: Handle | None = None) -> int:
        """Bytes that the prefix cache may hold; those of who is ``leaving`` are free."""
        return self._memory.limit - self._needed_soon(without=leaving)

    def count_again(self) -> None:
        """Have the next ``make_room`` look, whoever has come, gone or grown."""
        self._counted = []

    def make_room(self) -> Handle | None:
        """See to it that every request can grow; the last one to come goes back to the queue.

        Returns the one that has no room though it is alone, if there is one.
        """
        running = self.running
        counted = [(handle, len(handle.history) // HEADROOM_STEP) for handle in running]
        if counted == self._counted:  # nobody has come, gone or grown by much
            return None
        self._counted = counted
        while (needed := self._needed_soon()) > self._memory.limit:
            self._memory.leave_for_cache(0)
            if self._drop_parked():
                continue
            running = self.running
            if len(running) < 2:
                outgrown = running and self._memory.needed(running[0]) > self._memory.promised
                return running[0] if outgrown else None
            last = running[-1]
            self.take_out(last)
            self.preempt(last)
            self.queue.appendleft(last)
        self._memory.leave_for_cache(self._memory.limit - needed)
        return None

    def preempt(self, handle: Handle) -> None:
        """Free a sequence's KV: all of it is run again when it takes part again."""
        handle.forget()
        handle.restart()
        self._account.preempted += 1

    def _drop_parked(self) -> bool:
        """Free the KV of the sequence that came to rest last, if one has any."""
        for handle in reversed(self.parked):
            if handle.kv.length:
                self.preempt(handle)
                return True
        return False

    def _needed_soon(self, more: Handle | None = None, without: Handle | None = None) -> int:
        """Bytes of all KV a few steps from now, with one sequence more or without one."""
        parked = [handle for handle in self.parked if handle.kv.length]
        return self._memory.needed_soon([*self.running, *parked], more, without)
