"""Many sequences on one model: who runs, who waits, and with whose KV.

Owns what callers do to sequences, the outcome of each, and where each is: in the queue, among the
prompts that run, in the loop, or parked. Must never know what a token means or how a pass is made.
Invariant: requests and prefix cache together stay within their limit, now and a few steps ahead; an
accepted sequence runs to its end, is cancelled, or fails alone with a reason.

It belongs to the one thread that runs the model. A prompt runs in pieces between the steps of the
others. A sequence that has no room left starts again later: its draws are functions of seed and
position, so nobody can tell. When the model fails, every sequence that ran starts again too: one
after the other, each once the one before it has made progress. If the model fails again on a
sequence before that, the sequence fails with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx

from ...errors import CapacityError, OptionError, QueueFullError, StateError
from ...loading.memory import MemoryPlan
from ...tokens import Token
from ..chunk import Chunk, FinishReason
from ..kv.commands import Drop
from ..kv.kv import KV
from ..kv.layers import PREFILL_STEP
from ..kv.runner import Fault
from ..limits import Account, Limits, Stats
from ..prefix.disk import NO_DISK
from ..prefix.store import BlockStore
from ..request.accept import append, end, take_back
from ..request.request import Request
from ..runtime import ModelRuntime
from ..step.drawn import Event
from ..step.handle import Handle
from .memory import Memory
from .prefill import Prefill

GROWTH = 32  # tokens by which a request grows before its bytes are counted again
BEHIND = 64  # pending tokens from which on a request is prefilled again instead of stepped


class Scheduler:
    """See the module. ``submit`` requests from ``LanguageModel.prepare``, then call ``step``."""

    def __init__(self, lm: ModelRuntime, limits: Limits | None = None) -> None:
        if limits is not None and not isinstance(limits, Limits):
            raise OptionError("limits", f"expected mlxgen.Limits, got {type(limits).__name__}")
        self.limits = limits or Limits()
        self._drafts_for = lm.drafts_for
        self.cache: BlockStore | None = lm.prefix_cache if self.limits.keep_prefixes else None
        runner = lm.runner(batches=lm.batches and self.limits.max_batch > 1)
        self._loop = lm.loop(runner, longest_run=BEHIND)
        self._account = Account()
        self._memory = Memory(lm, self.limits, runner.slots, self.cache)
        self._prefill = Prefill(self._loop, self.cache, self._memory.caches, lm.places)
        self.waiting: deque[Handle] = deque()
        """The queue, the next one first."""
        self._parked: list[Handle] = []
        self._counted: list[tuple[int, int]] = []  # caches counted last, and their lengths
        self._events: list[Event] = []  # of this step, and of one that was interrupted

    # ---- what callers do -------------------------------------------------------------------

    def submit(self, request: Request, *, owner: str = "") -> Handle:
        """Queue a sequence. Drafts from earlier texts come only from those of the same ``owner``.

        Raises ``QueueFullError`` if no place is left, and ``CapacityError`` if the prompt alone
        needs more bytes than there are.
        """
        if self.room < 1:
            raise QueueFullError(
                f"{len(self.waiting)} requests wait already, max_queue={self.limits.max_queue}; "
                "try again when some are done"
            )
        handle = Handle(request, KV(self._loop.runner), self._drafts_for(request.options, owner))
        self._memory.admit(handle, alone=not self._everywhere)
        self.waiting.append(handle)
        return handle

    def cancel(self, handle: Handle) -> None:
        """Drop a sequence wherever it is and free what it holds; a second call does nothing.

        What has been run of an unfinished prompt stays in the prefix cache, as far as there is
        room.
        """
        if handle.closed:
            return
        if handle in self._prefill.turns:  # a repeated request goes on from there
            self._keep_part(handle)
        self._drop(handle)

    def _keep_part(self, handle: Handle) -> None:
        """Put what a sequence holds into the prefix cache, as far as there is room."""
        if held := handle.kv.length:
            room = max(0, self._room_for_cache())
            self._prefill.keep(handle, room, held * room // handle.kv.nbytes)

    def fork(self, handle: Handle, n: int = 1) -> list[Handle]:
        """``n`` copies that go on from where a sequence is, each with a seed of its own; those that
        cannot run at once are queued."""
        if handle.closed or handle.has_ended:
            raise StateError("a sequence that has ended cannot be forked")
        if n > self.room:
            raise QueueFullError(f"there is no room for {n} forks; try again when some are done")
        twins, begun = [], handle not in self.waiting and handle not in self._prefill.turns
        for seed in handle.request.fork_seeds(n):
            runs = begun and self._free and self._fits(handle)
            twins.append(twin := handle.fork(seed, bare=not runs))
            if runs:
                self._loop.join(twin)
            else:  # it takes the beginning from the prefix cache
                self.waiting.append(twin)
                self._account.preempted += begun
        self._memory.fit(self._room_for_cache())
        return twins

    def change(self, handle: Handle, back: int, tokens: Sequence[Token]) -> list[Event]:
        """Take back the newest ``back`` tokens, the prompt's included, and append others.

        Returns events as ``step`` does: the chunks, or why it failed.
        """

        def act(request: Request) -> None:
            if back:
                take_back(request, back)
            append(request, tokens)

        return self._act(handle, act)

    def order(self, handle: Handle, act: Callable[[Request], object]) -> list[Event]:
        """Apply ``act`` to the request of a sequence, whole or not at all: it is tried on a copy
        first, whose errors are raised.

        Returns events as ``change`` does. Raises ``StateError`` for a sequence that has ended.
        """
        if handle.closed or handle.has_ended:
            raise StateError("the answer has ended")
        act(handle.request.fork(handle.request.seed))
        self._loop.draw_anew()
        return self._act(handle, act)

    def _act(self, handle: Handle, act: Callable[[Request], object]) -> list[Event]:
        """Apply ``act`` to the request of a sequence; returns its events."""
        try:
            act(handle.request)
            handle.forget()
        except Exception as error:
            return self._became(handle, [], error)
        if handle in self._loop.handles and handle.missing > BEHIND:
            self._send_back([handle])
        return self._became(handle, handle.take())

    def finish(self, handle: Handle, reason: FinishReason) -> list[Event]:
        """End a sequence for the caller's reasons; returns events with its last chunks."""
        end(handle.request, reason)
        return self._became(handle, handle.take())

    def park(self, handle: Handle) -> None:
        """Let a sequence rest until ``resume``: it keeps its KV while there is room for it."""
        self._take_out(handle)
        self._parked.append(handle)

    def set_aside(self, handle: Handle) -> None:
        """Park a sequence, perhaps for long: it holds nothing meanwhile, and the prefix cache keeps
        what it can."""
        self._keep_part(handle)
        self.park(handle)
        handle.forget()
        handle.restart()

    def resume(self, handle: Handle) -> None:
        """Let a parked sequence take part again."""
        self._parked.remove(handle)
        if not handle.kv.length:
            self.waiting.append(handle)
        elif handle.missing < BEHIND:
            self._loop.join(handle)
        else:
            self._prefill.add(handle, begun=True)

    def step(self) -> list[Event]:
        """One step of all requests that run, and a piece of a prompt that waits.

        What goes wrong in one sequence is its event, even if the model fails on it. A failure while
        nothing runs is raised as a ``ModelError``, and an interrupt as it is: then what happened
        before it comes with the next step.
        """
        self._account.steps += 1
        events = self._events
        try:
            self._step(events)
        except Exception as error:
            self._recover(Fault.of(error), events)
        self._events = []
        return events

    def _step(self, events: list[Event]) -> None:
        self._admit(events)
        self._make_room(events)
        ran: list[Event] = []
        try:
            self._loop.step(ran)
        finally:
            self._deliver(ran, events)
        # Rows that have much to run again, as after a long rewind, do so between the steps
        behind = [each for each in self._loop.handles if len(each.pending) > BEHIND]
        if behind:
            self._send_back(behind)
            self._make_room(events)
        rows, limits, turns = len(self._loop.handles), self.limits, self._prefill.turns
        if turns:
            chunk = limits.prefill_chunk or PREFILL_STEP  # tokens of prompts before the next step
            if rows and limits.prefill_chunk is None:
                chunk = self._loop.clock.pace.chunk(rows, limits.longest_gap)
            chunk = min(chunk, self._memory.piece(turns))
            for handle in self._prefill.step(chunk, self._room_for_cache()):
                self._loop.join(handle)
                self._prefill.keep(handle, self._room_for_cache())
        elif not rows and not self.waiting:
            self.rest()

    def follow(self, plan: MemoryPlan) -> None:
        """Go by another plan from now on: the prefix cache shrinks at once, and the next step sends
        back to the queue what no longer fits. An accepted sequence still gets to its end."""
        self._memory.follow(plan)
        self._counted = []
        if self.cache is not None:
            self._loop.runner.do(Drop(plan.caches, for_good=True))

    def close(self, flush: float | None = None) -> None:
        """Drop every sequence; the prefix cache stays with the model.

        ``flush``: for this many seconds, what is only in memory is written to disk; after that,
        nothing more.
        """
        for handle in self._everywhere:
            self._drop(handle)
        self.rest()
        if flush is not None and self.cache is not None:
            self.cache.close(flush)

    def rest(self) -> None:
        """Settle what was kept, and let it be written to disk: call this while nothing runs."""
        if self.cache is not None:
            self._loop.runner.settle()

    @property
    def room(self) -> int:
        """How many sequences ``submit`` would take now."""
        return self.limits.max_queue + self._free - len(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._loop.handles or self._prefill.turns or self.waiting or self._events)

    def stats(self) -> Stats:
        """Numbers for metrics and tests."""
        plan = self._memory.plan
        return Stats(
            running=len(self._loop.handles),
            prefilling=len(self._prefill.turns),
            queued=len(self.waiting) + sum([each.kv.length > 0 for each in self._parked]),
            kv_bytes=self._memory.held([*self._running, *self._parked]),
            cache_bytes=self._memory.cached,
            byte_limit=plan.caches,
            device_bytes=plan.device,
            weight_bytes=plan.weights,
            activation_bytes=plan.activations,
            reserve_bytes=plan.reserve,
            wired_bytes=plan.wired,
            cache_hits=self._prefill.hits,
            cache_misses=self._prefill.misses,
            **(self.cache.disk if self.cache is not None else NO_DISK)._asdict(),
            **self._account.told([(each.usage, each.request.first) for each in self._everywhere]),
        )

    def check_integrity(self) -> None:
        """Assert the invariants; for tests."""
        self._loop.check_integrity()
        everywhere = self._everywhere
        assert len(set(everywhere)) == len(everywhere)
        assert not any(handle.closed for handle in everywhere)
        self._prefill.check_integrity()
        held = self._memory.held([*self._running, *self._parked]) + self._memory.cached
        assert held <= self._memory.promised, (held, self._memory.promised)

    # ---- one step --------------------------------------------------------------------------

    @property
    def _running(self) -> list[Handle]:
        """Those that generate, and those whose prompts run."""
        return [*self._loop.handles, *self._prefill.turns]

    @property
    def _holding(self) -> list[Handle]:
        """Those that hold KV, or are about to."""
        return [*self._running, *[handle for handle in self._parked if handle.kv.length]]

    @property
    def _everywhere(self) -> list[Handle]:
        return [*self._running, *self.waiting, *self._parked]

    @property
    def _free(self) -> int:
        """How many more may run now."""
        return max(0, self.limits.max_batch - len(self._running))

    def _fits(self, handle: Handle) -> bool:
        """Whether a sequence could be prefilled and run now, if the prefix cache makes room."""
        needed = self._memory.needed_soon(self._holding, handle)
        return needed <= self._memory.plan.caches or not self._running

    def _room_for_cache(self, leaving: Handle | None = None) -> int:
        """Bytes that the prefix cache may hold; those of the ``leaving`` sequence count as free."""
        rows = [handle for handle in self._holding if handle is not leaving]
        return self._memory.plan.caches - self._memory.needed_soon(rows)

    def _take_out(self, handle: Handle) -> None:
        """Remove from wherever it is; a submitted draw is made anew, without it."""
        self._loop.draw_anew()
        if handle in self._prefill.turns:
            self._prefill.remove(handle)
        for place in (self._loop.handles, self.waiting, self._parked):
            if handle in place:
                place.remove(handle)

    def _admit(self, events: list[Event]) -> None:
        """Let the front of the queue begin, as far as there are places and bytes; not together with
        one that begins again after a fault, as they would fail with it."""
        while self.waiting and self._free and not any(each.faults for each in self._running):
            handle = self.waiting[0]
            if not self._fits(handle):
                return
            try:
                begins = handle.start()
            except Exception as error:
                events += self._became(handle, handle.take(), error)  # with what it forced before
                continue
            self.waiting.remove(handle)
            if (begins or handle.has_ended) and (chunks := handle.take()):
                events.append(Event(handle, chunks))
            if handle.has_ended:
                self._drop(handle)
                continue
            self._prefill.add(handle)
            room = self._room_for_cache()
            if self.cache is not None and self._memory.cached > room:
                # It takes its beginning before that is evicted to make room for it
                count = self.cache.match(handle.history)
                if 2 * count >= len(handle.history) and self._memory.lends(count):
                    self._prefill.begin(handle, room)

    def _make_room(self, events: list[Event]) -> None:
        """Make sure that every request can grow: the prefix cache gives way, then parked ones, then
        the newest one, which goes back to the queue. A request that has no room even alone fails.
        """
        memory = self._memory
        counted = [(each.kv.number, len(each.history) // GROWTH) for each in self._running]
        if counted == self._counted:  # nobody has come, gone or grown by much
            return
        self._counted = counted
        while (needed := memory.needed_soon(self._holding)) > memory.plan.caches:
            memory.fit(0)
            running, resting = self._running, [each for each in self._parked if each.kv.length]
            if resting or len(running) > 1:
                last = (resting or running)[-1]
                last.forget()
                last.restart()  # all of it runs again when it takes part again
                self._account.preempted += 1
                if not resting:
                    self._take_out(last)
                    self.waiting.appendleft(last)
            elif running and memory.needed(running[0]) > memory.promised:
                error = CapacityError(
                    f"the KV cache of {len(running[0].history)} tokens does not fit "
                    f"max_bytes={memory.promised:,}; give a smaller max_tokens or raise the limit"
                )
                events += self._became(running[0], [], error)
                return
            else:  # it was accepted under a larger plan
                return
        memory.fit(memory.plan.caches - needed)

    def _became(
        self, handle: Handle, chunks: list[Chunk], error: Exception | None = None
    ) -> list[Event]:
        """The outcome for a sequence, as events; one that has ended gives back what it holds."""
        events: list[Event] = []
        self._deliver([Event(handle, chunks, error)], events)
        return events

    def _deliver(self, came: Iterable[Event], events: list[Event]) -> None:
        """Append outcomes to ``events``; sequences that have ended give back what they hold."""
        told: list[Event] = []  # all of them first, so that none is lost if what follows fails
        for event in came:
            if not event.handle.closed:
                told.append(event)
                if event.chunks or event.error:
                    events.append(event)
        for handle, chunks, error in told:
            if chunks:
                handle.faults = 0  # it has made progress
            reason = handle.request.finish_reason
            if error is None and reason is None:
                continue
            if error is None and reason != "cancelled":
                goes = len(handle.kv.slot.group.members) == 1  # so that its bytes are free at once
                lent = goes and self._memory.lends(handle.kv.length)
                self._prefill.keep(handle, self._room_for_cache(handle if lent else None))
            self._drop(handle)

    def _drop(self, handle: Handle) -> None:
        """Remove a sequence for good; it gives back what it holds."""
        self._take_out(handle)
        self._account.add(handle.usage, handle.request.first)
        handle.close()

    def _send_back(self, handles: Iterable[Handle]) -> None:
        """Have rows run their missing tokens like prompts, between the steps of the others."""
        for handle in handles:
            self._loop.handles.remove(handle)
            self._prefill.add(handle, begun=handle.kv.length > 0)

    # ---- when the model fails --------------------------------------------------------------

    def _recover(self, fault: Fault, events: list[Event]) -> None:
        """Have every sequence that ran begin again from its history; fail those that already did so
        without progress. Raises a failure while nothing runs."""
        self._account.faults += 1
        self._loop.restart()
        for handle in (*self._prefill.turns, *self._parked):
            handle.distrust()
        ended = [Event(each, [], fault.error()) for each in self._loop.handles if each.has_ended]
        self._deliver(ended, events)
        if not (ran := self._running) and not ended:
            raise fault.error_of_all()
        if fault.short_of_memory or any(handle.cached for handle in ran):
            self._memory.fit(0)  # the fault may be in what they began with
            mx.clear_cache()
        failed = [Event(handle, [], fault.error()) for handle in ran if handle.faults]
        self._deliver(failed, events)
        for handle in reversed(ran):
            if not handle.closed:
                self._take_out(handle)
                handle.faults = 1
                self.waiting.appendleft(handle)
