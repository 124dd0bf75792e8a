"""The step loop: all requests that generate, one or many, go through the model together.

Owns the order of a step: forward, masks meanwhile, sample, look-ahead forward, the one host
synchronisation, accept. Must never decide what a token means (the request does), nor who may join
(the scheduler does). Invariant: before a pass, every KV cache in it is aligned to its request's
history, and a draw is from the logits at the end of that history.

If a request has more than one token pending (a forced run, a rewind that a recurrent layer could
not follow), they go through in the common passes, as many at a time as make no other request wait;
it draws again once all of them have run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from operator import attrgetter

import mlx.core as mx

from ...filters import fill_masks
from ...sampling import DrawRow, Sampler, Want
from ..kv.commands import Free
from ..kv.held import Later
from ..kv.runner import Fault, Runner
from ..request.leads import free_draws, next_draw
from .drawn import Drawn, Event, accept_draws
from .handle import Handle, logits_of
from .pace import Clock, Pace
from .passes import FEW, Passes, Work
from .timeline import Watch

PATIENCE = 0.05  # seconds to wait for a check, if there is nothing else to do
CLEAR_EVERY = 256  # steps between two releases of MLX's buffer cache


class Loop:
    """The requests of one model that generate: see the module. Those with more than ``longest_run``
    pending tokens are left out of its steps, for a scheduler to prefill."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        pace: Pace | None = None,
        *,
        longest_run: int = 1 << 40,
        watch: Watch | None = None,
    ) -> None:
        self.handles: list[Handle] = []
        self.runner = runner
        self.clock = Clock(pace or Pace(), runner, watch)
        self.passes = Passes(runner, self.clock)
        self._sampler = sampler
        self._longest_run = longest_run
        # The next draw, if it is submitted already, with the row of each handle's first draw
        self._submitted: tuple[Drawn, dict[Handle, int]] | None = None
        self._steps = 0
        self._plain_step = 0.0  # seconds of a step without drafts, at the present number of rows
        self._looked = False  # whether the last step looked ahead

    def join(self, handle: Handle) -> None:
        """Let a handle take part from the next step on."""
        self.handles.append(handle)
        self.clock.skip()

    def gather(self, handles: list[Handle]) -> None:
        """Let exactly these handles take part from the next step on."""
        for handle in handles:
            if handle not in self.handles:
                self.join(handle)
        self.handles = handles

    def draw_anew(self) -> None:
        """Forget a submitted draw, because it has to be made differently."""
        self._submitted = None

    def restart(self) -> None:
        """Drop everything on the device after a fault: every handle has to run its history anew."""
        self.runner.do(Free())
        for handle in self.handles:
            handle.distrust()
        self._submitted = None
        self.clock.skip()
        if self.clock.timeline is not None:
            self.clock.timeline.lost()

    def step(self, events: list[Event]) -> None:
        """Draw once for every handle that has logits; appends each handle's outcome to ``events``.

        That may be an error of one handle. A failure of the model itself is raised as a ``Fault``,
        which leaves nothing on the device, and an interrupt as it is; then every handle stands
        where its history ends.
        """
        handles: list[Handle] = []
        check = None
        for handle in self.handles:
            request = handle.request
            if request.checking is not None and not request.checking.is_over:
                check = request.checking
            elif request.finish_reason is None:
                handles.append(handle)
        if check is not None and not handles:
            check.wait(PATIENCE)
            return
        timeline = self.clock.timeline
        if timeline is not None:
            timeline.begin(self.handles)
        try:
            for handle in handles:
                if handle.started is None:
                    _begin(handle, events)
            if not events:  # forced runs are delivered before the model has run
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

    def _halt(self, events: list[Event]) -> None:
        """Bring every handle back to where its history ends, in the middle of a step."""
        for handle in self.handles:
            try:
                handle.forget()
            except Exception as error:
                events.append(Event(handle, [], error))

    def _step(self, handles: list[Handle], events: list[Event]) -> None:
        """Plan, submit, read, accept, then begin with masks and the next pass."""
        rows, timeline = len(self.handles), self.clock.timeline
        plain_step = self._plain_step = self.clock.pace.step(rows)
        self._align(handles)
        ready: list[Handle] = []
        idle: list[Handle] = []  # they have tokens to run
        drafting: set[Handle] = set()  # those that have or get a draft after the next token
        # First tokens are delivered before anything else is submitted: MLX queues few tasks, so
        # the submission of a pass returns only when most of it has run
        opens, drafted = True, False
        for handle in handles:
            request, drafts = handle.request, handle.drafts
            if not handle.pending:
                ready.append(handle)
            elif len(handle.pending) <= self._longest_run:
                idle.append(handle)
            else:
                continue
            drafted = drafted or drafts.turn is not None
            if handle.guess is not None or (
                drafts.drafters and drafts.expects(request, rows, plain_step)
            ):
                drafting.add(handle)
            opens = opens and request.position <= request.first
        if idle and (opens or not ready):
            self._forward(idle)
            going = {*ready, *idle}
            ready, idle = [each for each in handles if each in going and not each.pending], []
        looks = not opens and _looks_ahead(ready, drafting)
        if timeline is not None:
            timeline.did("plan")

        drawn, places = self._draw(ready, events)
        if drawn is None:
            self._forward(idle)
            return
        ahead = self._look_ahead(places, drawn, idle, drafting) if looks else None
        if timeline is not None:
            timeline.did("draw")
        tokens = drawn.tokens()  # the only wait of the step
        if timeline is not None:
            timeline.did("wait")

        # After a step of the other kind, the pass was submitted earlier or later than here
        plain = looks == self._looked and not drafted
        self._looked = looks
        seconds = self.clock.read(rows, drawn.after, plain=plain)
        steps = seconds / plain_step if plain_step else 0.0
        for handle, place in places.items():
            events.append(accept_draws(handle, tokens, drawn, place, steps))
        if timeline is not None:
            timeline.did("accept")

        arrived: set[Handle] = set()
        for handle in (*places, *idle):
            if handle.arrive():
                arrived.add(handle)
        if looks and len(arrived) == len(places) + len(idle):
            self._submitted = ahead
        elif not opens:
            # Those without logits run, unless they can do so together with the next look-ahead
            failed = {event.handle for event in events if event.error is not None}
            going = {h for h in handles if h.request.finish_reason is None} - failed
            rest = going - arrived
            waiting = [handle for handle in handles if handle in rest and not handle.is_ready]
            if not looks or len(waiting) == len(going):
                self._forward(waiting)
        self._fill_masks(handles)
        if timeline is not None:
            timeline.did("masks")

    def _align(self, handles: list[Handle]) -> None:
        """Align every cache, all before any pass: a slot can take back only its last pass. Then the
        handles are in the order of their slots, as their logits will be."""
        for handle in handles:
            handle.align()
        if len(handles) > 1:
            handles.sort(key=_PLACE)

    def _draw(
        self, ready: list[Handle], events: list[Event]
    ) -> tuple[Drawn | None, dict[Handle, int]]:
        """Submit a draw for every handle that has one left; appends the others to ``events``.

        Returns the draw with each handle's row in it, the first one if it has several. If it was
        submitted before, handles that came since are drawn with the next one, so that no other
        waits.
        """
        submitted, self._submitted = self._submitted, None
        if submitted is not None and _is_due(*submitted, ready):
            return submitted
        requests: list[DrawRow] = []
        places: dict[Handle, int] = {}
        for handle in ready:
            guess = handle.guess
            if guess is not None and not guess.free:
                _ = guess.tokens  # an error here is not the request's
            try:
                if guess is None or handle.asks_each:
                    own = [next_draw(handle.request)]
                else:
                    guess.look(handle.request)
                    own = guess.draws
            except Exception as error:
                handle.forget()
                events.append(Event(handle, handle.take(), error))  # with the chunks due
                continue
            places[handle] = len(requests)
            requests += own
        return (self._drawn(logits_of(places), places, requests) if places else None), places

    def _drawn(
        self, logits: mx.array, handles: Collection[Handle], requests: Sequence[DrawRow]
    ) -> Drawn:
        """Submit the draws of these handles, which may have several each."""
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

    def _fill_masks(self, handles: Sequence[Handle]) -> None:
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

    # ---- passes ----------------------------------------------------------------------------

    def _look_ahead(
        self,
        places: dict[Handle, int],
        drawn: Drawn,
        idle: list[Handle],
        drafting: Collection[Handle],
    ) -> tuple[Drawn, dict[Handle, int]] | None:
        """Submit the pass after tokens that are not known yet, with what others have pending.

        Handles with a draft to come wait until their token is known, and run with the next pass.
        Returns the next draw, if it depends on nothing that the host decides.
        """
        work: list[Work] = []
        alone = not idle  # whether the next draw is of these alone, and depends on nothing else
        for handle, place in places.items():
            request, kv = handle.request, handle.kv
            declines = request.may_decline
            # A pass after the next token would be lost, or could not be undone exactly
            ends = request.position + 1 >= request.budget and len(kv.slot.group.members) == 1
            if ends or handle in drafting or (declines and not kv.slot.can_undo(1)):
                alone = False
            else:
                work.append(Work(handle, [Later(drawn, place)]))
                alone = alone and not (handle.flat or declines)
        if idle:
            self._propose(idle, 2)
        arrays = self.passes.run([*work, *map(Work.pending, idle)])
        if alone and len(places) < len(self.handles):
            alone = not any(h.is_ready for h in self.handles if h not in places)
        draws: list[list[DrawRow]] = []
        if alone:
            for handle in places:
                draws.append(free_draws(handle.request, 1, after=1))
        return self._submit(arrays, list(places), draws)

    def _forward(self, handles: list[Handle]) -> None:
        """Run the pending tokens, and drafts after them; submits the logits, or draws from them if
        these depend on nothing else."""
        self._align(handles)
        handles = [handle for handle in handles if len(handle.pending) <= self._longest_run]
        if not handles:
            return
        self._propose(handles, 1)
        arrays = self.passes.run([Work.pending(handle) for handle in handles])
        if self.clock.timeline is not None:
            self.clock.timeline.did("run", requests=len(handles))
        draws: list[list[DrawRow]] = []
        for handle in handles:
            guess, arrived = handle.guess, handle.arrive()
            free = arrived and guess is not None and guess.free and not handle.asks_each
            draws.append(guess.draws if guess is not None and free else [])
        self._submitted = self._submit(arrays, handles, draws) or self._submitted

    def _propose(self, handles: list[Handle], steps: int) -> None:
        """Have tokens drafted after the pending ones, to be verified in ``steps`` steps."""
        for handle in handles:
            drafts, rows = handle.drafts, len(self.handles)
            if drafts.drafters:
                guess = handle.guess = drafts.propose(handle.request, rows, self._plain_step)
                if guess is not None:
                    guess.steps = steps
                    if (timeline := self.clock.timeline) is not None:
                        timeline.did("draft", drafter=guess.drafter, tokens=len(guess.fed))

    def _submit(
        self, arrays: list[mx.array], handles: Sequence[Handle], draws: Sequence[list[DrawRow]]
    ) -> tuple[Drawn, dict[Handle, int]] | None:
        """Submit the logits of a pass, or the draws from them if all draws are known."""
        if draws and all(draws) and len(arrays) == 1:
            requests: list[DrawRow] = []
            places: dict[Handle, int] = {}
            for handle, own in zip(handles, draws, strict=True):
                places[handle] = len(requests)
                requests += own
            if arrays[0].shape[0] == len(requests):
                return self._drawn(arrays[0], handles, requests), places
        mx.async_eval(arrays)
        return None

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        for handle in self.handles:
            if not handle.has_ended:
                handle.check_integrity()
        self.runner.slots.check_integrity()


