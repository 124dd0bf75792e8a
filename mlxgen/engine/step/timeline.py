"""What a loop does and how long it takes, for those who watch a model.

On the tracks ``host`` and ``device``, two moments are nested or apart. A pass is on the device from
its submission, or from the end of the pass before it, until the host has waited for it. If the host
waited for several at once, they share that time by their tokens. The gap between two passes is
``host``: the device had nothing to do, because the host was not ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from ..chunk import Chunk, DraftCount
from ..kv.held import Here
from .handle import Handle

HOST, DEVICE = "host", "device"
NUMBERS = count(1)  # of requests, for the names of their tracks
PAUSE = 0.1  # seconds outside of steps, after which an idle device did not wait for the host


class Moment(NamedTuple):
    """An event on a track, from ``start`` for ``seconds`` seconds of the device's clock; ``None``:
    at that instant."""

    track: str
    name: str
    start: float
    seconds: float | None
    facts: Mapping[str, Any]


Watch: TypeAlias = Callable[[Moment], None]
Came: TypeAlias = tuple[Handle, Sequence[Chunk], Exception | None]
"""An ``Event`` of a step."""


class _Seen(NamedTuple):
    """What has been told of a request."""

    track: str
    rewound: int = 0
    redraws: int = 0
    drafts: Mapping[str, DraftCount] = {}


class Timeline:
    """Tells ``watch``: see the module. A loop says where it is, unless nobody watches."""

    def __init__(self, watch: Watch, device: Here) -> None:
        self._watch, self._device = watch, device
        self._seen: WeakKeyDictionary[Handle, _Seen] = WeakKeyDictionary()
        self._start = self._since = 0.0  # of the step, and of what the host does now
        self._waiting: deque[tuple[float, str, int]] = deque()  # passes: start, kind, tokens
        self._done: float | None = None  # when the device became idle
        self._paused = False  # whether there was a pause since then

    # ---- the host --------------------------------------------------------------------------

    def begin(self, handles: Sequence[Handle]) -> None:
        """Note that a step of these handles begins."""
        self._start = self._device.now()
        self._paused |= self._start - self._since > PAUSE
        self._since = self._start
        for handle in handles:
            self._compare(handle, "caller")

    def did(self, name: str, **facts: Any) -> None:
        """Tell what the host has done since the last call, or since the step began."""
        start, self._since = self._since, self._device.now()
        self._watch(Moment(HOST, name, start, self._since - start, facts))

    def end(self, handles: Sequence[Handle], came: Sequence[Came]) -> None:
        """Note that the step ends; ``came`` are its events."""
        self._since = self._device.now()
        tokens = sum(len(chunks) for _, chunks, _ in came)
        facts = {"requests": len(handles), "tokens": tokens}
        self._watch(Moment(HOST, "step", self._start, self._since - self._start, facts))
        for handle in handles:
            self._compare(handle, "step")
        for handle, chunks, _ in came:
            for chunk in chunks:
                self._tell(handle, "token", **_facts(chunk))

    # ---- the device ------------------------------------------------------------------------

    def run(self, tokens: int, *, new: bool) -> None:
        """Note that a pass of ``tokens`` tokens is about to be submitted; ``new``: each of its
        handles is still running its prompt."""
        self._waiting.append((self._device.now(), "prefill" if new else "pass", tokens))

    def waited(self, left: int = 0) -> None:
        """Note that the host has waited for all passes but the last ``left``."""
        now = self._device.now()
        passes = [self._waiting.popleft() for _ in range(len(self._waiting) - left)]
        if not passes:
            return
        start = passes[0][0]
        if self._done is not None and start <= self._done:
            start = self._done
        elif self._done is not None and not self._paused:
            self._watch(Moment(DEVICE, "host", self._done, start - self._done, {}))
        each = (now - start) / sum(tokens for _, _, tokens in passes)
        for _, kind, tokens in passes:
            self._watch(Moment(DEVICE, kind, start, tokens * each, {"tokens": tokens}))
            start += tokens * each
        self._done, self._paused = now, False

    def lost(self) -> None:
        """Note that nobody will wait for what was submitted."""
        self._waiting.clear()

    # ---- requests --------------------------------------------------------------------------

    def _compare(self, handle: Handle, by: str) -> None:
        """Tell what was drafted and taken back since the last call, and that a request begins."""
        request, tally, drafts = handle.request, handle.request.tally, handle.drafts.counts
        old = self._seen.get(handle)
        if old is None:
            old = self._seen[handle] = _Seen(f"request {next(NUMBERS)}")
            told = {"cached": handle.cached}
            if request.position > request.first:  # a fork: what came before is told already
                told = {"forked": request.position}
                old = _Seen(old.track, tally.rewound_tokens, tally.redraws, drafts)
            self._tell(handle, "begins", prompt=request.base, **told)
        new = self._seen[handle] = _Seen(old.track, tally.rewound_tokens, tally.redraws, drafts)
        for name, (proposed, stood) in new.drafts.items():
            before = old.drafts.get(name, DraftCount(0, 0))
            if more := proposed - before.proposed:
                stood -= before.accepted
                self._tell(handle, "drafts", drafter=name, proposed=more, stood=stood)
        if new.redraws > old.redraws:
            self._tell(handle, "redraw", draws=new.redraws - old.redraws)
        if new.rewound > old.rewound:
            self._tell(handle, "rewind", tokens=new.rewound - old.rewound, by=by)

    def _tell(self, handle: Handle, name: str, **facts: Any) -> None:
        track = self._seen[handle].track
        self._watch(Moment(track, name, self._device.now(), None, facts))


def _facts(chunk: Chunk) -> dict[str, Any]:
    """What a timeline tells of a delivered token."""
    more = {
        "drafter": chunk.drafter,
        "forced": chunk.forced,
        "attempts": chunk.attempts,
        "ends": chunk.finish_reason,
    }
    facts = {"text": chunk.text, "token": chunk.token, "index": chunk.index}
    return facts | {name: value for name, value in more.items() if value}
