"""The step loop: all requests that generate, one or many, through the model together.

Owns the order of a step: forward, masks meanwhile, sample, look-ahead forward, the one host
synchronisation, accept. Must never decide what a token means (the request does), nor who may
join (the scheduler does). Invariant: before a pass every KV cache that takes part is aligned to
its request's history, and a draw is from the logits behind that.

A request alone runs with the caches of its own and their fast attention path. Several go through
together in slots, where the model allows it; a request that it does not allow it for runs next
to them. Whatever a request has pending beyond one token (a forced run, a rewind that a recurrent
layer could not follow) goes ahead of the common pass, so that no request waits for another's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import mlx.core as mx

from ...errors import MlxgenError
from ...filters import fill_masks
from ...sampling import DrawRow, Sampler, Want
from ...tokens import Token
from ..kv.commands import Clear
from ..request.accept import rewind
from ..request.drawing import blind_draw, next_draw, warm
from ..speculation.guess import Guess
from .accepting import Event, accept_draws
from .drawn import Drawn
from .fault import Fault
from .passes import Passes, Work
from .plan import Standing, StepPlan
from .runner import Runner
from .seat import Seat, logits_of

SORTED_DRAWS = 16  # draws that sort the vocabulary at once, after one whose candidates fell short
CLEAR_EVERY = 256  # steps between two releases of MLX's buffer cache


class Loop:
    """The requests of one model that generate: see the module."""

    __slots__ = (
        "_blind",
        "_owed",
        "_sampler",
        "_steps",
        "_stopped",
        "longest_run",
        "passes",
        "runner",
        "seats",
    )

    def __init__(self, runner: Runner, sampler: Sampler) -> None:
        self.seats: list[Seat] = []  # those in slots first, in the order of these
        self.runner = runner
        self.passes = Passes(runner)
        self._sampler = sampler
        self._blind: Drawn | None = None  # submitted already
        # Pending tokens up to which a request is run here, and not left for a scheduler to prefill
        self.longest_run: int | None = None
        self._owed: list[Event] = []  # of a step that was interrupted
        self._stopped: set[Seat] = set()  # ended or failed
        self._steps = 0

    def alike(self) -> Loop:
        """An empty loop for the same model."""
        return Loop(self.runner, self._sampler)

    def join(self, seat: Seat) -> None:
        """Let a seat take part from the next step on."""
        self._stopped.discard(seat)
        if seat not in self.seats:
            self.seats.append(seat)

    def leave(self, seat: Seat) -> None:
        """Take a seat out; what it holds in the slots is freed."""
        self.seats.remove(seat)
        self._stopped.discard(seat)
        if seat.slot is not None:
            seat.kv.restart()
            self._in_order()

    def take_alone(self, seat: Seat) -> None:
        """Give a seat that is in the slots caches of its own."""
        if seat.slot is not None:
            seat.kv.leave()
            self._in_order()

    def rewind(self, seat: Seat, target: int, seen: int | None = None) -> None:
        """Have one that takes part go back, ended or failed or not."""
        rewind(seat.request, target, seen)
        self._stopped.discard(seat)

    def step(self) -> list[Event]:
        """Draw once for every seat that has logits; errors of one are its own outcome.

        What goes wrong with the model itself is raised as a ``Fault``, and an interrupt as it
        is; then every seat stands where its history ends, and what the others came to is kept
        for the next call. A fault that may be anybody's leaves nothing on the device.
        """
        events, self._owed = self._owed, []
        try:
            self._start(events)
            if not events:
                self._step(events)
        except Exception as error:
            fault = Fault.of(error)
            self._halt(events)
            if fault.seat is None:
                self.restart()
            raise fault from fault.cause
        except BaseException:
            self._halt(events)
            raise
        self._stopped.update(o.ticket for o in events if o.error or o.ticket.request.finish_reason)
        self._steps += 1
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()
        return events

    def owed(self) -> list[Event]:
        """What the seats had come to in a step that did not get to its end; only once."""
        events, self._owed = self._owed, []
        return events

    def restart(self) -> None:
        """Drop all that is on the device: what every seat has run is to be run again."""
        if self.runner.slots is not None:
            self.runner.do(Clear())
        for seat in self.seats:
            seat.restart()
        self._blind = None

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        for seat in self.seats:
            if seat not in self._stopped:
                seat.check_integrity()
        inside = [seat.slot for seat in self.seats if seat.slot is not None]
        assert [slot.index for slot in inside] == list(range(len(inside)))
        if self.runner.slots is not None:
            self.runner.slots.check_integrity()

    # one step

    def _halt(self, events: list[Event]) -> None:
        """Have every seat stand where its history ends, in the middle of a step."""
        for seat in self.seats:
            try:
                seat.forget()
            except Exception as error:
                events.append(Event(seat, [], error))
        self._in_order()
        self._owed = events
        self._stopped.update(o.ticket for o in events if o.error or o.ticket.request.finish_reason)

    def _start(self, events: list[Event]) -> None:
        """Begin new requests: with what filters force, or with an end before anything is drawn."""
        new = []
        for seat in self.seats:
            if seat in self._stopped:
                continue
            try:
                if seat.start():
                    new.append(seat)
            except Exception as error:
                events.append(Event(seat, seat.take(), error))  # what it forced before
        for seat in new:
            if chunks := seat.take():
                events.append(Event(seat, chunks))
        if new and events:  # these are out before the model has run
            self._forward([seat for seat in new if seat.request.finish_reason is None])

    def _step(self, events: list[Event]) -> None:
        """Plan, submit, read, accept, and have masks and the next pass begin."""
        seats = [seat for seat in self.seats if seat not in self._stopped]
        self._align(seats)
        self._gather()
        plan = StepPlan.of([self._standing(seat) for seat in seats])
        if plan.first:
            self._forward([seats[i] for i in plan.first])
        beside = [seats[i] for i in plan.beside]
        drawn, places = self._draw([seats[i] for i in plan.drawn], events)
        if drawn is None:
            self._forward(beside)
            return
        blind = self._look_ahead(list(places), drawn, beside) if plan.looks else None
        tokens = drawn.tokens()  # the one time that the host waits
        for seat, place in places.items():
            events.append(self._accept(seat, tokens, drawn, place))
        arrived = [seat.arrive() for seat in (*places, *beside)]
        if plan.looks and all(arrived):
            self._blind = blind
        else:
            self._catch_up(seats, events, looked=plan.looks)
        self._warm(seats)

    def _catch_up(self, seats: list[Seat], events: list[Event], *, looked: bool) -> None:
        """Run those without logits, unless they can do so beside the next look-ahead."""
        failed = {event.ticket for event in events if event.error is not None}
        going = [s for s in seats if s.request.finish_reason is None and s not in failed]
        if not looked or not any(seat.is_ready for seat in going):
            self._forward([seat for seat in going if not seat.is_ready])

    def _standing(self, seat: Seat) -> Standing:
        request, waits = seat.request, bool(seat.pending)
        behind = waits and self.is_behind(seat)
        return Standing(not waits, behind, request.is_last, _drafts(seat), request.expects_forced)

    def _accept(self, seat: Seat, tokens: list[Token], drawn: Drawn, place: int) -> Event:
        if drawn.inexact(place):
            seat.flat = SORTED_DRAWS
        elif seat.flat:
            seat.flat -= 1
        return accept_draws(seat, tokens, drawn, place)

    # drawing

    def _draw(self, ready: list[Seat], events: list[Event]) -> tuple[Drawn | None, dict[Seat, int]]:
        """Submit a draw for every seat that has one left; the others are events.

        With the draw comes where each seat's is in it: the first one, where it has several.
        """
        submitted, self._blind = self._blind, None
        if submitted is not None and _still_stands(submitted, ready):
            return submitted, {seat: i for i, seat in enumerate(ready)}
        requests: list[DrawRow] = []
        places: dict[Seat, int] = {}
        for seat in ready:
            _read(seat)
            try:
                if seat.guess is not None:
                    seat.guess.look(seat.request)
                    own = seat.guess.requests
                else:
                    own = [next_draw(seat.request)]
            except Exception as error:
                seat.forget()
                events.append(Event(seat, seat.take(), error))  # with what is due
                continue
            places[seat] = len(requests)
            requests += own
        if not places:
            return None, places
        want = Want.common([seat.request.want for seat in places])
        exact = 2 * sum(seat.flat > 0 for seat in places) > len(places)
        logits = logits_of(places)
        return Drawn(self._sampler, logits, requests, want, exact=exact), places

    def _warm(self, seats: Sequence[Seat]) -> None:
        """Compute the masks of the next position while the model runs."""
        if len(seats) == 1 and seats[0].guess is None:
            warm(seats[0].request)
            return
        for seat in seats:
            _read(seat)
            if seat.guess is not None:
                with contextlib.suppress(Exception):  # raised again by the draw that needs it
                    seat.guess.look(seat.request)
        constraints = [
            seat.request.constraint
            for seat in seats
            if seat.request.constraint is not None and seat.request.finish_reason is None
        ]
        if constraints:
            fill_masks(constraints)

    # running the model

    def _look_ahead(self, ready: list[Seat], drawn: Drawn, idle: list[Seat]) -> Drawn | None:
        """Submit the pass behind tokens that are not known yet, with what others have pending.

        Returns the next draw, where nothing that the host decides goes into it.
        """
        work = []
        for i, seat in enumerate(ready):
            store, request = seat.kv.store, seat.request
            in_vain = request.is_last or (request.may_decline and not store.can_undo(1))
            if seat.slot is None and in_vain:
                continue
            work.append(Work(seat, [drawn.later(i)]))
        arrays = self.passes.run([*work, *map(Work.pending, idle)])
        requests = [] if idle or len(arrays) != 1 else self._blind_requests(ready)
        if not requests:
            mx.async_eval(arrays)
            return None
        want = Want.common([seat.request.want for seat in ready])
        return Drawn(self._sampler, arrays[0], requests, want)

    def _blind_requests(self, ready: Sequence[Seat]) -> list[DrawRow]:
        """The draws behind the next ones; none where one of them depends on what that gives."""
        requests = []
        for seat in ready:
            draw = blind_draw(seat.request) if not seat.flat and seat.ahead else None
            if draw is None:
                return []
            requests.append(draw)
        return requests

    def _forward(self, seats: Sequence[Seat]) -> None:
        """Run what is pending, and drafts behind it; the logits are submitted."""
        seats = [seat for seat in seats if not self.is_behind(seat)]
        self._align(seats)
        for seat in seats:
            self._propose(seat)
        if seats:
            mx.async_eval(self.passes.run([Work.pending(seat) for seat in seats]))
        for seat in seats:
            seat.arrive()

    def _propose(self, seat: Seat) -> None:
        """Have tokens drafted behind what a seat has pending."""
        request = seat.request
        if seat.drafter is None or not request.may_draft:
            return
        count = min(seat.appetite.wanted(request.position), request.budget - request.position - 1)
        if count <= 0:
            return
        try:
            proposal = seat.drafter.propose(request, count)
        except MlxgenError:  # of its filters: raised again by the draw
            return
        except Exception as error:
            raise Fault(error, seat) from error
        if proposal is not None:
            seat.guess = Guess(proposal)

    # who is where

    def _gather(self) -> None:
        """Take requests into the slots, as soon as there are several that suit each other."""
        slots = self.runner.slots
        if slots is None or len(self.seats) < 2:
            return
        alone = [
            seat
            for seat in self.seats
            if seat.slot is None and seat.kv.length and seat not in self._stopped
        ]
        if not alone:
            return
        lengths = [len(seat.history) for seat in alone]
        longest = slots.in_the_way(min(lengths))
        if longest is not None:
            self.take_alone(next(seat for seat in self.seats if seat.slot is longest))
        joining = slots.suitable(lengths)
        for i in joining:
            try:
                alone[i].kv.join()
            except Exception as error:
                raise Fault(error, alone[i]) from error
        if joining:
            self._in_order()

    def is_behind(self, seat: Seat) -> bool:
        """Whether a seat has more to run than goes between two steps of the others."""
        return self.longest_run is not None and seat.missing > self.longest_run

    def _align(self, seats: Sequence[Seat]) -> None:
        """Align every cache, all before any pass: a slot can take back its last one only.

        Rows that went back further than their slot can are taken out of the slots.
        """
        for seat in seats:
            seat.align()
        for seat in seats:
            if seat.slot is not None and not seat.slot.length:
                self.take_alone(seat)

    def _in_order(self) -> None:
        count = len(self.seats)
        self.seats.sort(key=lambda seat: count if seat.slot is None else seat.slot.index)


def _drafts(seat: Seat) -> bool:
    """Whether tokens are about to be drafted behind the next one."""
    request = seat.request
    return (
        seat.drafter is not None
        and request.may_draft
        and not request.is_last
        and seat.appetite.wanted(request.position + 1) > 0
    )


def _read(seat: Seat) -> None:
    """Wait for what is drafted: what this raises is not the request's."""
    if seat.guess is not None and not seat.guess.free:
        _ = seat.guess.tokens


def _still_stands(drawn: Drawn, ready: Sequence[Seat]) -> bool:
    """Whether a draw that was submitted before is the one that is due for these."""
    return len(drawn.requests) == len(ready) and all(
        seat.logits is not None
        and seat.logits.array is drawn.logits
        and seat.logits.places[0] == i
        and (request.seed, request.position, request.attempt)
        == (seat.request.seed, seat.request.position, seat.request.attempt)
        for i, (seat, request) in enumerate(zip(ready, drawn.requests, strict=True))
    )
