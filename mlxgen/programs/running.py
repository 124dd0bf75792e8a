"""A running program: the controller of one branch, driven by an async function.

What the program awaits yields how the branch goes on, and is sent the tokens that this appended. A
coroutine cannot be copied, so a fork runs the program again, and replays the ``Entry`` of each of
its requests. Invariant: the entries and the history hold all that a program has learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..engine import Branch, Chunk, FinishReason, Wait
from ..engine.branches import Path, name_of
from ..engine.history import History
from ..errors import StateError
from ..forks import forked
from ..text import TextDecoder
from ..tokens import Token, Vocabulary, in_common
from .shared import Forked, Task, Variables

T = TypeVar("T")
Answer: TypeAlias = list[Branch] | Wait
Step: TypeAlias = Generator[Answer, Any, T]
"""How a branch goes on, one answer after another; it is sent the tokens that each appended."""
Start: TypeAlias = Callable[["Running"], Coroutine[Any, Any, Any]]

FIXED, BACK = "fixed", "backtrack"  # the requests that append text not spelled by the model


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the text to go back to; made by ``Guide.label``.

    ``length`` and ``moment``: those of the history when the label was made. ``end``: the tokens of
    fixed text before it, which may be spelled anew with what follows.
    """

    length: int
    moment: int
    end: tuple[Token, ...] = ()


class BranchHistory:
    """The prompt and the generated tokens. ``base``: the length of the prompt. ``fixed``: the runs
    of text that the model has not spelled, each from one length to another. ``removed``: the
    prompt's end that the first tokens spell again, which is not generated text."""

    __slots__ = ("base", "fixed", "opens_text", "removed", "tokens", "vocabulary")

    def __init__(
        self,
        prompt: Sequence[Token],
        vocabulary: Vocabulary,
        *,
        opens_text: bool,
        removed: bytes = b"",
    ):
        self.tokens = History(prompt)
        self.base = len(self.tokens)
        self.vocabulary = vocabulary
        self.opens_text = opens_text
        self.removed = removed
        self.fixed: list[tuple[int, int]] = []

    def apply(self, back: int, appended: Sequence[Token]) -> None:
        """Takes a report: tokens taken back, then tokens appended."""
        self.tokens.cut(len(self.tokens) - back)
        self.tokens += appended

    def spelled(self, count: int, *, fixed: bool) -> None:
        """Note whether the newest ``count`` tokens, which one request appended, are fixed."""
        end, length = len(self.tokens) - count, len(self.tokens)
        self.fixed = [(start, min(stop, end)) for start, stop in self.fixed if start < end]
        if fixed and count:
            joins = self.fixed and self.fixed[-1][1] == end
            self.fixed.append((self.fixed.pop()[0] if joins else end, length))

    @property
    def newest(self) -> int:
        """How many of the newest tokens are fixed text."""
        start, stop = self.fixed[-1] if self.fixed else (0, 0)
        return stop - start if stop == len(self.tokens) else 0

    @property
    def text(self) -> str:
        """The text of the generated tokens, as far as characters are complete."""
        decoder = TextDecoder(self.vocabulary, strip=self.opens_text, skip=len(self.removed))
        for token in self.tokens[self.base :]:
            decoder.advance(token)
        return decoder.text

    @property
    def unspelled(self) -> Sequence[Token]:
        """Tokens for the part of the prompt's end that is still to be spelled again."""
        return self.after_prompt(b"")

    def after_prompt(self, data: bytes) -> Sequence[Token]:
        """Tokens for ``data``, spelled together with the unspelled part of the prompt's end."""
        if self.removed:
            data = self.removed[len(self.bytes_of(self.tokens[self.base :])) :] + data
        return self.vocabulary.continue_with(data) if data else ()

    def label(self) -> Label:
        tokens = self.tokens
        return Label(len(tokens), tokens.moment, tuple(tokens[len(tokens) - self.newest :]))

    def find(self, label: Label) -> tuple[int, Sequence[Token]]:
        """How many tokens to take back to get to a label, and which to append then, as the text
        before it may have been spelled anew. StateError if its place was taken back."""
        tokens, start = self.tokens, label.length - len(label.end)
        low = tokens.low_since(label.moment) if label.moment <= tokens.moment else -1
        if label.length <= low:
            return len(tokens) - label.length, ()
        before = self.bytes_of(label.end)
        now = self.bytes_of(tokens[start : start + len(before)]) if start <= low else b""
        if not before or not now.startswith(before):
            raise StateError("the text before this label was taken back; make a new label")
        kept = in_common(tokens[start:], label.end)
        return len(tokens) - start - kept, label.end[kept:]

    def bytes_of(self, tokens: Sequence[Token]) -> bytes:
        return b"".join([self.vocabulary.piece(token) for token in tokens])

    def fork(self) -> BranchHistory:
        """An independent copy."""
        return forked(self, shared=("vocabulary",))


class Entry(NamedTuple):
    """A request of a program: its result or its error, and what it did to the tokens."""

    what: str
    result: Any = None
    error: Exception | None = None
    back: int = 0
    appended: Sequence[Token] = ()


