"""The thread that owns the model: everything of MLX happens here.

Owns the scheduler, and the handover of what is generated to the event loop. Must never know
requests, JSON or HTTP.

    event loop                                engine's thread
    submit, cancel, stop  --- inbox --->      obey, step, obey, step, ...
    Mailbox.put           <--- news ----      one wake-up of the loop for each step at most

Programs of the operator's decide here how their sequences go on, between two steps. Commands are
obeyed between two steps, so a cancelled sequence is gone before the next one.

Invariant: only this thread ever calls the scheduler, and whatever ends the thread is reported on
the event loop's thread, as the last thing that comes from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from ...engine import Event, Handle, Request, Scheduler, Stats
from ...errors import MlxgenError, StateError
from ...workers import Work, workers
from .boot import Engine, EngineBoot
from .mailbox import Delivery, Mailbox
from .running import Running

FLUSH = 10.0  # seconds
STALL = 300.0  # seconds without a step: longer than any piece of a prompt takes
STATS_EVERY = 0.05  # seconds between two snapshots of the scheduler's figures, while it is busy

T = TypeVar("T")
News: TypeAlias = tuple[Mailbox, Delivery | BaseException]


class EngineThread:
    """The thread; call ``start`` once. All methods are for the event loop's thread.

    ``boot`` is called in the thread. ``failed`` is called in the loop's thread with an error that
    ends it after it was ready.
    """

    def __init__(
        self,
        boot: EngineBoot,
        failed: Callable[[BaseException], None],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._boot = boot
        self._failed = failed
        self._loop = loop
        self.ready: asyncio.Future[Engine] = loop.create_future()
        """What was loaded, or why it could not be."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self._inbox: queue.SimpleQueue[Callable[[Scheduler], object]] = queue.SimpleQueue()
        self._news: deque[News] = deque()
        self._called = False  # the loop will look there
        self._stopping = False
        self._ends = False  # it has obeyed that
        self._rows: dict[Handle, tuple[Mailbox, int]] = {}
        self._programs: list[Running] = []
        self._reading: dict[Handle, int] = {}  # prompts that are not done, and how far they are
        self._ahead: dict[Handle, int] = {}  # how many begin before those that wait, as was told
        self._published = 0.0
        self._rests = True  # it is loading, or has nothing to do
        self._moved = 0.0  # when it last obeyed a command or took a step
        self._work: Work | None = None
        self.stats: Stats | None = None
        """The scheduler's last figures; ``None`` while it loads."""

    @property
    def stalled(self) -> float:
        """Seconds since the last command or step; 0 while there is nothing to do."""
        return 0.0 if self._rests else time.monotonic() - self._moved

    @property
    def is_stuck(self) -> bool:
        """Whether that has been too long."""
        return self.stalled > STALL

    def start(self) -> None:
        """Start loading."""
        self._work = workers().start(self._run, "engine")

    def submit(self, sequences: Sequence[Request], mailbox: Mailbox, owner: str = "") -> None:
        """Generate sequences, all or none; what comes of them, errors included, goes to the
        mailbox. The position of a sequence is its index there."""
        self._inbox.put(lambda scheduler: self._submit(scheduler, sequences, mailbox, owner))

    def cancel(self, mailbox: Mailbox) -> None:
        """Drop the sequences of a mailbox wherever they are; nothing more comes from them."""
        self._inbox.put(lambda scheduler: self._drop(scheduler, mailbox))

    def rest(self, mailbox: Mailbox) -> None:
        """Stop generating the sequences of a mailbox until ``resume`` or ``cancel``; they keep
        their place in their texts."""
        self._inbox.put(lambda scheduler: self._each(mailbox, scheduler.set_aside))

    def resume(self, mailbox: Mailbox) -> None:
        """Go on with the sequences of a mailbox that rest."""
        self._inbox.put(lambda scheduler: self._each(mailbox, scheduler.resume))

    def steer(self, program: Running) -> None:
        """Let a program write the text of a request; ``cancel`` of its mailbox ends it."""
        self._inbox.put(lambda scheduler: self._begin(scheduler, program))

    def do(self, work: Callable[[Scheduler], T]) -> asyncio.Future[T | None]:
        """Do something in the thread, between two steps; the result is what it returns or raises,
        and ``None`` at once in a thread that has been told to end."""
        done: asyncio.Future[T | None] = self._loop.create_future()
        if self._stopping:
            done.set_result(None)
            return done

        def doing(scheduler: Scheduler) -> None:
            try:
                result = work(scheduler)
            except Exception as error:
                self._call(_fail, done, error)
            else:
                self._call(_settle, done, result)

        self._inbox.put(doing)
        return done

    def order(
        self, mailbox: Mailbox, place: int, act: Callable[[Request], object]
    ) -> asyncio.Future[int | None]:
        """Have something done to a sequence of a mailbox, between two steps, whole or not at all.

        The result is how many tokens its text has then. Raises what ``act`` does, and
        ``StateError`` for one that has ended.
        """
        return self.do(lambda scheduler: self._order(scheduler, mailbox, place, act))

    def stop(self, flush: float = FLUSH) -> None:
        """Make the thread drop everything and end; prefixes that are only in memory are written to
        disk for so many seconds, if they may be."""

        def stopping(scheduler: Scheduler) -> None:
            scheduler.close(flush)
            self._ends = True

        self._inbox.put(stopping)
        self._stopping = True

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; returns whether it did."""
        return self._work is None or self._work.wait(timeout)

    # ---- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        ended_by: BaseException | None = None
        try:
            self._live()
        except BaseException as error:
            ended_by = error
        self._rests = True
        self._rows.clear()
        self._reading.clear()
        self._ahead.clear()
        self._programs.clear()
        self._call(self._deliver)
        self._call(self._end, ended_by)

    def _live(self) -> None:
        scheduler, loaded = self._boot()
        try:
            self.stats = scheduler.stats()
            self._call(_settle, self.ready, loaded)
            del loaded
            while self._obey(scheduler):
                self._step(scheduler)
                self._publish(scheduler)
                self._moved = time.monotonic()
            self._publish(scheduler, at_once=True)
        finally:
            with contextlib.suppress(Exception):  # it may be what failed
                scheduler.close()

    def _obey(self, scheduler: Scheduler) -> bool:
        """Carry out commands, waiting for one if there is nothing else; returns False to stop."""
        while not self._ends:
            idle = not scheduler.busy
            if idle:
                self._publish(scheduler, at_once=True)
                scheduler.rest()
            self._rests = idle
            try:
                command = self._inbox.get(idle)
            except queue.Empty:
                return True
            self._moved = time.monotonic()
            self._rests = False
            command(scheduler)
        return False

    def _submit(
        self, scheduler: Scheduler, sequences: Sequence[Request], mailbox: Mailbox, owner: str
    ) -> None:
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

    def _begin(self, scheduler: Scheduler, program: Running) -> None:
        self._programs.append(program)
        self._steer(scheduler, ())
        if program in self._programs:
            self._call(program.box.accept)

    def _drop(self, scheduler: Scheduler, mailbox: Mailbox) -> None:
        for handle in self._of(mailbox):
            self._forget(handle)
            scheduler.cancel(handle)
        for program in [each for each in self._programs if each.box is mailbox]:
            self._programs.remove(program)
            program.leave()

    def _of(self, mailbox: Mailbox) -> list[Handle]:
        return [handle for handle, (box, _) in self._rows.items() if box is mailbox]

    def _each(self, mailbox: Mailbox, act: Callable[[Handle], None]) -> None:
        for handle in self._of(mailbox):
            act(handle)

    def _order(
        self,
        scheduler: Scheduler,
        mailbox: Mailbox,
        place: int,
        act: Callable[[Request], object],
    ) -> int:
        found = [each for each, row in self._rows.items() if row == (mailbox, place)]
        if not found:
            raise StateError("the answer has ended")
        self._tell(self._news_of(scheduler.order(found[0], act)))
        return found[0].request.position

    def _steer(self, scheduler: Scheduler, events: Sequence[Event]) -> None:
        """Have programs decide how their sequences go on, and tell what came of them."""
        for program in list(self._programs):
            own = [event for event in events if program.follows(event.handle)]
            news = program.go(scheduler, own)
            if program.is_over or any(not isinstance(each, Delivery) for each in news):
                self._programs.remove(program)
            self._tell([(program.box, each) for each in news])

    def _forget(self, handle: Handle) -> None:
        del self._rows[handle]
        self._reading.pop(handle, None)
        self._ahead.pop(handle, None)

    def _step(self, scheduler: Scheduler) -> None:
        events = scheduler.step()
        if self._programs:
            self._steer(scheduler, events)
        news: list[News] = []
        if self._reading:
            self._read(news)
            self._wait(scheduler, news)
        self._tell([*news, *self._news_of(events)])

    def _news_of(self, events: Sequence[Event]) -> list[News]:
        news: list[News] = []
        for event in events:
            handle = event.handle
            if handle not in self._rows:
                continue
            mailbox, index = self._rows[handle]
            if event.error is not None:
                self._forget(handle)
                news.append((mailbox, event.error))
                continue
            usage = None
            if event.chunks and event.chunks[-1].finish_reason:
                usage = handle.usage
                self._forget(handle)
            told = mailbox.watched or handle in self._reading
            progress = handle.progress if told else None
            news.append((mailbox, Delivery(index, event.chunks, usage, progress)))
        return news

    def _tell(self, news: Sequence[News]) -> None:
        self._news.extend(news)
        if news and not self._called:
            self._called = True
            self._call(self._deliver)

    def _read(self, news: list[News]) -> None:
        """Add how much of the prompts has been run since the last call."""
        moved = [item for item in self._reading.items() if item[0].prefilled > item[1]]
        for handle, _ in moved:
            progress = handle.progress
            mailbox, index = self._rows[handle]
            news.append((mailbox, Delivery(index, (), progress=progress)))
            if progress.is_prefilled:
                del self._reading[handle]
            else:
                self._reading[handle] = progress.prefilled

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
        for _ in range(len(self._news)):
            mailbox, news = self._news.popleft()
            if isinstance(news, Delivery):
                mailbox.put(news)
            else:
                mailbox.fail(news)

    def _end(self, error: BaseException | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or MlxgenError("the server is stopping"))
            self.ready.exception()  # nobody may be left to ask for it
        elif error is not None:
            self._failed(error)
        self.ready = self._loop.create_future()  # the old one holds what was loaded
        self.gone.set_result(None)


def _settle(done: asyncio.Future[Any], value: Any) -> None:
    if not done.done():
        done.set_result(value)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
