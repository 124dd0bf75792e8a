"""A step loop that tells what it does and how long that takes, for timelines.

Owns the moments that it tells: the verbs of each step, the passes as the device works on them, and
what becomes of each request. Must never write a file, or know how a timeline is drawn. Invariant:
on the tracks ``host`` and ``device`` a moment is within another one or apart from it; a ``Loop``
that nobody watches is another class and pays nothing.

A pass is on the device from when it was submitted, or from when the pass before it was done, until
the host has waited for it. If it waited for several at once, they share that time by their tokens.
What lies between two passes is ``host``: the device had nothing to do, because the host was not
ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from ..chunk import Chunk
from ..kv.here import Here
from .accepting import Event
from .handle import Handle
from .pace import Clock, Pace, Submitted
from .step import Loop

HOST, DEVICE = "host", "device"
NUMBERS = count(1)  # of requests, for the names of their tracks
VERBS = {
    "align": "_align",
    "plan": "_drafting",
    "draw": "_draw",
    "look ahead": "_look_ahead",
    "draw ahead": "_blind_requests",
    "masks": "_warm",
}
"""The verbs of a step, and the methods of a loop that do them."""
PAUSE = 0.1  # seconds outside of steps, after which the device was not kept waiting by the host


class Moment(NamedTuple):
    """What happened on a track, from ``start`` for so many ``seconds`` of the device's clock;
    ``None``: at that instant."""

    track: str
    name: str
    start: float
    seconds: float | None
    facts: Mapping[str, Any]


Watch: TypeAlias = Callable[[Moment], None]


class WatchedClock(Clock):
    """A clock that also tells which passes the device works on, and from when to when."""

    __slots__ = ("_done", "_waiting", "_watch", "device", "kind", "on_read", "paused")

    def __init__(self, pace: Pace, device: Here, watch: Watch) -> None:
        super().__init__(pace, device)
        self.device = device
        self.kind = "pass"  # what the next passes are, if they are not pieces of a prompt
        self.on_read: Callable[[float], None] = lambda now: None
        self.paused = False  # since the last read
        self._watch = watch
        self._waiting: deque[tuple[float, str, int]] = deque()  # start, kind, tokens
        self._done: float | None = None

    def run(self, tokens: int, *, of_prompt: bool = False) -> None:
        super().run(tokens, of_prompt=of_prompt)
        kind = "prefill" if of_prompt else self.kind
        self._waiting.append((self.device.now(), kind, tokens))

    def wait(self) -> None:
        super().wait()
        self._tell(0)

    def forget(self) -> None:
        super().forget()
        self._waiting.clear()

    def read(self, rows: int, submitted: Submitted, *, plain: bool) -> float:
        seconds = super().read(rows, submitted, plain=plain)
        self._tell(self.submitted.passes - submitted.passes if self.device.queues else 0)
        return seconds

    def _tell(self, left: int) -> None:
        """The host has waited for all passes but the last ``left``."""
        now = self.device.now()
        passes = [self._waiting.popleft() for _ in range(len(self._waiting) - left)]
        if passes:
            start = passes[0][0]
            if self._done is not None and start <= self._done:
                start = self._done
            elif self._done is not None and not self.paused:
                self._watch(Moment(DEVICE, "host", self._done, start - self._done, {}))
            each = (now - start) / sum(tokens for _, _, tokens in passes)
            for _, kind, tokens in passes:
                self._watch(Moment(DEVICE, kind, start, tokens * each, {"tokens": tokens}))
                start += tokens * each
            self._done, self.paused = now, False
        self.on_read(now)


class _Seen(NamedTuple):
    """What of a request was told."""

    track: str
    rewound: int
    redraws: int
    drafts: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, track: str, handle: Handle) -> _Seen:
        tally = handle.request.tally
        return cls(track, tally.rewound, tally.redraws, dict(handle.drafts.counts))


class WatchedLoop(Loop):
    """See the module. Each verb of a step is told when it is done, within its ``step``."""

    def __init__(self, *parts: Any, watch: Watch, **kind: Any) -> None:
        super().__init__(*parts, **kind)
        self._watch = watch
        self._watched = WatchedClock(self.clock.pace, self.runner, watch)
        self._watched.on_read = self._read
        self.clock = self.passes.clock = self._watched
        self._seen: WeakKeyDictionary[Handle, _Seen] = WeakKeyDictionary()
        self._depth = 0  # of spans that are open
        self._since = 0.0  # when the last verb of the step ended
        self._accepts = False
        for name, verb in VERBS.items():
            setattr(self, verb, self._timed(name, getattr(self, verb)))

    def join(self, handle: Handle) -> None:
        super().join(handle)
        if handle not in self._seen:
            self._seen[handle] = _Seen.of(f"request {next(NUMBERS)}", handle)
            request = handle.request
            facts = {"prompt": request.base, "cached": handle.cached}
            if request.position > request.first:
                facts["forked"] = request.position
            self._tell(handle, "begins", facts)

    def step(self, events: list[Event]) -> None:
        for handle in self.handles:
            self._compare(handle, "caller")
        self._watched.paused |= self.runner.now() - self._since > PAUSE
        facts: dict[str, Any] = {"requests": len(self.handles)}
        with self._span("step", facts):
            try:
                super().step(events)
            finally:
                self._accepted(self.runner.now())
                facts["tokens"] = sum(len(event.chunks) for event in events)
        for handle in self.handles:
            self._compare(handle, "step")
        for event in events:
            for chunk in event.chunks:
                self._tell(event.handle, "token", _facts(chunk))

    # ---- the verbs -------------------------------------------------------------------------

    def _propose(self, handle: Handle) -> None:
        start = self.runner.now()
        super()._propose(handle)
        if handle.guess is not None:
            facts = {"drafter": handle.guess.drafter, "tokens": len(handle.guess.fed)}
            self._watch(Moment(HOST, "draft", start, self.runner.now() - start, facts))

    def _forward(self, handles: Sequence[Handle]) -> None:
        if not handles:
            return super()._forward(handles)
        new = all(handle.kv.length < handle.request.base for handle in handles)
        self._watched.kind = "prefill" if new else "pass"
        with self._span("run", {"requests": len(handles)}):
            super()._forward(handles)
        self._watched.kind = "pass"
        return None

    def _timed(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        """A verb of the step that tells how long it takes."""

        def told(*given: Any) -> Any:
            with self._span(name):
                return verb(*given)

        return told

    @contextmanager
    def _span(self, name: str, facts: Mapping[str, Any] | None = None) -> Iterator[None]:
        start = self.runner.now()
        self._accepted(start)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._since = self.runner.now()
            self._watch(Moment(HOST, name, start, self._since - start, facts or {}))

    def _read(self, now: float) -> None:
        """The host has waited for drawn tokens, and accepts them from now on."""
        if self._depth == 1:
            self._watch(Moment(HOST, "wait", self._since, now - self._since, {}))
            self._since, self._accepts = now, True

    def _accepted(self, now: float) -> None:
        if self._accepts:
            self._accepts = False
            self._watch(Moment(HOST, "accept", self._since, now - self._since, {}))

    # ---- requests --------------------------------------------------------------------------

    def _compare(self, handle: Handle, by: str) -> None:
        """Tell what was drafted and taken back since the last time."""
        old = self._seen[handle]
        new = self._seen[handle] = _Seen.of(old.track, handle)
        for name, (proposed, accepted) in new.drafts.items():
            before, stood = old.drafts.get(name, (0, 0))
            if proposed > before:
                facts = {"drafter": name, "proposed": proposed - before, "stood": accepted - stood}
                self._tell(handle, "drafts", facts)
        if new.redraws > old.redraws:
            self._tell(handle, "redraw", {"draws": new.redraws - old.redraws})
        if new.rewound > old.rewound:
            self._tell(handle, "rewind", {"tokens": new.rewound - old.rewound, "by": by})

    def _tell(self, handle: Handle, name: str, facts: Mapping[str, Any]) -> None:
        track = self._seen[handle].track
        self._watch(Moment(track, name, self.runner.now(), None, facts))


def _facts(chunk: Chunk) -> dict[str, Any]:
    """What a timeline says of a delivered token."""
    facts: dict[str, Any] = {"text": chunk.text, "token": chunk.token, "index": chunk.index}
    if chunk.drafter:
        facts["drafter"] = chunk.drafter
    if chunk.forced:
        facts["forced"] = True
    if chunk.attempts:
        facts["attempts"] = chunk.attempts
    if chunk.finish_reason is not None:
        facts["ends"] = chunk.finish_reason
    return facts
