"""The step loop: all requests that generate, one or many, through the model together.

Owns the order of a step: forward, masks meanwhile, sample, look-ahead forward, the one host
synchronisation, accept. Must never decide what a token means (the request does), nor who may
join (the scheduler does). Invariant: before a pass every KV cache that takes part is aligned to
its request's history, and a draw is from the logits after it.

Requests go through together in slots, if the model allows it; otherwise one after the other.
Whatever a request has pending beyond one token (a forced run, a rewind that
a recurrent layer could not follow) goes through in the common passes, as many tokens at a time as
make no request wait for another's; it is drawn again when all of it went through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from operator import attrgetter

import mlx.core as mx

from ...filters import fill_masks
from ...sampling import DrawRow, Sampler, Want
from ...workers import Work as Check
from ..kv import Later
from ..kv.commands import Clear
from ..request.leads import free_draws, next_draw
from .drawn import Drawn, Event, accept_draws
from .handle import Handle, logits_of
from .pace import Clock, Pace
from .passes import FEW, Passes, Work
from .runner import Fault, Runner
from .timeline import Watch

PATIENCE = 0.05  # seconds to wait for a check, if there is nothing else to do
CLEAR_EVERY = 256  # steps between two releases of MLX's buffer cache


class Loop:
    """The requests of one model that generate: see the module."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        pace: Pace | None = None,
        *,
        longest_run: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.handles: list[Handle] = []
        self.behind: list[Handle] = []  # they have more to run than goes between two steps
        self.runner = runner
        self.clock = Clock(pace or Pace(), runner, watch)
        self.passes = Passes(runner, self.clock)
        self._sampler = sampler
        self._blind: Drawn | None = None  # submitted already
        # Pending tokens up to which a request is run here, and not left for a scheduler to prefill
        self.longest_run = longest_run
        self._steps = 0
        self._plain_step = 0.0  # seconds of one without drafts, of as many rows as now
        self._looked = False  # whether the last step did
        self._drafted = False  # whether the time of the next one counts for a drafter
        self._beside: set[Handle] = set()  # those that ran beside the look-ahead of the last step

    def join(self, handle: Handle) -> None:
        """Let a handle take part from the next step on."""
        self.handles.append(handle)
        self.clock.skip()

    def gather(self, handles: list[Handle]) -> None:
        """Let these take part from the next step on, and no others."""
        for handle in handles:
            if handle not in self.handles:
                self.join(handle)
        self.handles = handles

    def leave(self, handle: Handle) -> None:
        """Take a handle out; it keeps what it holds."""
        self.handles.remove(handle)

    def step(self, events: list[Event]) -> None:
        """Draw once for every handle that has logits; what comes of each is added to ``events``.

        That may be an error of one. What goes wrong with the model itself is raised as a
        ``Fault``, which leaves nothing on the device, and an interrupt as it is; then every handle
        stands where its history ends.
        """
        handles: list[Handle] = []
        new: list[Handle] = []
        waits: Check | None = None
        for handle in self.handles:
            request = handle.request
            if request.finish_reason is not None:
                continue
            if request.checking is not None and not request.checking.is_over:
                waits = request.checking
                continue
            handles.append(handle)
            if handle.started is None:
                new.append(handle)
        self.behind = []
        if waits is not None and not handles:
            waits.wait(PATIENCE)
            return
        timeline = self.clock.timeline
        if timeline is not None:
            timeline.begin(self.handles)
        try:
            if new:
                self._start(new, events)
            if not events:
                self._step(handles, events)
        except Exception as error:
            fault = Fault.of(error)
            self._halt(events)
            self.restart()
            raise fault from fault.cause
        except BaseException:
            self._halt(events)
            raise
        finally:
            if timeline is not None:
                timeline.end(self.handles, events)
        self._steps += 1
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()

    def draw_anew(self) -> None:
        """Forget a draw that was submitted, because it is to be made otherwise."""
        self._blind = None

    def restart(self) -> None:
        """Drop all that is on the device after a fault: what every handle has run is to be run
        again."""
        self.runner.do(Clear())
        for handle in self.handles:
            handle.distrust()
        self._blind = None
        self.clock.skip()
        if self.clock.timeline is not None:
            self.clock.timeline.lost()

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        for handle in self.handles:
            if not handle.has_ended:
                handle.check_integrity()
        self.runner.slots.check_integrity()

    # one step

    def _halt(self, events: list[Event]) -> None:
        """Have every handle stand where its history ends, in the middle of a step."""
        for handle in self.handles:
            try:
                handle.forget()
            except Exception as error:
                events.append(Event(handle, [], error))

    def _start(self, handles: list[Handle], events: list[Event]) -> None:
        """Begin new requests: with what filters force, or with an end before anything is drawn."""
        new = []
        for handle in handles:
            try:
                handle.start()
                new.append(handle)
            except Exception as error:
                events.append(Event(handle, handle.take(), error))  # what it forced before
        for handle in new:
            if chunks := handle.take():
                events.append(Event(handle, chunks))
        if new and events:  # these are out before the model has run
            self._forward([handle for handle in new if not handle.has_ended])

    def _step(self, handles: list[Handle], events: list[Event]) -> None:
        """Plan, submit, read, accept, and have masks and the next pass begin."""
        timeline, rows = self.clock.timeline, len(self.handles)
        plain_step = self._plain_step = self.clock.pace.step(rows)
        self._align(handles)
        if timeline is not None:
            timeline.did("align")
        ready: list[Handle] = []
        idle: list[Handle] = []
        drafting: set[Handle] = set()  # those that have or get a draft after the next token
        # First tokens are out before anything else is submitted: MLX lets few tasks wait, so a pass
        # is submitted only when most of it has been run
        opens = True
        for handle in handles:
            request, drafts = handle.request, handle.drafts
            if not handle.pending:
                ready.append(handle)
            elif self._runs_here(handle):
                idle.append(handle)
            else:
                continue
            # If drafts are on their way, it is not known where these end
            if handle.guess is not None or (
                drafts.drafters and drafts.expects(request, rows, plain_step)
            ):
                drafting.add(handle)
            opens = opens and request.position <= request.first
        if idle and (opens or not ready):
            self._forward(idle)
            ready, idle = [each for each in (*ready, *idle) if not each.pending], []
            self._align(ready)
        looks = not opens and _looks_ahead(ready, drafting)
        if timeline is not None:
            timeline.did("plan")
        drawn, places = self._draw(ready, events)
        if timeline is not None:
            timeline.did("draw")
        if drawn is None:
            self._forward(idle)
            return
        # After a step of the other kind, a pass was submitted earlier or later than it is here
        plain = looks == self._looked and not self._drafted
        beside, self._beside, self._drafted = self._beside, set(idle) if looks else set(), False
        blind = self._look_ahead(places, drawn, idle, drafting) if looks else None
        if timeline is not None:
            timeline.did("look ahead")
        tokens = drawn.tokens()  # the one time that the host waits
        if timeline is not None:
            timeline.did("wait")
        self._looked = looks
        seconds = self.clock.read(rows, drawn.after, plain=plain)
        for handle, place in places.items():
            events.append(accept_draws(handle, tokens, drawn, place))
            if handle.drafts.turn is not None:
                steps, goes_on = 2 if handle in beside else 1, handle.guess is not None
                handle.drafts.took(steps * seconds, plain_step, goes_on=goes_on)
                self._drafted |= goes_on
        if timeline is not None:
            timeline.did("accept")
        arrived: set[Handle] = set()
        for handle in (*places, *idle):
            if handle.arrive():
                arrived.add(handle)
        if looks and len(arrived) == len(places) + len(idle):
            self._blind = blind
        elif not opens:
            # Those without logits run, unless they can do so beside the next look-ahead
            failed = {event.handle for event in events if event.error is not None}
            waiting, going = [], 0
            for handle in handles:
                if handle.request.finish_reason is None and handle not in failed:
                    going += 1
                    if handle not in arrived and not handle.is_ready:
                        waiting.append(handle)
            if not looks or len(waiting) == going:
                self._forward(waiting)
        self._warm(handles)
        if timeline is not None:
            timeline.did("masks")

    # drawing

    def _draw(
        self, ready: list[Handle], events: list[Event]
    ) -> tuple[Drawn | None, dict[Handle, int]]:
        """Submit a draw for every handle that has one left; the others are events.

        With the draw comes where each handle's is in it: the first one, if it has several.
        """
        submitted, self._blind = self._blind, None
        if submitted is not None and (due := submitted.due(ready)):
            return submitted, due
        requests: list[DrawRow] = []
        places: dict[Handle, int] = {}
        for handle in ready:
            guess = handle.guess
            if guess is not None and not guess.free:
                _ = guess.tokens  # what this raises is not the request's
            try:
                if guess is None or handle.asks_each:
                    own = [next_draw(handle.request)]
                else:
                    guess.look(handle.request)
                    own = guess.draws
            except Exception as error:
                handle.forget()
                events.append(Event(handle, handle.take(), error))  # with what is due
                continue
            places[handle] = len(requests)
            requests += own
        return (self._drawn(logits_of(places), places, requests) if places else None), places

    def _drawn(
        self, logits: mx.array, handles: Collection[Handle], requests: Sequence[DrawRow]
    ) -> Drawn:
        """Submit the draws of these handles, each of which may have several."""
        wants, flat = [], 0
        for handle in handles:
            wants.append(handle.request.want)
            flat += handle.flat > 0
        return Drawn(
            self._sampler,
            logits,
            requests,
            Want.common(wants) if len(wants) > 1 else wants[0],
            exact=2 * flat > len(wants),
            here=self.runner,
            after=self.clock.submitted,
        )

    def _warm(self, handles: Sequence[Handle]) -> None:
        """Compute the masks of the next position while the model runs."""
        constraints = []
        for handle in handles:
            request, guess = handle.request, handle.guess
            if guess is not None and not guess.draws:
                _ = guess.tokens
                with contextlib.suppress(Exception):  # raised again by the draw that needs it
                    guess.look(request)
            if request.constraint is not None and request.finish_reason is None:
                constraints.append(request.constraint)
        if constraints:
            fill_masks(constraints)

    # running the model

    def _look_ahead(
        self,
        places: dict[Handle, int],
        drawn: Drawn,
        idle: list[Handle],
        drafting: Collection[Handle],
    ) -> Drawn | None:
        """Submit the pass after tokens that are not known yet, with what others have pending.

        Those that something is drafted for wait until it is known, and run beside the next one.
        Returns the next draw, if nothing that the host decides goes into it.
        """
        work: list[Work] = []
        alone = not idle  # whether what comes next is drawn of these, and depends on nothing else
        for handle, place in places.items():
            request, kv = handle.request, handle.kv
            declines = request.may_decline
            # A pass after the next token would be lost, or could not be undone exactly
            ends = request.position + 1 >= request.budget and len(kv.slot.group.members) == 1
            vain = ends or (declines and not kv.slot.can_undo(1))
            if vain or handle in drafting:
                alone = False
            else:
                work.append(Work(handle, [Later(drawn, place)]))
                alone = alone and not (handle.flat or declines)
        if idle:
            self._propose(idle)
        arrays = self.passes.run([*work, *map(Work.pending, idle)])
        if alone and len(places) < len(self.handles):
            alone = not any(h.is_ready for h in self.handles if h not in places)
        draws: list[list[DrawRow]] = []
        if alone:
            for handle in places:
                draws.append(free_draws(handle.request, 1, after=1))
        return self._submit(arrays, list(places), draws)

    def _forward(self, handles: list[Handle]) -> None:
        """Run what is pending, and drafts after it; the logits are submitted, with the draws from
        them if these depend on nothing else."""
        self._align(handles)
        handles = [handle for handle in handles if self._runs_here(handle)]
        if not handles:
            return
        self._propose(handles)
        arrays = self.passes.run([Work.pending(handle) for handle in handles])
        if self.clock.timeline is not None:
            self.clock.timeline.did("run", requests=len(handles))
        arrived = [handle.arrive() for handle in handles]
        draws: list[list[DrawRow]] = []
        if all(arrived):
            for handle in handles:
                guess = handle.guess
                free = guess is not None and guess.free and not handle.asks_each
                draws.append(guess.draws if guess is not None and free else [])
        self._blind = self._submit(arrays, handles, draws) or self._blind

    def _submit(
        self, arrays: list[mx.array], handles: Sequence[Handle], draws: Sequence[list[DrawRow]]
    ) -> Drawn | None:
        """Submit the logits of a pass, or the draws from them if all are known."""
        if all(draws) and len(arrays) == 1:
            requests: list[DrawRow] = []
            for own in draws:
                requests += own
            if requests and arrays[0].shape[0] == len(requests):
                return self._drawn(arrays[0], handles, requests)
        mx.async_eval(arrays)
        return None

    # drafting

    def _propose(self, handles: list[Handle]) -> None:
        """Have tokens drafted after what these have pending."""
        rows = len(self.handles)
        for handle in handles:
            if not handle.drafts.drafters:
                continue
            guess = handle.guess = handle.drafts.propose(handle.request, rows, self._plain_step)
            if guess is not None and self.clock.timeline is not None:
                self.clock.timeline.did("draft", drafter=guess.drafter, tokens=len(guess.fed))
            self._drafted |= handle.drafts.turn is not None

    def _runs_here(self, handle: Handle) -> bool:
        """Whether what a handle has pending goes between two steps; else it is ``behind``."""
        if self.longest_run is not None and len(handle.pending) > self.longest_run:
            self.behind.append(handle)
            return False
        return True

    def _align(self, handles: list[Handle]) -> None:
        """Align every cache, all before any pass: a slot can take back its last one only. Then the
        handles are in the order of their slots, as their logits will be."""
        for handle in handles:
            history, length = handle.history, handle.kv.slot.length
            if handle.stands != (history.moment, length) or len(history) != length:
                handle.align()
        if len(handles) > 1:
            handles.sort(key=_PLACE)


_PLACE = attrgetter("kv.slot.group.number", "kv.slot.index")  # of a handle


def _looks_ahead(drawn: Sequence[Handle], drafting: Collection[Handle]) -> bool:
    """Whether to submit the next pass before the tokens of these are known.

    Drafts are made from tokens that are known, so not if half of the rows or more are drafted for.
    If most rows are about to be fast-forwarded, token and forced run rather go through in one pass
    after the draw, unless there are more than a ``FEW`` rows.
    """
    drafted, forced, last = 0, 0, True
    for handle in drawn:
        request = handle.request
        drafted += handle in drafting
        if request.appends_forced or request.steering is not None or request.thinking is not None:
            forced += request.expects_forced
        last = last and request.position + 1 >= request.budget
    if drafted and 2 * drafted >= len(drawn):
        return False
    return not last and (len(drawn) > FEW or 2 * forced <= len(drawn) - len(drawn) % 2)