_PLACE = attrgetter("kv.slot.group.number", "kv.slot.index")  # of a handle


def _is_due(drawn: Drawn, places: dict[Handle, int], ready: Collection[Handle]) -> bool:
    """Whether a submitted draw is the one that all of its handles should have now."""
    draws = 0
    for handle, place in places.items():
        logits = handle.logits
        if handle not in ready or logits is None or logits.array is not drawn.logits:
            return False
        if drawn.requests[place].position != handle.request.position:
            return False
        draws += 1 if handle.guess is None else handle.draws
    return draws == len(drawn.requests)


def _begin(handle: Handle, events: list[Event]) -> None:
    """Begin a request: with a run that filters force, or with an end before the first draw."""
    error = None
    try:
        handle.start()
    except Exception as reason:
        error = reason
    chunks = handle.take()  # including what it forced before an error
    if chunks or error is not None:
        events.append(Event(handle, chunks, error))


def _looks_ahead(drawn: Sequence[Handle], drafting: Collection[Handle]) -> bool:
    """Whether to submit the next pass before the tokens of these draws are known.

    Drafts follow known tokens, so not if half of the rows or more are drafted for. If most rows are
    about to be fast-forwarded, it is better to run token and forced run in one pass after the draw,
    unless there are more than ``FEW`` rows.
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