class Awaited(Generic[T]):
    """A request, to be awaited once. ``make`` makes its step, unless it is replayed.

    ``place`` is the line of the program that made it. If it is deleted without having been awaited,
    the program's error names the place: the request was not carried out.
    """

    __slots__ = ("_make", "_running", "_used", "_what", "place")

    def __init__(self, running: Running, what: str, make: Callable[[], Step[T]]) -> None:
        self._running = running
        self._what = what
        self._make = make
        self._used = False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__package__") == __package__:
            frame = frame.f_back
        self.place = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "a program"

    def __repr__(self) -> str:
        return f"<{self._what} at {self.place}; await it>"

    def __await__(self) -> Generator[Answer | StateError, Any, T]:
        """Carries out the step, or replays it. An error that ends the branch is yielded, not
        raised, so that no program can catch it."""
        self._used = True
        running, history = self._running, self._running.history
        if not running.is_asked:
            yield StateError(
                f"{self.place}: this is asked of the guide of branch {running.task.branch}, which"
                " another branch cannot await; use the guide that the program was given"
            )
        entry = running.replayed(self._what)
        if isinstance(entry, StateError):
            yield entry
        if isinstance(entry, Entry):
            history.apply(entry.back, entry.appended)
        else:
            since = history.tokens.moment, len(history.tokens)
            result, error = None, None
            try:
                result = yield from self._make()
            except Exception as raised:
                error = raised
            entry = Entry(self._what, result, error, *history.tokens.changed_since(*since))
            running.add(entry)
        history.spelled(len(entry.appended), fixed=self._what in (FIXED, BACK))
        if entry.error is not None:
            raise entry.error
        given: T = entry.result
        return given

    def __del__(self) -> None:
        if not self._used:
            self._running.forgotten.append(self.place)


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
        task: Task | None = None,
        path: Path = (),
        entries: Sequence[Entry] = (),
        logprobs: Sequence[float] = (),
    ) -> None:
        self.history = history
        self.vocab_size = vocab_size
        self.variables = variables
        self.task = task or Task(())
        self.forgotten: list[str] = []  # lines of requests that were not awaited
        self.is_asked = False  # whether its program runs now
        self.logprobs = list(logprobs)  # of the generated tokens, 0 for forced ones
        self._start = start
        self._path = path
        self._entries = list(entries)
        self._replayed = 0  # how many of them the program has made by now
        self._origin = history.fork()
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._twins: list[Running] = []  # for the branches of a fork
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
        if self._returned is not None:
            return []
        told: Sequence[Token] | None = last_append
        if self._coroutine is None:
            self._origin = self.history.fork()
            self._coroutine, told = self._start(self), None
        self.is_asked = True
        try:
            answer = self._coroutine.send(told)
        except StopIteration as stop:
            if isinstance(problem := self.replayed(""), StateError):
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
        """The copy for the next branch of the current fork."""
        return self._twins.pop(0)

    def observe(self, chunk: Chunk) -> None:
        """Keeps a token's log-probability."""
        if chunk.token is not None:
            del self.logprobs[chunk.index :]
            self.logprobs.append(chunk.logprob or 0.0)

    def ended(self, reason: FinishReason | None, error: Exception | None) -> None:
        """Finishes the task, which wakes those who wait for this branch."""
        if error is not None:
            self.task.finish(None, f"failed: {type(error).__name__}: {error}")
        elif self._returned is not None:
            self.task.finish(self._returned[0], None)
        else:
            self.task.finish(None, f"ended before its program did: {reason}")
        if self._coroutine is not None:
            self._coroutine.close()

    # ---- the requests of its program -------------------------------------------------------

    def replayed(self, what: str) -> Entry | StateError | None:
        """What a replayed program got for this request; ``None`` if the request is new.

        A replay has to make the same requests in the same order; if it does not, this is an error.
        ``what`` is empty for a program that returns.
        """
        if self._replayed == len(self._entries):
            return None
        entry = self._entries[self._replayed]
        if entry.what == what:
            self._replayed += 1
            return entry
        return StateError(
            "a program diverged when it was replayed for a fork: it "
            f"{f'asked for {what}' if what else 'returned'}, but had asked for {entry.what} "
            "before; make it depend only on what its guide gives it"
        )

    def add(self, entry: Entry) -> None:
        """Adds the request that was just carried out."""
        self._entries.append(entry)
        self._replayed += 1

    def once(self, what: str, act: Callable[[], T]) -> T:
        """The result of ``act``, which is not called again in a replay."""
        entry = self.replayed(what)
        if isinstance(entry, StateError):
            raise entry
        if entry is None:
            self.add(entry := Entry(what, act()))
        result: T = entry.result
        return result

    def split(self, starts: Sequence[Start | None]) -> Step[tuple[Task, ...]]:
        """The step of a fork into this branch and one for each of ``starts``; ``None`` runs this
        program there, too. Returns the tasks of all of them."""
        names = [name_of((*self._path, index)) for index in range(1, len(starts) + 1)]
        tasks = (self.task, *map(Task, names))
        for index, start in enumerate(starts, start=1):
            again = start is None
            twin = Running(
                start or self._start,
                (self._origin if again else self.history).fork(),
                self.vocab_size,
                self.variables,
                task=tasks[index],
                path=(*self._path, index),
                entries=[*self._entries, Entry("fork", Forked(index, tasks))] if again else (),
                logprobs=self.logprobs,
            )
            self._twins.append(twin)
        if starts:
            yield [Branch(ff_tokens=[[]])] * (1 + len(starts))
            self._path = (*self._path, 0)
        return tasks
