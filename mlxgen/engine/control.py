"""The driver of ``LanguageModel.control``: a controller, and the branches that it forks.

Owns the order of events: a step of all branches, their chunks to the caller, and then, while the
next pass runs, every controller that has to decide. Invariant: no branch is stepped before its
controller has said how to draw its next token; an error in a branch ends that branch and no other.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from ..errors import MlxgenError, OptionError, StateError
from ..images import plain
from .branches import C, Controller, Decision, Path, Wait, decide, name_of
from .chunk import Chunk, Result, Usage, fold
from .limits import Stats
from .options import Options
from .pulled import Pulled
from .request.request import Request
from .scheduling.scheduler import Scheduler
from .step.drawn import Event
from .step.handle import Handle

IDLE_CALLS = 10_000  # a branch fails after more consecutive answers that sample nothing

_REFUSED: Mapping[str, str] = {
    "hooks": "a controller decides on every token itself; use its observe method",
    "max_resample": "there are no hooks that could ask for another draw; leave it out",
    "banned": "a ban takes back tokens that the controller counts on; use its masks",
    "thinking_budget": "the end of the thinking would be forced; let the controller force it",
    "loops": "what repeats is taken back by the controller, if by anybody; leave it out",
    "close_json": "its way to an end and the controller's masks exclude each other; leave it out",
    "prefix": "pass these tokens with the prompt, or as ff_tokens of the first branch",
    "prompt_logprobs": "its branches may begin anywhere; score the prompt with lm.generate",
    "allow_retract": "what a controller takes back is always retracted; leave it out",
}


def control_options(given: Mapping[str, Any]) -> Options:
    """The options of a controlled generation; ``OptionError`` for those it does not support."""
    for name, reason in _REFUSED.items():
        value, own = given.get(name), name == "allow_retract"
        if value not in (None, (), [], "auto", "off") and value is not own:
            raise OptionError(name, f"cannot be used with a controller: {reason}")
    return Options.of({**given, "allow_retract": True})


def bound_controller(controller: Any, request: Request, *, opens_text: bool) -> Controller:
    """The root's controller for a request; ``opens_text``: a new text starts after the prompt."""
    if hasattr(controller, "bind"):
        controller = controller.bind(
            request.vocabulary,
            request.vocab_size,
            prompt=tuple(plain(request.history)),
            opens_text=opens_text,
            removed=b"" if request.healer is None else request.healer.removed,
        )
    if not callable(getattr(controller, "mid_process", None)):
        raise OptionError(
            "controller",
            "expected a controller, which has mid_process, or a Program, got "
            f"{type(controller).__name__}",
        )
    made: Controller = controller
    return made


@dataclass(slots=True, eq=False)
class _Live:
    """A branch, and what its caller and its controller know of it."""

    path: Path
    handle: Handle
    controller: Controller
    chunks: list[Chunk]  # those of its parent up to the fork, and its own
    asked: tuple[int, int]  # the history's moment and length when it was last asked
    given: int = 0  # how many chunks the caller has taken
    seen: int = 0  # how many the controller has seen
    idle: int = 0  # answers since the last one with a mask
    wait: Wait | None = None

    @property
    def name(self) -> Path:
        return name_of(self.path)


