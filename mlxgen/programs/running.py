"""A running program: the controller of one branch, driven by an async function.

What the program awaits yields how the branch goes on, and is sent the tokens that this appended. A
coroutine cannot be copied, so a copy replays the ``Record`` of what the program has awaited.
Invariant: the record and the history hold everything that a program has learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..engine import Branch, Chunk, FinishReason, Wait
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

    def replayed(self) -> Entry:
        """The next entry."""
        self._place += 1
        return self.entries[self._place - 1]

    def problem_with(self, did: str, what: str = "") -> StateError | None:
        """The error of a program that does something other than before: the next entry is not one
        of ``what``."""
        if (before := self.entries[self._place].what) == what:
            return None
        return StateError(
            f"a program diverged when it was replayed for a fork: it {did}, but had asked for "
            f"{before} before; make it depend only on what its guide gives it"
        )

    def once(self, what: str, act: Callable[[], T]) -> T:
        """The result of ``act``, which is not called again in a replay."""
        if self.replaying:
            if (problem := self.problem_with(f"asked for {what}", what)) is not None:
                raise problem
            result: T = self.replayed().result
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

    def __await__(self) -> Generator[Answer | StateError, Any, T]:
        """Carries out the step, or replays it. What ends the branch is yielded, not raised, so that
        no program can catch it."""
        self.used = True
        owner = self.owner
        if not owner.is_asked:
            yield StateError(
                f"{self.place}: this is asked of the guide of branch {owner.task.branch}, which"
                " another branch cannot await; use the guide that the program was given"
            )
        record, history = owner.record, owner.history
        if record.replaying:
            if (problem := record.problem_with(f"asked for {self.what}", self.what)) is not None:
                yield problem
            entry = record.replayed()
            history.apply(entry.back, entry.appended)
        else:
            since = history.tokens.moment, len(history.tokens)
            result, error = None, None
            try:
                result = yield from self.make()
            except Exception as raised:
                error = raised
            entry = Entry(self.what, result, error, *history.tokens.changed_since(*since))
            record.add(entry)
        history.spelled(len(entry.appended), fixed=self.what in (FIXED, BACK))
        if entry.error is not None:
            raise entry.error
        given: T = entry.result
        return given

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
        self.is_asked = False  # its program runs now
        self.logprobs = list(logprobs)  # of the generated tokens, 0 for forced ones
        self._start = start
        self._path = path
        self._origin = history.fork()
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._twins: Iterator[Running] = iter(())  # for the branches of a fork
        self._returned: tuple[Any] | None = None

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
        if self._returned is not None:
            return []
        if self._coroutine is None:
            self._origin = self.history.fork()
            self._coroutine, told = self._start(self), None
        self.is_asked = True
        try:
            answer = self._coroutine.send(told)
        except StopIteration as stop:
            if self.record.replaying and (problem := self.record.problem_with("returned")):
                raise problem from None
            answer, self._returned = [], (stop.value,)
        except Exception as error:
            for place in self.forgotten:
                error.add_note(f"what the program asked for at {place} was not awaited")
            raise
        finally:
            self.is_asked = False
        if self.forgotten:
            raise StateError(
                f"{self.forgotten[0]}: what the program asks for there is not awaited and was not "
                "done; write await before it"
            )
        if isinstance(answer, StateError):
            raise answer
        if not isinstance(answer, (list, Wait)):
            raise StateError(f"expected a program to await what its guide gives, got {answer!r}")
        return answer

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
            self.task.finish(self._returned[0], None)
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
