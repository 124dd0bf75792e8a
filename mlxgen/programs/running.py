"""A running program: the controller of one branch, driven by an async function.

A coroutine cannot be copied, so a copy replays the ``Record`` of what the program has awaited.
Invariant: between two calls the coroutine waits for exactly one step; the record and the history
hold everything that it has learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..engine import Branch, Chunk, FinishReason, Wait
from ..engine.branches import Path, name_of
from ..errors import StateError
from ..tokens import Token
from .branch_history import BranchHistory
from .shared import Forked, Task, Variables
from .steps import Answer, Done, Split, Step

T = TypeVar("T")
Start: TypeAlias = Callable[["Running"], Coroutine[Any, Any, Any]]


class Entry(NamedTuple):
    """One thing that a program asked for, what it got, and what that did to the tokens."""

    what: str
    result: Any
    back: int = 0
    appended: Sequence[Token] = ()


class Record:
    """What a program has awaited; ``replaying`` while some of it is still to come again.

    A program that is replayed asks for the same things in the same order; if it does not, that is
    an error.
    """

    __slots__ = ("_entries", "_place")

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self._entries = entries or []
        self._place = 0

    @property
    def replaying(self) -> bool:
        return self._place < len(self._entries)

    def add(self, entry: Entry) -> None:
        """Adds what has just happened."""
        assert not self.replaying
        self._entries.append(entry)
        self._place += 1

    def replayed(self, what: str) -> Entry:
        """The next entry, which must be one of ``what``."""
        entry = self._entries[self._place]
        if entry.what != what:
            raise self.diverged(f"asked for {what}")
        self._place += 1
        return entry

    def newest(self, what: str) -> int:
        """How many of the newest tokens come from entries of ``what``."""
        count = 0
        for entry in reversed(self._entries):
            if entry.what != what and (entry.back or entry.appended):
                break
            count += len(entry.appended)
        return count

    def diverged(self, did: str) -> StateError:
        """The error of a program that does something other than before."""
        return StateError(
            f"a program diverged when it was replayed for a fork: it {did}, but had asked for "
            f"{self._entries[self._place].what} before; make it depend only on what its guide "
            "gives it"
        )

    def once(self, what: str, act: Callable[[], T]) -> T:
        """The result of ``act``, which is not called again in a replay."""
        if self.replaying:
            result: T = self.replayed(what).result
            return result
        result = act()
        self.add(Entry(what, result))
        return result

    def fork(self) -> Record:
        """The same entries, to be replayed from the first."""
        return Record(list(self._entries))


class Awaited(Generic[T]):
    """Something to await once. ``make`` makes the step, unless it is replayed.

    ``place`` is the line of the program that asked for it. If it is deleted without having been
    awaited, ``owner.forgotten`` gets the place: it did nothing, but was meant to.
    """

    __slots__ = ("make", "owner", "place", "used", "what")

    def __init__(self, owner: Running, what: str, make: Callable[[], Step]) -> None:
        self.owner = owner
        self.what = what
        self.make = make
        self.used = False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__package__") == __package__:
            frame = frame.f_back
        self.place = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "a program"

    def __repr__(self) -> str:
        return f"<{self.what} at {self.place}; await it>"

    def __await__(self) -> Generator[Awaited[T], T, T]:
        self.used = True
        return (yield self)

    def __del__(self) -> None:
        if not self.used:
            self.owner.forgotten.append(self.place)


class Running:
    """A ``Controller``; made by ``Program.bind`` for the root, and by ``fork`` for the others.

    ``value`` is what the program returned, ``variables`` are those of all branches.
    """

    def __init__(
        self,
        start: Start,
        history: BranchHistory,
        vocab_size: int,
        variables: Variables,
        *,
        path: Path = (),
        record: Record | None = None,
        entry: Split | None = None,
    ) -> None:
        self.history = history
        self.vocab_size = vocab_size
        self.variables = variables
        self.record = record or Record()
        self.task = Task(name_of(path))
        self.forgotten: list[str] = []  # lines of what was not awaited
        self.logprobs: list[float] = []  # of the generated tokens, 0 for forced ones
        self._start = start
        self._path = path
        self._entry = entry  # the fork from which a copy continues, after its record
        self._origin = history
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._awaited: Awaited[Any] | None = None  # for what the coroutine waits
        self._step: Step | None = None  # what carries it out, once it has been asked
        self._since = (0, 0)  # the history's moment and length when it began
        self._starts: Sequence[Start] | None = None  # by a fork into programs
        self._tasks: list[Task] = []  # of its new branches
        self._returned: Done | None = None

    @property
    def value(self) -> Any:
        """What the program returned; ``None`` if it has not (yet)."""
        return self.task.value

    # ---- the controller --------------------------------------------------------------------

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> list[Branch] | Wait:
        """As ``Controller.mid_process``."""
        self.history.apply(last_backtrack, last_append)
        if self._coroutine is None:
            self._begin()
        elif self._returned is None:
            self._told(branch_idx, last_append)
        while self._returned is None:
            answer = self._ask()
            if not isinstance(answer, Done):
                return answer
            self._continue(answer)
        return []

    def fork(self) -> Running:
        """The copy for the next branch of the fork at which the program stands."""
        step = self._step
        assert isinstance(step, Split), "programs fork only if they ask for it"
        index = len(self._tasks) + 1
        if self._starts is not None:
            start, history, record, entry = self._starts[index - 1], self.history, None, None
        else:
            start, history, record = self._start, self._origin, self.record.fork()
            entry = step.at(index)
        twin = Running(
            start,
            history.fork(),
            self.vocab_size,
            self.variables,
            path=(*self._path, index),
            record=record,
            entry=entry,
        )
        twin.logprobs = list(self.logprobs)
        self._tasks.append(twin.task)
        return twin

    def observe(self, chunk: Chunk) -> None:
        """Keeps a token's log-probability."""
        if chunk.token is not None:
            del self.logprobs[chunk.index :]
            self.logprobs.append(chunk.logprob or 0.0)

    def ended(self, reason: FinishReason | None, error: Exception | None) -> None:
        """Tells those who wait for this branch."""
        if error is not None:
            self.task.finish(None, f"failed: {type(error).__name__}: {error}")
        elif self._returned is not None:
            self.task.finish(self._returned.value, None)
        else:
            self.task.finish(None, f"ended before its program did: {reason}")
        if self._coroutine is not None:
            self._coroutine.close()

    def split(self, count: int, starts: Sequence[Start] | None) -> Split:
        """The step of a fork into ``count`` branches: of this program, or of new ones."""
        self._starts = starts
        tasks: list[Task] = []
        self._tasks = tasks

        def result(index: int) -> Any:
            return tuple(tasks) if starts is not None else Forked(index, (self.task, *tasks))

        return Split(count, result)

    # ---- the coroutine ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._origin = self.history.fork()
        self._coroutine = self._start(self)
        self._resume(Done(None))

    def _continue(self, done: Done) -> None:
        """Records the result of what was awaited, and gives it to the program."""
        assert self._awaited is not None
        back, appended = self.history.tokens.changed_since(*self._since)
        self.record.add(Entry(self._awaited.what, done, back, appended))
        self._resume(done)

    def _resume(self, done: Done) -> None:
        """Runs to the next thing that is awaited and not in the record."""
        while True:
            awaited = self._sent(done)
            if awaited is None:
                return
            if not self.record.replaying:
                break
            entry = self.record.replayed(awaited.what)
            self.history.apply(entry.back, entry.appended)
            done = entry.result
        self._awaited = awaited
        self._since = (self.history.tokens.moment, len(self.history.tokens))
        self._step, self._entry = self._entry, None

    def _sent(self, done: Done) -> Awaited[Any] | None:
        """What the program awaits after it is given a result; ``None``: it has returned."""
        assert self._coroutine is not None
        try:
            if done.error is not None:
                awaited = self._coroutine.throw(done.error)
            else:
                awaited = self._coroutine.send(done.value)
        except StopIteration as stop:
            if self.record.replaying:
                raise self.record.diverged("returned") from None
            self._check_awaited()
            self._returned = Done(stop.value)
            return None
        except Exception as error:
            for place in self.forgotten:
                error.add_note(f"what the program asked for at {place} was not awaited")
            raise
        self._check_awaited()
        if not isinstance(awaited, Awaited):
            raise StateError(f"expected a program to await what its guide gives, got {awaited!r}")
        if awaited.owner is not self:
            raise StateError(
                f"branch {self.task.branch} awaits something from the guide of branch "
                f"{awaited.owner.task.branch}; use the guide that the program was given"
            )
        return awaited

    def _check_awaited(self) -> None:
        if self.forgotten:
            raise StateError(
                f"{self.forgotten[0]}: what the program asks for there is not awaited and was not "
                "done; write await before it"
            )

    def _told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        assert self._step is not None
        if isinstance(self._step, Split):
            self._path = (*self._path, branch_idx)
        try:
            self._step.told(branch_idx, tokens)
        except Exception as error:
            self._continue(Done(None, error))

    def _ask(self) -> Answer:
        """What the step says. What it raises is raised in the program, at its await."""
        try:
            if self._step is None:
                assert self._awaited is not None
                self._step = self._awaited.make()
            return self._step.ask()
        except Exception as error:
            return Done(None, error)