class Control(Pulled[tuple[_Live, Chunk | Exception], tuple[Path, Chunk]], Generic[C]):
    """An iterator of ``(branch, chunk)`` and a context manager; made by ``LanguageModel.control``.

    A branch is named by the fork indexes that lead to it: ``()`` is the root, ``(1,)`` the second
    branch of its first fork, ``(0, 1)`` that of its second fork; the first branch of a fork stays
    its parent. The chunks of a branch continue those of its parent at the fork. If tokens were
    taken back, ``Chunk.retract`` says how much text to delete.

    - ``results``: by name, a ``Result`` for each branch that has ended, with the whole text and
      all tokens. The result of a branch that failed has no finish reason.
    - ``errors``: the errors of the branches that failed, by name. ``next()`` raises them, with a
      note that names the branch; you can keep iterating.
    - ``controller``: the root's controller.

    Controllers are asked after the chunks of a step were taken, before the next step.

    A control belongs to the thread that calls ``next()`` first. In other threads ``next()`` and
    ``leave`` raise ``StateError``; they may ``close`` it, and read its attributes.
    """

    def __init__(self, scheduler: Scheduler, request: Request, controller: C) -> None:
        super().__init__("control")
        self._scheduler = scheduler
        self.controller: C = controller
        self.results: dict[Path, Result] = {}
        self.errors: dict[Path, Exception] = {}
        root = _Live((), scheduler.submit(request), controller, [], (0, request.base))
        root.handle.asks_each = True
        self._live = {root.handle: root}
        self._known: dict[Path, _Live] = {(): root}  # including those that have ended

    def _move(self) -> bool:
        self._decide()
        if self._live and not self._ready:
            self._take(self._scheduler.step())
        return bool(self._live or self._ready)

    def follows(self, handle: Handle) -> bool:
        """Whether a sequence is a branch that has not ended."""
        return handle in self._live

    def push(self, events: Iterable[Event]) -> Iterator[tuple[Path, Chunk]]:
        """The chunks of a step's ``events``, for callers who step the scheduler themselves.

        Call it, and exhaust it, before the first step and after every one. So a controller is asked
        before its prompt runs, whose last tokens may run in the same step as the first draw.
        """
        self._take(events)
        while True:
            while self._ready:
                yield self._give(self._ready.popleft())
            self._decide()
            if not self._ready:
                return

    def _give(self, ready: tuple[_Live, Chunk | Exception]) -> tuple[Path, Chunk]:
        live, item = ready
        if isinstance(item, Exception):
            raise item
        live.given += 1
        return live.name, item

    @property
    def branches(self) -> tuple[Path, ...]:
        """The names of the branches that have not ended, including those that wait."""
        return tuple(live.name for live in self._live.values())

    @property
    def made(self) -> tuple[Path, ...]:
        """The names of all branches so far, in the order in which they were made."""
        return tuple(self._known)

    @property
    def stats(self) -> Stats:
        """What the scheduler holds now, and what all branches have done so far."""
        return self._scheduler.stats()

    def text(self, branch: Path = ()) -> str:
        """The text of a branch so far, including its parent's up to the fork."""
        return fold(self.chunks(branch), Usage()).text

    def chunks(self, branch: Path = ()) -> list[Chunk]:
        """The chunks of a branch that were taken so far, and its parent's up to the fork."""
        live = self._find(branch)
        return live.chunks[: live.given]

    def controller_of(self, branch: Path) -> Controller:
        """The controller of a branch, which may have ended."""
        return self._find(branch).controller

    def leave(self, branch: Path) -> None:
        """End a branch and free what it holds; does nothing if it has ended already.

        Its result has the finish reason ``"cancelled"``, and also the text of chunks that were
        not taken yet.
        """
        self._owner.check()
        live = self._find(branch)
        if live.handle in self._live:
            self._ready = deque(item for item in self._ready if item[0] is not live)
            self._cancel(live)

    def _free(self) -> None:
        self._ready.clear()
        for live in list(self._live.values()):
            self._cancel(live)
        self._scheduler.close()

    def _find(self, branch: Path) -> _Live:
        live = self._known.get(branch) if isinstance(branch, tuple) else None
        if live is None:
            raise OptionError(
                "branch", f"expected the name of a branch, one of {self.branches}, got {branch!r}"
            )
        return live

    def _cancel(self, live: _Live) -> None:
        for event in self._scheduler.finish(live.handle, "cancelled"):
            live.chunks += event.chunks
        self._end(live)

    # ---- deciding --------------------------------------------------------------------------

    def _decide(self) -> None:
        """Ask how to draw the next token of every branch."""
        while True:
            for live in self._live.values():
                if live.wait is not None and live.wait.woken:
                    live.wait = None
                    self._scheduler.resume(live.handle)
            undecided = [live for live in self._live.values() if self._is_undecided(live)]
            if not undecided:
                break
            for live in undecided:
                while self._is_undecided(live):
                    self._ask(live)
        waits = [f"{live.name} for {live.wait.what}" for live in self._live.values() if live.wait]
        if waits and len(waits) == len(self._live) and not self._ready:
            error = StateError(
                f"all branches wait, so none is left to wake them: {'; '.join(waits)}"
            )
            self._ready.append((next(iter(self._live.values())), error))
            for live in list(self._live.values()):
                if live.handle in self._live:
                    self._end(live, error)

    def _is_undecided(self, live: _Live) -> bool:
        alive = self._live.get(live.handle) is live and not live.handle.closed
        return alive and live.wait is None and live.handle.request.steering is None

    def _ask(self, live: _Live) -> None:
        request, history = live.handle.request, live.handle.history
        try:
            if live.handle.start() and (request.finish_reason is not None or request.position):
                self._take(self._scheduler.change(live.handle, 0, ()))  # what filters force
                return
            live.idle += 1
            if live.idle > IDLE_CALLS:
                raise StateError(
                    f"the controller's last {IDLE_CALLS} answers have not sampled a token; sample "
                    "one, return [] to stop, or return a Wait to pause"
                )
            if (observe := getattr(live.controller, "observe", None)) is not None:
                for chunk in live.chunks[live.seen :]:
                    observe(chunk)
            live.seen = len(live.chunks)
            told = history.changed_since(*live.asked)
            live.asked = history.moment, len(history)
            index = live.path[-1] if live.path else 0
            answer = decide(
                live.controller.mid_process(index, *told),
                length=len(history),
                vocab_size=request.vocab_size,
            )
            if isinstance(answer, Wait):
                self._scheduler.park(live.handle)
                live.wait = answer
            elif not answer:
                self._take(self._scheduler.finish(live.handle, "stop"))
            else:
                branches = [live, *self._fork(live, len(answer) - 1)] if answer[1:] else [live]
                for branch, decision in zip(branches, answer, strict=True):
                    self._carry_out(branch, decision)
        except Exception as error:
            self._fail(live, error)

    def _fork(self, live: _Live, count: int) -> list[_Live]:
        copies = [_copy_of(live.controller) for _ in range(count)]
        twins: list[_Live] = []
        for handle, controller in zip(
            self._scheduler.fork(live.handle, count), copies, strict=True
        ):
            path, known = (*live.path, len(twins) + 1), len(live.chunks)
            twin = _Live(path, handle, controller, list(live.chunks), live.asked, known, known)
            self._live[handle] = self._known[twin.name] = twin
            twins.append(twin)
        live.path = (*live.path, 0)
        return twins

    def _carry_out(self, live: _Live, decision: Decision) -> None:
        try:
            if decision.backtrack or decision.run:
                self._take(self._scheduler.change(live.handle, decision.backtrack, decision.run))
            if not live.handle.closed:
                live.handle.request.steering = decision.steering
        except Exception as error:
            self._fail(live, error)
        if decision.steering is not None:
            live.idle = 0

    # ---- results ---------------------------------------------------------------------------

    def _take(self, events: Iterable[Event]) -> None:
        for handle, chunks, error in events:
            live = self._live[handle]
            if error is not None:
                self._fail(live, error)
                continue
            live.chunks += chunks
            self._ready.extend([(live, chunk) for chunk in chunks])
            if handle.closed:
                self._end(live)

    def _fail(self, live: _Live, error: Exception) -> None:
        """End a branch with an error; the others are not affected."""
        note = f"in branch {live.name}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        self._ready.append((live, error))
        self._end(live, error)

    def _end(self, live: _Live, error: Exception | None = None) -> None:
        del self._live[live.handle]
        self._scheduler.cancel(live.handle)
        result = self.results[live.name] = fold(live.chunks, live.handle.usage)
        if error is not None:
            self.errors[live.name] = error
        try:
            if (ended := getattr(live.controller, "ended", None)) is not None:
                ended(None if error is not None else result.finish_reason, error)
        except Exception as failure:
            self.errors[live.name] = failure
            self._ready.append((live, failure))


def _copy_of(controller: Controller) -> Controller:
    fork = getattr(controller, "fork", None)
    if fork is not None:
        twin: Controller = fork()
        return twin
    try:
        return copy.deepcopy(controller)
    except MlxgenError:
        raise
    except Exception as error:
        raise StateError(
            f"a {type(controller).__name__} cannot be copied for a branch ({error}); give it a "
            "fork method"
        ) from error
