"""Many sequences on one model: who runs, who waits, and with whose KV.

Owns the queue, the order of prefill, the prefix cache and the limit in bytes. Must never know
what a token means or how a pass is made: that is the loop's. Invariant: rows and prefix cache
together hold no more than ``byte_limit``; a sequence that was accepted runs to its end, is
cancelled, or fails alone with a reason.

It belongs to the one thread that runs the model. A prompt is run in pieces between the steps
of the others, each piece about as long as one of their steps, in turn where several wait.
Sequences that begin alike and come together share one prefill: the later ones wait for the
first and take it from the prefix cache. What has no room left starts again later from there:
its draws are functions of seed and position, so nobody can tell.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import CapacityError, QueueFullError, StateError
from ..tokens import Token
from .chunk import Chunk, FinishReason
from .kv import KV, PREFILL_STEP
from .limits import Limits, Stats, default_bytes
from .loop import Loop
from .pace import Pace
from .prefill import Prefill
from .prefix_cache import PrefixCache
from .row import Row
from .seat import Seat
from .slots import SlotKV, Slots
from .steering import append

if TYPE_CHECKING:
    from ..language_model import LanguageModel

Ticket: TypeAlias = Seat

BEHIND = 64  # pending tokens from which on a row is prefilled again instead of stepped
HEADROOM = 64  # tokens that every row must have room for


class Event(NamedTuple):
    """Chunks of one sequence; or, last of all, why it failed."""

    ticket: Ticket
    chunks: list[Chunk]
    error: Exception | None = None


_SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "forced_tokens",
    "rewound_tokens",
    "redraws",
    "forward_passes",
)


class Scheduler:
    """See the module. ``submit`` rows that ``LanguageModel.prepare`` made, then ``step``."""

    def __init__(self, lm: LanguageModel, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._footprint = lm.footprint
        self._make = lm.make_cache
        slots = None
        if lm.batches and self.limits.max_batch > 1:
            slots = Slots(lm.make_cache, self._footprint.spare)
        self._loop = Loop(lm.model, lm.sampler, slots)
        self._loop.longest_run = BEHIND
        limit = self.limits.max_bytes
        self.byte_limit = limit if limit is not None else default_bytes()
        self.cache: PrefixCache | None = None
        if self.limits.keep_prefixes:
            self.cache = lm.prefix_cache
        self._queue: deque[Ticket] = deque()
        self._parked: list[Ticket] = []
        self._prefill = Prefill(self._loop, self.cache)
        self._pace = Pace()
        self._fed = 0  # prompt tokens that were run behind the last step
        self._sums = dict.fromkeys(_SUMS, 0)
        self._events: list[Event] = []  # of this step, and of one that was interrupted
        self._preempted = self._steps = 0

    # ---- what callers do -------------------------------------------------------------------

    def submit(self, row: Row) -> Ticket:
        """Queue a sequence.

        Raises ``QueueFullError`` where no place is left, and ``CapacityError`` for one whose
        prompt alone does not fit the bytes there are.
        """
        if self.room < 1:
            raise QueueFullError(
                f"{len(self._queue)} requests wait already, max_queue={self.limits.max_queue}; "
                "try again when some are done"
            )
        needed = self._footprint.alone(len(row.sequence) + 1)
        if needed > self.byte_limit:
            raise CapacityError(
                f"a prompt of {row.sequence.base} tokens needs {needed:,} bytes for its KV cache, "
                f"but max_bytes={self.byte_limit:,}; shorten it or raise the limit"
            )
        ticket = Seat(row)
        self._queue.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Drop a sequence wherever it is and free what it holds; a second call does nothing."""
        if ticket.closed:
            return
        self._take_out(ticket)
        self._close(ticket)

    def fork(self, ticket: Ticket, n: int = 1) -> list[Ticket]:
        """``n`` copies that go on from where a sequence is, each with a seed of its own."""
        if ticket in self._queue and self._free_places and self._fits(ticket):
            ticket.start()
            if ticket.row.finish_reason is None:
                self._queue.remove(ticket)
                self._prefill.add(ticket)
        if ticket.closed or ticket.row.finish_reason is not None:
            raise StateError("a sequence that has ended cannot be forked")
        if n > self._free_places + max(0, self.limits.max_queue - self._waiting):
            raise QueueFullError(f"there is no room for {n} forks; try again when some are done")
        while ticket in self._prefill:  # once for all of them
            self._run_prompts(PREFILL_STEP)
        twins = ticket.forks(ticket.row.fork_seeds(n))
        for twin in twins:
            if ticket in self._queue or not self._free_places or not self._fits(twin):
                self._preempt(twin)
                self._queue.append(twin)
            else:
                self._loop.join(twin)
        return twins

    def rewind(self, ticket: Ticket, to: int) -> None:
        """Keep the first ``to`` generated tokens of a sequence that has not ended."""
        if ticket.closed:
            raise StateError("a sequence that has ended cannot be rewound")
        target = ticket.row.target_of(None, to, ticket.row.position)
        if ticket in self._loop.seats:
            self._loop.rewind(ticket, target)
        else:
            ticket.rewind(target)

    def change(self, ticket: Ticket, back: int, tokens: Tokens[Token]) -> list[Event]:
        """Take back the newest ``back`` tokens, the prompt's included, and append others.

        The result is as that of ``step``: what comes of it, or why it failed.
        """
        try:
            if back:
                ticket.row.take_back(back)
            append(ticket.row, tokens)
            ticket.forget()
        except Exception as error:
            return self._became(ticket, [], error)
        self._send_back()
        return self._became(ticket, ticket.take())

    def finish(self, ticket: Ticket, reason: FinishReason) -> list[Event]:
        """End a sequence for the caller's reasons; its last chunks are in the result."""
        ticket.row.end(reason)
        return self._became(ticket, ticket.take())

    def park(self, ticket: Ticket) -> None:
        """Let a sequence rest until ``resume``: it keeps its KV while there is room for it."""
        kv = ticket.kv
        alone = kv.fork() if isinstance(kv, SlotKV) else kv
        self._take_out(ticket)
        ticket.row.sequence.kv = alone
        self._parked.append(ticket)

    def resume(self, ticket: Ticket) -> None:
        """Let a parked sequence take part again."""
        self._parked.remove(ticket)
        if not ticket.kv.length:
            self._queue.append(ticket)
        elif len(ticket.row.sequence) - ticket.kv.length < BEHIND:
            self._loop.join(ticket)
        else:
            self._prefill.add(ticket, begun=True)

    def step(self) -> list[Event]:
        """One step of all rows that run, and a piece of a prompt that waits.

        What goes wrong in one sequence is its event; what goes wrong with the model is raised,
        and so is an interrupt: then what had happened before it comes with the next step.
        """
        self._steps += 1
        events = self._events
        self._admit(events)
        self._make_room(events)
        ran = self._loop.step()
        self._pace.saw(time.perf_counter(), self._fed, ran=bool(ran))
        for outcome in ran:
            events += self._became(*outcome)
        if self._send_back():
            self._make_room(events)
        self._fed = 0
        if len(self._prefill):
            self._run_prompts(self._pace.next() if self._loop.seats else PREFILL_STEP)
        self._events = []
        return events

    def close(self) -> None:
        """Drop every sequence; the prefix cache stays with the model."""
        for ticket in self._everywhere:
            self.cancel(ticket)

    @property
    def room(self) -> int:
        """How many sequences ``submit`` would take now."""
        return self.limits.max_queue + self._free_places - len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._loop.seats or len(self._prefill) or self._queue)

    def stats(self) -> Stats:
        """Numbers for metrics and tests."""
        sums = dict(self._sums)
        for ticket in self._everywhere:
            _add(sums, ticket)
        return Stats(
            running=len(self._loop.seats),
            prefilling=len(self._prefill),
            queued=len(self._queue) + len(self._parked),
            kv_bytes=self._kv_bytes(),
            cache_bytes=self.cache.nbytes if self.cache is not None else 0,
            byte_limit=self.byte_limit,
            cache_hits=self._prefill.hits,
            cache_misses=self._prefill.misses,
            preempted=self._preempted,
            steps=self._steps,
            **sums,
        )

    def check_integrity(self) -> None:
        """Assert the invariants; for tests."""
        self._loop.check_integrity()
        everywhere = self._everywhere
        assert len(set(everywhere)) == len(everywhere)
        assert not any(ticket.closed for ticket in everywhere)
        self._prefill.check_integrity()
        held = self._kv_bytes() + (self.cache.nbytes if self.cache is not None else 0)
        assert held <= self.byte_limit, (held, self.byte_limit)

    # ---- who runs --------------------------------------------------------------------------

    @property
    def _everywhere(self) -> list[Ticket]:
        return [*self._loop.seats, *self._prefill, *self._queue, *self._parked]

    @property
    def _waiting(self) -> int:
        return max(0, len(self._queue) - self._free_places)

    @property
    def _free_places(self) -> int:
        taken = len(self._loop.seats) + len(self._prefill)
        return max(0, self.limits.max_batch - taken)

    def _admit(self, events: list[Event]) -> None:
        """Let those in front of the queue begin, as far as there are places and bytes."""
        while self._queue and self._free_places:
            ticket = self._queue[0]
            if not self._fits(ticket):
                break
            try:
                begins = ticket.start()
            except Exception as error:
                self._queue.popleft()
                self._close(ticket)
                events.append(Event(ticket, [], error))
                continue
            self._queue.popleft()
            ended = ticket.row.finish_reason is not None
            if (begins or ended) and (chunks := ticket.take()):
                events.append(Event(ticket, chunks))
            if ticket.row.finish_reason is not None:
                self._close(ticket)
                continue
            self._prefill.add(ticket)

    def _fits(self, ticket: Ticket) -> bool:
        """Whether a sequence could be prefilled and run now; makes room in the prefix cache."""
        needed = self._needed_soon(ticket)
        if needed > self.byte_limit:
            return not (self._loop.seats or len(self._prefill))
        self._shrink_cache(self.byte_limit - needed)
        return True

    def _make_room(self, events: list[Event]) -> None:
        """See to it that every row can grow; the last one to come goes back to the queue."""
        while True:
            needed = self._needed_soon()
            if needed <= self.byte_limit:
                self._shrink_cache(self.byte_limit - needed)
                return
            self._shrink_cache(0)
            if self._drop_parked():
                continue
            rows = [*self._loop.seats, *self._prefill]
            if len(rows) == 1:
                if rows[0].slot is not None:  # alone it needs no more than its own
                    self._loop.take_alone(rows[0])
                    continue
                self._fail_for_room(rows[0], events)
                return
            if not rows:
                return
            last = rows[-1]
            self._take_out(last)
            self._preempt(last)
            self._queue.appendleft(last)

    def _drop_parked(self) -> bool:
        """Free the KV of the sequence that came to rest last, if one has any."""
        for ticket in reversed(self._parked):
            if ticket.kv.length:
                self._preempt(ticket)
                return True
        return False

    def _preempt(self, ticket: Ticket) -> None:
        """Free a sequence's KV: all of it is run again when it takes part again."""
        ticket.row.sequence.kv = KV(self._make)
        ticket.logits = ticket.guess = None
        self._preempted += 1

    def _needed_soon(self, *more: Ticket) -> int:
        """Bytes of all KV a few steps from now, when what is prefilled has joined the others."""
        alone = 0
        now: list[int] = []  # lengths of those that may join the slots in the next step
        later: list[int] = []
        slots = self._loop.slots
        for ticket in [*self._loop.seats, *self._prefill, *more]:
            length = len(ticket.row.sequence)
            if ticket.row.drafter is not None:
                alone += ticket.row.drafter.nbytes_at(length + HEADROOM)
            if ticket.slot is None:
                alone += self._footprint.alone(length + HEADROOM)
                begun = ticket.kv.length > 0 and ticket not in self._prefill
                (now if begun else later).append(length)
        together = 0
        if slots is not None:  # fewer may suit each other where more would not
            together = max(
                slots.nbytes_with(self._footprint, joining, HEADROOM)
                for joining in (now, [*now, *later])
            )
        return alone + together + sum(ticket.kv.nbytes for ticket in self._parked)

    def _fail_for_room(self, ticket: Ticket, events: list[Event]) -> None:
        if self._footprint.alone(len(ticket.row.sequence) + 1) <= self.byte_limit:
            return
        self._take_out(ticket)
        events.append(
            Event(
                ticket,
                [],
                CapacityError(
                    f"the KV cache of {len(ticket.row.sequence)} tokens does not fit "
                    f"max_bytes={self.byte_limit:,}; give a smaller max_tokens or raise the limit"
                ),
            )
        )
        self._close(ticket)

    def _take_out(self, ticket: Ticket) -> None:
        """From wherever it is; a place in the slots is free then."""
        if ticket in self._loop.seats:
            self._loop.leave(ticket)
        elif ticket in self._prefill:
            self._prefill.remove(ticket)
        elif ticket in self._queue:
            self._queue.remove(ticket)
        elif ticket in self._parked:
            self._parked.remove(ticket)

    def _became(
        self, ticket: Ticket, chunks: list[Chunk], error: Exception | None = None
    ) -> list[Event]:
        """What a sequence came to, as events; one that has ended gives back what it holds."""
        if error is not None or ticket.row.finish_reason is not None:
            if error is None and ticket.row.finish_reason != "cancelled":
                self._keep(ticket)
            self._take_out(ticket)
            self._close(ticket)
        return [Event(ticket, chunks, error)] if chunks or error is not None else []

    def _close(self, ticket: Ticket) -> None:
        _add(self._sums, ticket)
        ticket.close()

    def _run_prompts(self, budget: int) -> None:
        """Run up to ``budget`` tokens of those that are prefilled; who is done joins the loop."""
        fed, done = self._prefill.step(budget)
        self._fed += fed
        for ticket in done:
            self._loop.join(ticket)
            self._keep(ticket)

    def _send_back(self) -> bool:
        """Rows that have much to run again, say after a long rewind, do so between the steps."""
        behind = [t for t in self._loop.seats if self._loop.is_behind(t) and t.logits is None]
        for ticket in behind:
            self._loop.take_alone(ticket)
            self._loop.leave(ticket)
            self._prefill.add(ticket, begun=ticket.kv.length > 0)
        return bool(behind)

    def _keep(self, ticket: Ticket) -> None:
        self._prefill.keep(ticket, self.byte_limit - self._needed_soon())

    # ---- bytes -----------------------------------------------------------------------------

    def _kv_bytes(self) -> int:
        slots = self._loop.slots
        total = slots.nbytes if slots is not None else 0
        for ticket in [*self._loop.seats, *self._prefill, *self._parked]:
            kv = ticket.row.sequence.kv
            if isinstance(kv, KV):
                total += kv.nbytes
            if ticket.row.drafter is not None:
                total += ticket.row.drafter.nbytes
        return total

    def _shrink_cache(self, to: int) -> None:
        if self.cache is not None and self.cache.nbytes > to:
            self.cache.shrink(max(0, to))


def _add(sums: dict[str, int], ticket: Ticket) -> None:
    usage = ticket.usage
    for name in _SUMS:
        sums[name] += getattr(usage, name)
