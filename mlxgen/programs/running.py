"""A running program: the controller of one branch, driven by an async function.

A coroutine cannot be copied, so a copy replays the ``Record`` of what the program has awaited.
Invariant: between two calls the coroutine waits for exactly one step; the record and the history
hold everything that it has learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..engine import Branch, Chunk, FinishReason
from ..engine.branches import Path, name_of
from ..errors import StateError
from ..tokens import Token
from .shared import Forked, Task, Variables
from .steps import BACK, FIXED, Answer, BranchHistory, Step

T = TypeVar("T")
Start: TypeAlias = Callable[["Running"], Coroutine[Any, Any, Any]]


class Entry(NamedTuple):
    """One thing that a program asked for, what it got or what that raised, and what it did to the
    tokens."""

    what: str
    result: Any = None
    error: Exception | None = None
    back: int = 0
    appended: Sequence[Token] = ()


class Record:
    """What a program has awaited; ``replaying`` while some of it is still to come again.

    A program that is replayed asks for the same things in the same order; if it does not, that is
    an error.
    """

    __slots__ = ("_place", "entries")

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries = list(entries)
        self._place = 0

    @property
    def replaying(self) -> bool:
        return self._place < len(self.entries)

    def add(self, entry: Entry) -> None:
        """Adds what has just happened."""
        assert not self.replaying
        self.entries.append(entry)
        self._place += 1

    def replayed(self, what: str) -> Entry:
        """The next entry, which must be one of ``what``."""
        entry = self.entries[self._place]
        if entry.what != what:
            raise self.diverged(f"asked for {what}")
        self._place += 1
        return entry

    def diverged(self, did: str) -> StateError:
        """The error of a program that does something other than before."""
        return StateError(
            f"a program diverged when it was replayed for a fork: it {did}, but had asked for "
            f"{self.entries[self._place].what} before; make it depend only on what its guide "
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
        task: Task | None = None,
        record: Sequence[Entry] = (),
        logprobs: Sequence[float] = (),
    ) -> None:
        self.history = history
        self.vocab_size = vocab_size
        self.variables = variables
        self.record = Record(record)
        self.task = task or Task(())
        self.forgotten: list[str] = []  # lines of what was not awaited
        self.logprobs = list(logprobs)  # of the generated tokens, 0 for forced ones
        self._start = start
        self._path = path
        self._origin = history.fork()
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._what = ""  # what the coroutine waits for
        self._step: Step | None = None  # carries it out; None: the program has not begun, or ended
        self._since = (0, 0)  # the history's moment and length when it began
        self._twins: Iterator[Running] = iter(())  # for the branches of a fork
        self._returned: Entry | None = None

    @property
    def value(self) -> Any:
        """What the program returned; ``None`` if it has not (yet)."""
        return self.task.value

    # ---- the controller --------------------------------------------------------------------

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> Answer:
        """As ``Controller.mid_process``."""
        self.history.apply(last_backtrack, last_append)
        told: Sequence[Token] | None = last_append
        if self._coroutine is None:
            self._origin = self.history.fork()
            self._coroutine = self._start(self)
            self._resume(Entry(""))
            told = None
        while self._step is not None:
            result, error = None, None
            try:
                return self._step.send(told)
            except StopIteration as end:
                result = end.value
            except Exception as raised:  # raised in the program, at its await
                error = raised
            told, changes = None, self.history.tokens.changed_since(*self._since)
            self.record.add(entry := Entry(self._what, result, error, *changes))
            self._note(entry)
            self._resume(entry)
        return []

    def fork(self) -> Running:
        """The copy for the next branch of the fork at which the program stands."""
        return next(self._twins)

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
            self.task.finish(self._returned.result, None)
        else:
            self.task.finish(None, f"ended before its program did: {reason}")
        if self._coroutine is not None:
            self._coroutine.close()

    def split(self, count: int, starts: Sequence[Start] | None) -> Step:
        """The step of a fork into ``count`` branches: of this program, or of new ones."""
        tasks = tuple([Task(name_of((*self._path, index))) for index in range(1, count)])
        self._twins = self._copies(tasks, starts)
        if count > 1:
            yield [Branch(ff_tokens=[[]])] * count
            self._path = (*self._path, 0)
        return Forked(0, (self.task, *tasks)) if starts is None else tasks

    def _copies(self, tasks: tuple[Task, ...], starts: Sequence[Start] | None) -> Iterator[Running]:
        for index, task in enumerate(tasks, start=1):
            if starts is not None:
                start, history, record = starts[index - 1], self.history, []
            else:
                start, history = self._start, self._origin
                forked = Entry("fork", Forked(index, (self.task, *tasks)))
                record = [*self.record.entries, forked]
            yield Running(
                start,
                history.fork(),
                self.vocab_size,
                self.variables,
                path=(*self._path, index),
                task=task,
                record=record,
                logprobs=self.logprobs,
            )

    # ---- the coroutine ---------------------------------------------------------------------

    def _resume(self, entry: Entry) -> None:
        """Runs the program to the next thing that is awaited and not in the record, or its end."""
        while True:
            awaited = self._sent(entry)
            if awaited is None or not self.record.replaying:
                break
            entry = self.record.replayed(awaited.what)
            self.history.apply(entry.back, entry.appended)
            self._note(entry)
        self._step = None
        if awaited is not None:
            self._what, self._step = awaited.what, awaited.make()
            self._since = (self.history.tokens.moment, len(self.history.tokens))

    def _note(self, entry: Entry) -> None:
        self.history.spelled(len(entry.appended), fixed=entry.what in (FIXED, BACK))

    def _sent(self, entry: Entry) -> Awaited[Any] | None:
        """What the program awaits after it is given a result; ``None``: it has returned."""
        assert self._coroutine is not None
        try:
            if entry.error is not None:
                awaited = self._coroutine.throw(entry.error)
            else:
                awaited = self._coroutine.send(entry.result)
        except StopIteration as stop:
            if self.record.replaying:
                raise self.record.diverged("returned") from None
            self._check_awaited()
            self._returned = Entry("", stop.value)
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
