"""The one thread that loads the model, runs it and frees it.

Owns the thread, its inbox of commands, and the courier that carries what is generated to the
event loop. Must never know requests, JSON or HTTP.

    event loop                                engine's thread
    submit, cancel, stop  --- inbox --->      obey, step, obey, step, ...
    Mailbox.put           <-- courier ---     one wake-up of the loop for each step at most

Commands are obeyed between two steps, so a cancelled row is gone before the next one. While
``COURIER_LIMIT`` deliveries wait for the loop, the thread waits too, so a delayed loop costs
bounded memory.

Invariant: only this thread ever calls the scheduler, and whatever ends the thread is reported to
``listener``, on the event loop's thread, as the last thing that comes from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ..engine import Chunk, Progress, Stats, Usage
from .mailbox import Delivery, Mailbox

COURIER_LIMIT = 20_000
STATS_EVERY = 0.05  # seconds between two snapshots of the scheduler's figures, while it is busy


class Handle(Hashable, Protocol):
    """The scheduler's handle for a row."""

    @property
    def usage(self) -> Usage: ...
    @property
    def progress(self) -> Progress: ...


RequestT = TypeVar("RequestT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
HandleT = TypeVar("HandleT", bound=Handle)
HandleT_co = TypeVar("HandleT_co", bound=Handle, covariant=True)
LoadedT = TypeVar("LoadedT")


class Event(Protocol[HandleT_co]):
    """What the scheduler reports about a row."""

    @property
    def handle(self) -> HandleT_co: ...
    @property
    def chunks(self) -> Sequence[Chunk]: ...
    @property
    def error(self) -> Exception | None: ...


class Scheduler(Protocol[RequestT_contra, HandleT]):
    """What the thread needs of the engine's scheduler."""

    @property
    def busy(self) -> bool: ...
    def submit(self, row: RequestT_contra, /) -> HandleT: ...
    def step(self) -> Sequence[Event[HandleT]]: ...
    def cancel(self, handle: HandleT, /) -> None: ...
    def close(self) -> None: ...
    def stats(self) -> Stats: ...


class State(enum.Enum):
    """The state of the engine."""

    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"  # it could not be loaded
    FAILED = "failed"  # after it was ready
    STOPPED = "stopped"  # on request


class Submission(NamedTuple, Generic[RequestT]):
    """Rows of one request; the position of a row is its index in the mailbox."""

    rows: Sequence[RequestT]
    mailbox: Mailbox


class _Cancel(NamedTuple):
    mailbox: Mailbox


class _Stop(NamedTuple):
    pass


_Command: TypeAlias = Submission[RequestT] | _Cancel | _Stop
Boot: TypeAlias = Callable[[], tuple[Scheduler[RequestT, HandleT], LoadedT]]
"""Called in the engine's thread: loads the scheduler, and what the listener gets with ``READY``."""
Listener: TypeAlias = Callable[[State, LoadedT | BaseException | None], None]
"""Called in the loop's thread with the new state, and what was loaded or the error."""


class EngineThread(Generic[RequestT, HandleT, LoadedT]):
    """The thread; call ``start`` once. All methods are for the event loop's thread."""

    def __init__(
        self,
        boot: Boot[RequestT, HandleT, LoadedT],
        listener: Listener[LoadedT],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._boot = boot
        self._listener = listener
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Command[RequestT]] = queue.SimpleQueue()
        self._courier = _Courier(loop)
        self._handles: dict[HandleT, tuple[Mailbox, int]] = {}
        self._of: dict[Mailbox, list[HandleT]] = {}
        self._reading: dict[HandleT, int] = {}  # watched prompts, and how far they are
        self._published = 0.0
        self._turns = 0
        self._rests = True  # it is loading, or has nothing to do
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.stats: Stats | None = None
        """The scheduler's last figures; ``None`` while it loads."""

    @property
    def beats(self) -> int | None:
        """How many commands and steps it has done; ``None`` while there is nothing to do."""
        return None if self._rests else self._turns

    def start(self) -> None:
        """Start loading."""
        self._thread.start()

    def submit(self, rows: Sequence[RequestT], mailbox: Mailbox) -> None:
        """Generate rows; what comes of them, errors included, goes to the mailbox."""
        self._inbox.put(Submission(rows, mailbox))

    def cancel(self, mailbox: Mailbox) -> None:
        """Drop the rows of a mailbox wherever they are; nothing more comes from them."""
        self._inbox.put(_Cancel(mailbox))

    def stop(self) -> None:
        """Make the thread drop everything and end."""
        self._inbox.put(_Stop())
        self._courier.let_go()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; returns whether it did."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # ---- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        state = State.STOPPED
        news: BaseException | None = None
        try:
            state = self._live()
        except BaseException as error:
            state, news = (State.REFUSED if self.stats is None else State.FAILED), error
        self._rests = True
        self._handles.clear()
        self._of.clear()
        self._reading.clear()
        _leave_mlx()
        self._tell(state, news)

    def _live(self) -> State:
        scheduler, loaded = self._boot()
        try:
            self.stats = scheduler.stats()
            self._tell(State.READY, loaded)
            del loaded
            while self._obey(scheduler):
                self._post(scheduler.step())
                self._publish(scheduler)
                self._turns += 1
        finally:
            with contextlib.suppress(Exception):  # it may be what failed
                scheduler.close()
        return State.STOPPED

    def _obey(self, scheduler: Scheduler[RequestT, HandleT]) -> bool:
        """Carry out commands, waiting for one if there is nothing else; returns False to stop."""
        while True:
            try:
                idle = not scheduler.busy
                if idle:
                    self._publish(scheduler, at_once=True)
                self._rests = idle
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            self._rests = False
            self._turns += 1
            if isinstance(command, _Stop):
                return False
            if isinstance(command, _Cancel):
                self._drop(scheduler, command.mailbox)
            else:
                self._submit(scheduler, command)

    def _submit(
        self, scheduler: Scheduler[RequestT, HandleT], submission: Submission[RequestT]
    ) -> None:
        """All rows of a request, or none of them."""
        handles = self._of[submission.mailbox] = []
        try:
            for index, row in enumerate(submission.rows):
                handle = scheduler.submit(row)
                handles.append(handle)
                self._handles[handle] = submission.mailbox, index
                if submission.mailbox.watched:
                    self._reading[handle] = 0
        except Exception as error:
            self._drop(scheduler, submission.mailbox)
            self._courier.carry([(submission.mailbox, Delivery(0, (), error=error))])

    def _drop(self, scheduler: Scheduler[RequestT, HandleT], mailbox: Mailbox) -> None:
        for handle in self._of.pop(mailbox, ()):
            self._reading.pop(handle, None)
            if self._handles.pop(handle, None) is not None:
                scheduler.cancel(handle)

    def _post(self, events: Sequence[Event[HandleT]]) -> None:
        deliveries = self._read() if self._reading else []
        for event in events:
            known = self._handles.get(event.handle)
            if known is None:
                continue
            mailbox, index = known
            usage = None
            if event.error is not None or (event.chunks and event.chunks[-1].finish_reason):
                usage = event.handle.usage
                del self._handles[event.handle]
                self._reading.pop(event.handle, None)
                self._forget(mailbox, event.handle)
            progress = event.handle.progress if mailbox.watched else None
            delivery = Delivery(index, event.chunks, usage, event.error, progress)
            deliveries.append((mailbox, delivery))
        if deliveries:
            self._courier.carry(deliveries)

    def _read(self) -> list[tuple[Mailbox, Delivery]]:
        """How much of the watched prompts has been run since the last call."""
        deliveries = []
        for handle, before in list(self._reading.items()):
            progress = handle.progress
            if progress.prefilled > before:
                self._reading[handle] = progress.prefilled
                mailbox, index = self._handles[handle]
                deliveries.append((mailbox, Delivery(index, (), progress=progress)))
            if progress.prefilled >= progress.usage.prompt_tokens:
                del self._reading[handle]
        return deliveries

    def _forget(self, mailbox: Mailbox, handle: HandleT) -> None:
        handles = self._of[mailbox]
        handles.remove(handle)
        if not handles:
            del self._of[mailbox]

    def _publish(self, scheduler: Scheduler[RequestT, HandleT], *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._published >= STATS_EVERY:
            self._published = now
            self.stats = scheduler.stats()

    def _tell(self, state: State, news: LoadedT | BaseException | None) -> None:
        self._courier.call(self._listener, state, news)


class _Courier:
    """Carries deliveries to mailboxes in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bag: list[tuple[Mailbox, Delivery]] = []
        self._lock = threading.Lock()
        self._room = threading.Event()
        self._room.set()
        self._patient = True

    def carry(self, deliveries: Sequence[tuple[Mailbox, Delivery]]) -> None:
        """Add deliveries; waits while the loop does not fetch those that are there."""
        if not self._room.is_set() and self._patient:
            self._room.wait()
        with self._lock:
            first = not self._bag
            self._bag.extend(deliveries)
            if len(self._bag) >= COURIER_LIMIT:
                self._room.clear()
        if first:
            self.call(self._unload)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread, after all that was carried there."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody is waiting
            self._loop.call_soon_threadsafe(function, *arguments)

    def let_go(self) -> None:
        """Never wait again."""
        self._patient = False
        self._room.set()

    def _unload(self) -> None:
        with self._lock:
            bag, self._bag = self._bag, []
            self._room.set()
        for mailbox, delivery in bag:
            mailbox.put(delivery)


def _leave_mlx() -> None:
    """Clean up after compiled functions, as a thread must before it ends."""
    with contextlib.suppress(Exception):
        import mlx.core as mx

        mx.clear_streams()
