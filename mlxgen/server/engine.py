"""The thread that owns a model: all of its MLX work happens here.

Owns the scheduler, and the delivery of generated chunks to the event loop. Must never know JSON or
HTTP.

    event loop                                engine's thread
    submit, cancel, stop  --- inbox --->      obey, step, obey, step, ...
    Mailbox.put           <--- news ----      one wake-up of the loop for each step at most

The operator's programs decide here, between two steps, how their sequences go on. Commands are also
obeyed between two steps, so a cancelled sequence is gone before the next one.

Invariant: only this thread ever calls the scheduler, and whatever ends the thread is reported on
the event loop's thread, as the last news from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ..engine import Event, Handle, Request, Scheduler, Stats, Usage
from ..errors import MlxgenError, StateError
from ..workers import Work, workers
from .reply import Delivery
from .served_model import Engine
from .steering import Running

FLUSH = 10.0  # seconds
STALL = 300.0  # seconds without a step: longer than any chunk of a prompt takes
STATS_EVERY = 0.05  # seconds between two snapshots of the scheduler's figures, while it is busy

T = TypeVar("T")


EngineBoot: TypeAlias = Callable[[], tuple[Scheduler, Engine]]
"""Called in the engine's thread: loads everything."""


class Mailbox:
    """News of one request that its handler has not taken yet; it belongs to the event loop. It is
    unbounded: the server hangs up on a client that does not read (see ``process``).

    ``watched``: chunks come with the progress of the sequences. ``grows``: there may be more
    sequences, until a delivery closes it.
    """

    def __init__(self, sequences: int, *, watched: bool = False, grows: bool = False) -> None:
        self.watched = watched
        self.error: BaseException | None = None
        self._grows = grows
        self._usages: list[Usage | None] = [None] * sequences
        self._waiting: list[Delivery] = []
        self._news = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return not self._grows and None not in self._usages

    @property
    def usages(self) -> list[Usage]:
        """The usage of each sequence; zero for those that have not ended."""
        return [usage or Usage() for usage in self._usages]

    def put(self, news: Delivery | BaseException) -> None:
        """Add news of a sequence, or the error that ends all of them."""
        self._news.set()
        if self.error is not None:
            return
        if not isinstance(news, Delivery):
            self.error, self._waiting = news, []
        elif news.closes:
            self._grows = False
        else:
            self._waiting.append(news)
            self._usages += [None] * (news.place + 1 - len(self._usages))
            if news.usage is not None:
                self._usages[news.place] = news.usage

    async def take(self) -> list[Delivery]:
        """Wait for news, and take all there is; an empty list at the end."""
        while not (self._waiting or self.error or self.finished):
            self._news.clear()
            await self._news.wait()
        if self.error is not None:
            raise self.error
        taken, self._waiting = self._waiting, []
        return taken


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence: where its news goes, and the news of its prompt so far: how many tokens were run
    (``None``: all), and how many sequences are ahead of it in the queue."""

    box: Mailbox
    place: int
    read: int | None = 0
    ahead: int | None = None


class EngineThread:
    """The thread; call ``start`` once. All methods are for the event loop's thread.

    ``boot`` is called in the engine's thread. ``failed`` is called in the loop's thread with an
    error that ends the engine after it was ready.
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
        """The loaded model, or the error that prevented the load."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self._inbox: queue.SimpleQueue[Callable[[Scheduler], object]] = queue.SimpleQueue()
        self._news: deque[tuple[Mailbox, Delivery | BaseException]] = deque()
        self._called = False  # a call of _deliver is scheduled
        self._stopping = False
        self._ends = False  # the thread has obeyed stop
        self._rows: dict[Handle, _Row] = {}
        self._programs: dict[Running, Mailbox] = {}
        self._published = 0.0
        self._rests = True  # the thread is loading, or has nothing to do
        self._moved = 0.0  # time of the last command or step
        self._work: Work | None = None
        self.stats: Stats | None = None
        """The scheduler's last figures; ``None`` while it loads."""

    @property
    def stalled(self) -> float:
        """Seconds since the last command or step; 0 while there is nothing to do."""
        return 0.0 if self._rests else time.monotonic() - self._moved

    @property
    def is_stuck(self) -> bool:
        """Whether the last command or step was too long ago."""
        return self.stalled > STALL

    def start(self) -> None:
        """Start loading."""
        self._work = workers().start(self._run, "engine")

    def do(self, work: Callable[[Scheduler], T]) -> asyncio.Future[T | None]:
        """Call ``work`` in the thread, between two steps; the future gets its result or error, or
        ``None`` at once if the thread has been told to end."""
        done: asyncio.Future[T | None] = self._loop.create_future()
        if self._stopping:
            done.set_result(None)
            return done

        def doing(scheduler: Scheduler) -> None:
            result, failure = None, None
            try:
                result = work(scheduler)
            except Exception as error:
                failure = error
            self._call(_settle, done, result, failure)

        self._inbox.put(doing)
        return done

    def submit(
        self, sequences: Sequence[Request], box: Mailbox, owner: str = ""
    ) -> asyncio.Future[None]:
        """Generate sequences, all or none; their news, including errors, goes to the mailbox. A
        sequence's place there is its index. The future is done once they are accepted or
        refused."""

        def submitting(scheduler: Scheduler) -> None:
            try:
                for place, sequence in enumerate(sequences):
                    self._rows[scheduler.submit(sequence, owner=owner)] = _Row(box, place)
            except Exception as error:
                self._drop(scheduler, box)
                self._tell([(box, error)])

        return self.do(submitting)

    def steer(self, program: Running, box: Mailbox) -> asyncio.Future[None]:
        """Let a program write the text of a request; otherwise as ``submit``."""

        def begin(scheduler: Scheduler) -> None:
            self._programs[program] = box
            self._steer(scheduler, ())

        return self.do(begin)

    def cancel(self, box: Mailbox) -> None:
        """Drop the sequences of a mailbox, queued or running; they send no more news."""
        self._inbox.put(lambda scheduler: self._drop(scheduler, box))

    def rest(self, box: Mailbox) -> None:
        """Stop generating the sequences of a mailbox until ``resume`` or ``cancel``; they keep
        their history."""
        self._inbox.put(lambda scheduler: [*map(scheduler.set_aside, self._of(box))])

    def resume(self, box: Mailbox) -> None:
        """Resume the resting sequences of a mailbox."""
        self._inbox.put(lambda scheduler: [*map(scheduler.resume, self._of(box))])

    def order(
        self, box: Mailbox, place: int, act: Callable[[Request], object]
    ) -> asyncio.Future[int | None]:
        """Let ``act`` change a sequence of a mailbox between two steps, whole or not at all.

        The future gets the number of tokens that its text then has. Raises what ``act`` raises, and
        ``StateError`` if the sequence has ended.
        """

        def ordered(scheduler: Scheduler) -> int:
            for handle in self._of(box):
                if self._rows[handle].place == place:
                    self._tell(self._news_of(scheduler.order(handle, act)))
                    return handle.request.position
            raise StateError("the answer has ended")

        return self.do(ordered)

    def stop(self, flush: float = FLUSH) -> None:
        """Make the thread drop everything and end. For ``flush`` seconds, it writes prefixes that
        are only in memory to disk, if there is a folder for them."""

        def stopping(scheduler: Scheduler) -> None:
            scheduler.close(flush)
            self._ends = True

        self._inbox.put(stopping)
        self._stopping = True

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; return True if it did."""
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
                events = scheduler.step()
                if self._programs:
                    self._steer(scheduler, events)
                self._tell([*self._prompts(scheduler), *self._news_of(events)])
                self._moved = time.monotonic()
                if self._moved - self._published >= STATS_EVERY:
                    self._publish(scheduler)
            self._publish(scheduler)
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be what failed
                scheduler.close()

    def _obey(self, scheduler: Scheduler) -> bool:
        """Carry out commands, waiting for one if there is nothing else; returns False to stop."""
        while not self._ends:
            self._rests = idle = not scheduler.busy
            if idle:
                self._publish(scheduler)
                scheduler.rest()
            try:
                command = self._inbox.get(idle)
            except queue.Empty:
                return True
            self._moved = time.monotonic()
            self._rests = False
            command(scheduler)
        return False

    def _drop(self, scheduler: Scheduler, box: Mailbox) -> None:
        for handle in self._of(box):
            del self._rows[handle]
            scheduler.cancel(handle)
        for program in [each for each, own in self._programs.items() if own is box]:
            del self._programs[program]
            program.leave()

    def _of(self, box: Mailbox) -> list[Handle]:
        return [handle for handle, row in self._rows.items() if row.box is box]

    def _steer(self, scheduler: Scheduler, events: Sequence[Event]) -> None:
        """Let programs decide how their sequences go on, and deliver the news of these."""
        for program, box in list(self._programs.items()):
            own = [event for event in events if program.follows(event.handle)]
            news = program.go(scheduler, own)
            if program.is_over or any(not isinstance(each, Delivery) for each in news):
                del self._programs[program]
            self._tell([(box, each) for each in news])

    def _prompts(self, scheduler: Scheduler) -> Iterator[tuple[Mailbox, Delivery]]:
        """News of prompts: how much of each was run, and for watched ones how many others are ahead
        of them in the queue."""
        for handle, row in self._rows.items():
            if row.read is not None and handle.prefilled > row.read:
                progress = handle.progress
                row.read = None if progress.is_prefilled else progress.prefilled
                yield row.box, Delivery(row.place, (), progress=progress)
        for ahead, handle in enumerate(scheduler.waiting):
            waits = self._rows.get(handle)
            if waits is not None and waits.box.watched and waits.ahead != ahead:
                waits.ahead = ahead
                yield waits.box, Delivery(waits.place, (), ahead=ahead)

    def _news_of(self, events: Sequence[Event]) -> list[tuple[Mailbox, Delivery | BaseException]]:
        news: list[tuple[Mailbox, Delivery | BaseException]] = []
        for event in events:
            handle = event.handle
            row = self._rows.get(handle)
            if row is None:
                continue
            ends = event.error is not None
            if event.error is not None:
                news.append((row.box, event.error))
            else:
                ends = bool(event.chunks and event.chunks[-1].finish_reason)
                progress = handle.progress if row.box.watched or row.read is not None else None
                usage = handle.usage if ends else None
                news.append((row.box, Delivery(row.place, event.chunks, usage, progress)))
            if ends:
                del self._rows[handle]
        return news

    def _tell(self, news: Sequence[tuple[Mailbox, Delivery | BaseException]]) -> None:
        self._news.extend(news)
        if news and not self._called:
            self._called = True
            self._call(self._deliver)

    def _publish(self, scheduler: Scheduler) -> None:
        self._published = time.monotonic()
        self.stats = scheduler.stats()

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread, after all earlier calls."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody is waiting
            self._loop.call_soon_threadsafe(function, *arguments)

    # ---- in the loop's thread ----------------------------------------------------------------

    def _deliver(self) -> None:
        self._called = False  # first, so that later news schedules another call
        for _ in range(len(self._news)):
            box, news = self._news.popleft()
            box.put(news)

    def _end(self, error: BaseException | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or MlxgenError("the server is stopping"))
            self.ready.exception()  # marks it as retrieved: nobody may be waiting any more
        elif error is not None:
            self._failed(error)
        self.ready = self._loop.create_future()  # the old one holds the loaded model
        self.gone.set_result(None)


def _settle(done: asyncio.Future[Any], value: Any, error: Exception | None = None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
