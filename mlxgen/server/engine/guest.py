"""The sequences of programs, among all others that the engine's thread runs.

A program decides in a thread of its own, and the engine does not wait for it longer than a moment:

    program's thread                        engine's thread
    Lent.fork, change, ... --- inbox --->   while it thinks: carried out, and answered at once
    Lent.step              --- inbox --->   its sequences take part in steps again,
                           <-- answers ---  until something comes of one of them

Owns which of these sequences may be stepped. Must never know what a program is. Belongs to the
engine's thread, apart from a guest's ``answers``.

A program that thinks for longer than ``GRACE`` has its sequences parked, which frees their places,
and from then on it is not waited for until it is quick again. So nobody's step is later than that.

Invariant: while a program thinks, its sequences are not stepped, and nothing of them changes but
what it asks for; so its thread may look into their requests.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...engine import Event, Handle, Scheduler
from ...errors import QueueFullError
from .mailbox import Mailbox

GRACE = 0.002  # seconds in all for which a step waits for programs that think
LONG = 64  # tokens that are run between the steps of others, and not while they wait


class Left(BaseException):
    """Raised in a program's thread whose request is over."""


class Raised(NamedTuple):
    """An answer: what was asked for has raised this."""

    error: BaseException


class Guest:
    """The sequences of one program; ``mailbox`` is that of its request."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.handles: list[Handle] = []
        self.waiting: set[Handle] = set()  # parked by the program itself
        self.asleep: list[Handle] = []  # parked here, because it thinks for long
        self.came: list[Event] = []
        self.sleeps = False
        self.is_quick = True
        self.is_accepted = False  # the first of its sequences was
        self.told = time.monotonic()
        self.has_left = False


Work: TypeAlias = Callable[[Guest, Scheduler], Any]


class Wish(NamedTuple):
    """Something that a program asks for; ``work`` ``None``: to go on until something comes.

    ``makes``: how many sequences come of it. ``forks``: what is to be run up to its end before, so
    that this is done once.
    """

    guest: Guest
    work: Work | None
    makes: int = 0
    forks: Handle | None = None


class Guests:
    """All guests. Together they have no more sequences than may run and wait."""

    def __init__(self) -> None:
        self._hosts: dict[Handle, Guest] = {}
        self._all: list[Guest] = []
        self._thinking: list[Guest] = []
        self._to_fork: dict[Guest, tuple[Handle, Work]] = {}

    @property
    def are_thinking(self) -> bool:
        """Whether a program thinks whose sequences could be stepped."""
        return any(not guest.sleeps for guest in self._thinking)

    @property
    def are_waited_for(self) -> bool:
        """Whether one of these is usually done within a moment."""
        return any(guest.is_quick and not guest.sleeps for guest in self._thinking)

    @property
    def all_think(self) -> bool:
        """Whether there is no program that waits for the engine."""
        return len(self._thinking) == len(self._all)

    def add(self, guest: Guest) -> None:
        """Take in a guest, whose program thinks."""
        self._all.append(guest)
        self._thinking.append(guest)

    def obey(self, wish: Wish, scheduler: Scheduler) -> None:
        """Do what a program asks for."""
        guest, work, makes, forks = wish
        if guest.has_left:
            return
        limits = scheduler.limits
        if makes and len(self._hosts) + makes > limits.max_batch + limits.max_queue:
            full = QueueFullError("programs have too many branches; try again when some are done")
            guest.answers.put(Raised(full))
            return
        self._wake(guest, scheduler)
        if work is None:
            guest.is_quick = time.monotonic() - guest.told < GRACE
            self._thinking.remove(guest)
            if guest.came:
                self._tell(guest)
        elif forks is not None and forks.missing >= LONG:
            self._park(guest, [one for one in guest.handles if one is not forks], scheduler)
            self._thinking.remove(guest)
            self._to_fork[guest] = forks, work
        else:
            self._do(guest, work, scheduler)

    def _do(self, guest: Guest, work: Work, scheduler: Scheduler) -> None:
        failed = next((event.error for event in guest.came if event.error is not None), None)
        if failed is not None:
            guest.came.clear()  # all are of the sequence that was to be forked
        try:
            answer = work(guest, scheduler) if failed is None else Raised(failed)
        except Exception as error:
            answer = Raised(error)
        for handle in guest.handles:
            self._hosts[handle] = guest
        self._forget_closed(guest)
        guest.answers.put(answer)

    def take(self, events: Sequence[Event], scheduler: Scheduler) -> Sequence[Event]:
        """Give programs what came of their sequences in a step; returns the rest."""
        if not self._all:
            return events
        rest = []
        told: dict[Guest, None] = {}
        for event in events:
            guest = self._hosts.get(event.handle)
            if guest is None:
                rest.append(event)
                continue
            guest.came.append(event)
            told[guest] = None
        for guest in told:
            if guest not in self._thinking and guest not in self._to_fork:
                self._tell(guest)  # others are told when they ask for what came
        for guest, (handle, work) in list(self._to_fork.items()):
            if handle.closed or handle.missing < LONG:
                del self._to_fork[guest]
                self._think(guest)
                self._wake(guest, scheduler)
                self._do(guest, work, scheduler)
        return rest

    def _tell(self, guest: Guest) -> None:
        self._forget_closed(guest)
        came, guest.came = guest.came, []
        self._think(guest)
        guest.answers.put(came)

    def _think(self, guest: Guest) -> None:
        guest.told = time.monotonic()
        self._thinking.append(guest)

    def put_to_sleep(self, scheduler: Scheduler) -> None:
        """Park what belongs to programs that think, until they are done."""
        for guest in self._thinking:
            if not guest.sleeps:
                self._park(guest, guest.handles, scheduler)

    def leave(self, guests: Sequence[Guest], scheduler: Scheduler) -> None:
        """Drop guests and all that belongs to them."""
        for guest in guests:
            if guest in self._all:
                self._all.remove(guest)
            if guest in self._thinking:
                self._thinking.remove(guest)
            self._to_fork.pop(guest, None)
            told, guest.has_left = guest.has_left, True  # before its thread can see them closed
            for handle in guest.handles:
                self._hosts.pop(handle, None)
                scheduler.cancel(handle)
            guest.handles = []
            if not told:
                guest.answers.put(Raised(Left()))

    def of(self, mailbox: Mailbox) -> list[Guest]:
        """The guest of a mailbox, if there is one."""
        return [guest for guest in self._all if guest.mailbox is mailbox]

    def close(self) -> None:
        """Let all programs know that the engine has ended."""
        for guest in self._all:
            guest.has_left = True
            guest.answers.put(Raised(Left()))
        self._all, self._thinking, self._hosts, self._to_fork = [], [], {}, {}

    def _park(self, guest: Guest, handles: Sequence[Handle], scheduler: Scheduler) -> None:
        guest.sleeps = True
        rests = guest.waiting
        guest.asleep = [each for each in handles if each not in rests and not each.closed]
        for handle in guest.asleep:
            scheduler.park(handle)

    def _wake(self, guest: Guest, scheduler: Scheduler) -> None:
        asleep, guest.asleep, guest.sleeps = guest.asleep, [], False
        for handle in asleep:
            if not handle.closed:
                scheduler.resume(handle)

    def _forget_closed(self, guest: Guest) -> None:
        for handle in [handle for handle in guest.handles if handle.closed]:
            guest.handles.remove(handle)
            guest.waiting.discard(handle)
            self._hosts.pop(handle, None)
