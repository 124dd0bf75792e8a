"""The one thread that loads the model, runs it and frees it.

Owns the thread, its inbox of commands, and the way of what is generated to the event loop. Must
never know requests, JSON or HTTP.

    event loop                                engine's thread
    submit, cancel, stop  --- inbox --->      obey, step, obey, step, ...
    Mailbox.put           <-- news ------     one wake-up of the loop for each step at most

Programs of the operator's decide here how their sequences go on, between two steps.

Commands are obeyed between two steps, so a cancelled sequence is gone before the next one. When
the loop is ``STEPS_AHEAD`` steps behind, the thread waits for it, so a delayed loop costs bounded
memory.

While steps are so quick that the loop would be woken more often than every ``GLANCE`` seconds, it
looks for news by itself that often, and takes those of several steps together. It is still woken at
once for the beginning and the end of a sequence.

Invariant: only this thread ever calls the scheduler, and whatever ends the thread is reported to
``listener``, on the event loop's thread, as the last thing that comes from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...engine import Event, Handle, Request, Scheduler, Stats
from ...workers import Work, workers
from .boot import Engine, EngineBoot
from .mailbox import Delivery, Mailbox

STEPS_AHEAD = 1024
_PAUSE = 0.001  # seconds between two looks at a loop that is so far behind
GLANCE = 0.005  # seconds: more than 200 pieces of text a second are more than anybody sees
FLUSH = 10.0  # seconds
STATS_EVERY = 0.05  # seconds between two snapshots of the scheduler's figures, while it is busy


class State(enum.Enum):
    """The state of the engine."""

    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"  # it could not be loaded
    FAILED = "failed"  # after it was ready
    STOPPED = "stopped"  # on request


class _Submit(NamedTuple):
    """Sequences of one request; the position of a sequence is its index in the mailbox."""

    sequences: Sequence[Request]
    mailbox: Mailbox
    owner: str


class _Cancel(NamedTuple):
    mailbox: Mailbox


class Steering(Protocol):
    """What decides how the sequences of a request go on, after every step."""

    box: Mailbox

    @property
    def is_over(self) -> bool: ...
    def follows(self, handle: Handle) -> bool: ...
    def go(
        self, scheduler: Scheduler, events: Sequence[Event]
    ) -> list[Delivery | BaseException]: ...
    def leave(self) -> None: ...


class _Steer(NamedTuple):
    program: Steering


class _Do(NamedTuple):
    work: Callable[[Scheduler], object]
    done: asyncio.Future[None]


class _Stop(NamedTuple):
    flush: float


_Command: TypeAlias = _Submit | _Cancel | _Steer | _Do | _Stop
News: TypeAlias = tuple[Mailbox, Delivery | BaseException]


class EngineThread:
    """The thread; call ``start`` once. All methods are for the event loop's thread.

    ``boot`` is called in the thread. ``listener`` is called in the loop's thread with each new
    state, and with what was loaded or the error.
    """

    def __init__(
        self,
        boot: EngineBoot,
        listener: Callable[[State, Engine | BaseException | None], None],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._boot = boot
        self._listener = listener
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._news: deque[list[News]] = deque()  # of steps
        self._called = False  # the loop will look there at once
        self._glances = False  # it will look there within ``GLANCE`` seconds
        self._looked = 0.0  # when it did, by its clock
        self._patient = True
        self._rows: dict[Handle, tuple[Mailbox, int]] = {}
        self._programs: list[Steering] = []
        self._reading: dict[Handle, int] = {}  # prompts that are not done, and how far they are
        self._ahead: dict[Handle, int] = {}  # how many begin before those that wait, as was told
        self._published = 0.0
        self._turns = 0
        self._rests = True  # it is loading, or has nothing to do
        self._work: Work | None = None
        self.stats: Stats | None = None
        """The scheduler's last figures; ``None`` while it loads."""

    @property
    def beats(self) -> int | None:
        """How many commands and steps it has done; ``None`` while there is nothing to do."""
        return None if self._rests else self._turns

    def start(self) -> None:
        """Start loading."""
        self._work = workers().start(self._run, "engine")

    def submit(self, sequences: Sequence[Request], mailbox: Mailbox, owner: str = "") -> None:
        """Generate sequences; what comes of them, errors included, goes to the mailbox."""
        self._inbox.put(_Submit(sequences, mailbox, owner))

    def cancel(self, mailbox: Mailbox) -> None:
        """Drop the sequences of a mailbox wherever they are; nothing more comes from them."""
        self._inbox.put(_Cancel(mailbox))

    def steer(self, program: Steering) -> None:
        """Let a program write the text of a request; ``cancel`` of its mailbox ends it."""
        self._inbox.put(_Steer(program))

    def do(self, work: Callable[[Scheduler], object]) -> asyncio.Future[None]:
        """Do something in the thread, between two steps; the result is done when that is, or at
        once in a thread that has been told to end."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._patient:
            self._inbox.put(_Do(work, done))
        else:
            done.set_result(None)
        return done

    def stop(self, flush: float = FLUSH) -> None:
        """Make the thread drop everything and end; prefixes that are only in memory are written to
        disk for so many seconds, if they may be."""
        self._inbox.put(_Stop(flush))
        self._patient = False

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; returns whether it did."""
        return self._work is None or self._work.wait(timeout)

    # ---- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        state = State.STOPPED
        news: BaseException | None = None
        try:
            self._live()
        except BaseException as error:
            state, news = (State.REFUSED if self.stats is None else State.FAILED), error
        self._rests = True
        self._rows.clear()
        self._reading.clear()
        self._ahead.clear()
        self._programs.clear()
        self._call(self._deliver)
        self._call(self._listener, state, news)

    def _live(self) -> None:
        scheduler, loaded = self._boot()
        try:
            self.stats = scheduler.stats()
            self._call(self._listener, State.READY, loaded)
            del loaded
            while self._obey(scheduler):
                self._step(scheduler)
                self._publish(scheduler)
                self._turns += 1
            self._publish(scheduler, at_once=True)
        finally:
            with contextlib.suppress(Exception):  # it may be what failed
                scheduler.close()

    def _obey(self, scheduler: Scheduler) -> bool:
        """Carry out commands, waiting for one if there is nothing else; returns False to stop."""
        while True:
            idle = not scheduler.busy
            if idle:
                self._publish(scheduler, at_once=True)
                scheduler.rest()
            self._rests = idle
            try:
                command = self._inbox.get(idle)
            except queue.Empty:
                return True
            self._rests = False
            self._turns += 1
            if isinstance(command, _Stop):
                scheduler.close(command.flush)
                return False
            self._carry_out(scheduler, command)

    def _carry_out(self, scheduler: Scheduler, command: _Command) -> None:
        if isinstance(command, _Submit):
            self._submit(scheduler, command)
        elif isinstance(command, _Cancel):
            self._drop(scheduler, command.mailbox)
        elif isinstance(command, _Steer):
            self._programs.append(command.program)
            self._steer(scheduler, ())
            if command.program in self._programs:
                self._call(command.program.box.accept)
        elif isinstance(command, _Do):
            command.work(scheduler)
            self._call(_settle, command.done)

    def _submit(self, scheduler: Scheduler, command: _Submit) -> None:
        """All sequences of a request, or none of them."""
        sequences, mailbox, owner = command
        try:
            for index, sequence in enumerate(sequences):
                handle = scheduler.submit(sequence, owner=owner)
                self._rows[handle] = mailbox, index
                self._reading[handle] = 0
        except Exception as error:
            self._drop(scheduler, mailbox)
            self._call(mailbox.fail, error)
        else:
            self._call(mailbox.accept)

    def _drop(self, scheduler: Scheduler, mailbox: Mailbox) -> None:
        for handle in [handle for handle, (box, _) in self._rows.items() if box is mailbox]:
            self._forget(handle)
            scheduler.cancel(handle)
        for program in [each for each in self._programs if each.box is mailbox]:
            self._programs.remove(program)
            program.leave()

    def _steer(self, scheduler: Scheduler, events: Sequence[Event]) -> None:
        """Have programs decide how their sequences go on, and tell what came of them."""
        for program in list(self._programs):
            own = [event for event in events if program.follows(event.handle)]
            news: list[News] = [(program.box, each) for each in program.go(scheduler, own)]
            if program.is_over or any(not isinstance(each, Delivery) for _, each in news):
                self._programs.remove(program)
            if news:
                urgent = any(not isinstance(each, Delivery) or each.is_turn for _, each in news)
                self._tell(news, urgent=urgent)

    def _forget(self, handle: Handle) -> None:
        del self._rows[handle]
        self._reading.pop(handle, None)
        self._ahead.pop(handle, None)

    def _step(self, scheduler: Scheduler) -> None:
        events = scheduler.step()
        if self._programs:
            self._steer(scheduler, events)
        news: list[News] = []
        urgent = bool(self._reading) and self._read(news)
        if self._reading:
            self._wait(scheduler, news)
        for event in events:
            handle = event.handle
            if handle not in self._rows:
                continue
            mailbox, index = self._rows[handle]
            if event.error is not None:
                self._forget(handle)
                news.append((mailbox, event.error))
                urgent = True
                continue
            usage = None
            if event.chunks and event.chunks[-1].finish_reason:
                usage = handle.usage
                self._forget(handle)
            urgent = urgent or usage is not None or event.chunks[0].index == 0
            told = mailbox.watched or handle in self._reading
            progress = handle.progress if told else None
            news.append((mailbox, Delivery(index, event.chunks, usage, progress)))
        if news:
            self._tell(news, urgent=urgent)

    def _tell(self, news: list[News], *, urgent: bool) -> None:
        while len(self._news) >= STEPS_AHEAD and self._patient:
            time.sleep(_PAUSE)
        self._news.append(news)
        if not self._called and (urgent or not self._glances):
            self._called = True
            self._call(self._deliver)

    def _read(self, news: list[News]) -> bool:
        """Add how much of the prompts has been run since the last call; whether that is urgent."""
        urgent = False
        moved = [item for item in self._reading.items() if item[0].prefilled > item[1]]
        for handle, before in moved:
            progress = handle.progress
            mailbox, index = self._rows[handle]
            urgent = urgent or mailbox.watched or not before
            news.append((mailbox, Delivery(index, (), progress=progress)))
            if progress.is_prefilled:
                del self._reading[handle]
            else:
                self._reading[handle] = progress.prefilled
        return urgent

    def _wait(self, scheduler: Scheduler, news: list[News]) -> None:
        """Add how many others begin before those that wait, if it has changed and is watched."""
        for ahead, handle in enumerate(scheduler.waiting):
            mailbox, index = self._rows.get(handle, (None, 0))
            if mailbox is None or not mailbox.watched or self._ahead.get(handle) == ahead:
                continue
            self._ahead[handle] = ahead
            news.append((mailbox, Delivery(index, (), ahead=ahead)))

    def _publish(self, scheduler: Scheduler, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._published >= STATS_EVERY:
            self._published = now
            self.stats = scheduler.stats()

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread, after all that was called there before."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody is waiting
            self._loop.call_soon_threadsafe(function, *arguments)

    # ---- in the loop's thread ----------------------------------------------------------------

    def _deliver(self) -> None:
        self._called = False  # first, so that what comes from now on is fetched by another call
        self._fetch(quick=self._loop.time() - self._looked < GLANCE)

    def _glance(self) -> None:
        self._glances = False  # first, likewise
        if self._news:
            self._fetch(quick=True)

    def _fetch(self, *, quick: bool) -> None:
        """Hand over the news; ``quick``: look for more of them soon, without being woken."""
        self._looked = self._loop.time()
        if quick and not self._glances:
            self._glances = True
            self._loop.call_later(GLANCE, self._glance)
        told: dict[Mailbox, None] = {}
        for _ in range(len(self._news)):
            for mailbox, news in self._news.popleft():
                if isinstance(news, Delivery):
                    mailbox.put(news)
                    told[mailbox] = None
                else:
                    mailbox.fail(news)
        for mailbox in told:
            mailbox.tell()


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
