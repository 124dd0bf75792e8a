"""The one thread that loads the model, runs it and frees it.

Owns the thread, its inbox of commands, and the way of what is generated to the event loop. Must
never know requests, JSON or HTTP.

    event loop                                engine's thread
    submit, cancel, stop  --- inbox --->      obey, step, obey, step, ...
    Mailbox.put           <-- news ------     one wake-up of the loop for each step at most

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
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...engine import Handle, Request, Scheduler, Stats
from .boot import Engine, EngineBoot
from .mailbox import Delivery, Mailbox

STEPS_AHEAD = 1024
_PAUSE = 0.001  # seconds between two looks at a loop that is so far behind
GLANCE = 0.005  # seconds: more than 200 pieces of text a second are more than anybody sees
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


class _Cancel(NamedTuple):
    mailbox: Mailbox


class _Stop(NamedTuple):
    pass


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
        self._inbox: queue.SimpleQueue[_Submit | _Cancel | _Stop] = queue.SimpleQueue()
        self._news: deque[list[tuple[Mailbox, Delivery | Exception]]] = deque()  # of steps
        self._called = False  # the loop will look there at once
        self._glances = False  # it will look there within ``GLANCE`` seconds
        self._looked = 0.0  # when it did, by its clock
        self._patient = True
        self._rows: dict[Handle, tuple[Mailbox, int]] = {}
        self._reading: dict[Handle, int] = {}  # watched prompts, and how far they are
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

    def submit(self, sequences: Sequence[Request], mailbox: Mailbox) -> None:
        """Generate sequences; what comes of them, errors included, goes to the mailbox."""
        self._inbox.put(_Submit(sequences, mailbox))

    def cancel(self, mailbox: Mailbox) -> None:
        """Drop the sequences of a mailbox wherever they are; nothing more comes from them."""
        self._inbox.put(_Cancel(mailbox))

    def stop(self) -> None:
        """Make the thread drop everything and end."""
        self._inbox.put(_Stop())
        self._patient = False

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
            self._live()
        except BaseException as error:
            state, news = (State.REFUSED if self.stats is None else State.FAILED), error
        self._rests = True
        self._rows.clear()
        self._reading.clear()
        _leave_mlx()
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
        finally:
            with contextlib.suppress(Exception):  # it may be what failed
                scheduler.close()

    def _obey(self, scheduler: Scheduler) -> bool:
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
                self._submit(scheduler, command.sequences, command.mailbox)

    def _submit(self, scheduler: Scheduler, sequences: Sequence[Request], mailbox: Mailbox) -> None:
        """All sequences of a request, or none of them."""
        try:
            for index, sequence in enumerate(sequences):
                handle = scheduler.submit(sequence)
                self._rows[handle] = mailbox, index
                if mailbox.watched:
                    self._reading[handle] = 0
        except Exception as error:
            self._drop(scheduler, mailbox)
            self._call(mailbox.fail, error)

    def _drop(self, scheduler: Scheduler, mailbox: Mailbox) -> None:
        for handle in [handle for handle, (box, _) in self._rows.items() if box is mailbox]:
            self._forget(handle)
            scheduler.cancel(handle)

    def _forget(self, handle: Handle) -> None:
        del self._rows[handle]
        self._reading.pop(handle, None)

    def _step(self, scheduler: Scheduler) -> None:
        events = scheduler.step()
        news: list[tuple[Mailbox, Delivery | Exception]] = self._read() if self._reading else []
        urgent = bool(news)
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
            progress = handle.progress if mailbox.watched else None
            news.append((mailbox, Delivery(index, event.chunks, usage, progress)))
        if news:
            while len(self._news) >= STEPS_AHEAD and self._patient:
                time.sleep(_PAUSE)
            self._news.append(news)
            if not self._called and (urgent or not self._glances):
                self._called = True
                self._call(self._deliver)

    def _read(self) -> list[tuple[Mailbox, Delivery | Exception]]:
        """How much of the watched prompts has been run since the last call."""
        news: list[tuple[Mailbox, Delivery | Exception]] = []
        for handle, before in list(self._reading.items()):
            progress = handle.progress
            if progress.prefilled > before:
                self._reading[handle] = progress.prefilled
                mailbox, index = self._rows[handle]
                news.append((mailbox, Delivery(index, (), progress=progress)))
            if progress.prefilled >= progress.usage.prompt_tokens:
                del self._reading[handle]
        return news

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


def _leave_mlx() -> None:
    """Clean up after compiled functions, as a thread must before it ends."""
    with contextlib.suppress(Exception):
        import mlx.core as mx

        mx.clear_streams()
