"""A request in the step loop, with the place of the logits for its next position.

Owns what the loop remembers of one sequence between two steps, and its account of passes and times.
Invariant: whether logits are for the next position is decided by the tokens they were computed
from, whatever has happened since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import mlx.core as mx

from ...images import plain
from ...tokens import Token
from ..chunk import Alternative, Chunk, Progress, PromptScore, Usage
from ..drafts.drafts import Drafts, Guess
from ..kv.kv import KV
from ..request.accept import end, start, take
from ..request.request import Request

PIECE = 256  # the most tokens of a pass that is scored: their logits are large, and not kept


class Logits(NamedTuple):
    """Rows ``places`` of ``array`` [n, vocab]: after ``length`` tokens, and after each next one."""

    array: mx.array
    places: Sequence[int]
    length: int


class Handle:
    """See the module. It is hashable by identity.

    - ``kv``: its KV cache, alone or in a batch. ``drafts``: propose tokens that may come next.
    - ``logits``: those for the next position, if any, and for each drafted token of ``guess``.
    - ``asks_each``: a controller decides on each of its draws, so they are drawn one by one.
    - ``ahead``: logits after tokens that are not known yet.
    - ``pending``: the tokens to run before the next draw, as of the last ``align``.
    - ``flat``: draws left that sort the vocabulary at once, after one whose candidates fell short:
      a flat distribution rarely stands alone.
    - ``cached``: prompt tokens that were taken from the prefix cache.
    - ``faults``: how often the model failed while it ran, since it last made progress.
    - ``scores``: those of the prompt's tokens until they are delivered, if they are wanted.
    - ``closed``: it has given back what it held, and gives no more chunks.
    """

    def __init__(self, request: Request, kv: KV, drafts: Drafts | None = None) -> None:
        self.request = request
        self.history = request.history
        """All of its tokens."""
        self.kv = kv
        self.drafts = Drafts() if drafts is None else drafts
        self.logits: Logits | None = None
        self.ahead: Logits | None = None
        self.pending: list[Token] = []
        self.guess: Guess | None = None
        self.asks_each = False
        self.flat = 0
        self.passes = 0
        self.cached = 0
        self.closed = False
        self.faults = 0
        wanted = request.options.prompt_logprobs
        self.scores: PromptScores | None = None
        if wanted is not None:
            self.scores = PromptScores(plain(self.history[: request.base]), wanted)
        self.started: float | None = None
        self.tells_states = any(each.wants_states for each in self.drafts.drafters)
        self._began = self.kv.device.now()
        self._first_token: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its request has a finish reason."""
        return self.request.finish_reason is not None

    @property
    def is_ready(self) -> bool:
        """Whether the logits for the next position are at hand."""
        logits, end = self.logits, len(self.history)
        if logits is None or not 0 <= end - logits.length < len(logits.places):
            return False
        return self.kv.common(self.history) == end

    @property
    def draws(self) -> int:
        """How many draws are due at once: one, and one after each drafted token."""
        return 1 if self.guess is None or self.asks_each else len(self.guess.draws)

    @property
    def missing(self) -> int:
        """How many tokens of the history its cache does not hold."""
        return len(self.history) - self.kv.common(self.history)

    @property
    def is_scored(self) -> bool:
        """Whether the tokens of the prompt that run next are to be scored."""
        return self.scores is not None and not self.scores.is_complete

    @property
    def usage(self) -> Usage:
        """Tokens, passes and seconds so far."""
        now, first, drafts = self.kv.device.now(), self._first_token, self.drafts.counts
        started = self.started if self.started is not None else now
        return replace(
            self.request.usage,
            cached_tokens=self.cached,
            forward_passes=self.passes,
            prompt_seconds=(first if first is not None else now) - self._began,
            generation_seconds=now - first if first is not None else 0.0,
            queued_seconds=started - self._began,
            drafted_tokens=sum([count.proposed for count in drafts.values()]),
            accepted_draft_tokens=sum([count.accepted for count in drafts.values()]),
            drafts=drafts,
        )

    @property
    def prefilled(self) -> int:
        """How many prompt tokens its cache holds, or held at the end."""
        base = self.request.base
        if self.closed:
            return base if self.request.position else 0
        return min(self.kv.length, base)

    @property
    def progress(self) -> Progress:
        """Its progress, the prompt included."""
        return Progress(self.usage, self.prefilled)

    def start(self) -> bool:
        """Do what is certain before the first draw; returns True the first time."""
        if self.started is not None:
            return False
        start(self.request)
        self.started = self.kv.device.now()  # last: an interrupted start is done again
        return True

    def take(self) -> list[Chunk]:
        """The chunks that may be delivered now."""
        if self._first_token is None and self.request.position > self.request.first:
            self._first_token = self.kv.device.now()
        request = self.request
        chunks = request.outbox.release() if request.finish_reason is None else take(request)
        if self.scores is not None and chunks and self.scores.is_complete:
            chunks[0] = replace(chunks[0], prompt=self.scores.read())
            self.scores = None
        return chunks

    def align(self) -> list[Token]:
        """Align the KV cache to the end of the history: before a pass, and nowhere else.

        Returns the pending tokens: none if the logits are at hand. Then the cache keeps the drafted
        tokens that it already holds.
        """
        history, self.pending = self.history, []
        if not self.is_ready:
            if self.guess is not None and self.asks_each:  # the controller went another way
                self.drafts.turn = None
            self.logits = self.guess = None
            most = self.scores.done - 1 if self.scores is not None and self.is_scored else None
            self.pending = self.kv.align(history, most)  # fewer, if scores were cut off
        elif self.guess is None and self.kv.slot.length > len(history):
            self.kv.align(history, len(history))
        return self.pending

    def arrive(self) -> bool:
        """Take a look-ahead's logits if it ran the tokens that came; returns whether it did."""
        before, self.logits, self.ahead = self.logits, self.ahead, None
        if not self.is_ready:
            self.logits = before
            return False
        self.pending = []
        if self.guess is not None:
            self.guess.start = len(self.history)
        return True

    def forget(self) -> None:
        """Go back to the end of the history, and forget what was submitted after it."""
        self.request.rewind(len(self.history))
        self.logits = self.ahead = self.guess = None

    def restart(self) -> None:
        """Hold nothing on the device: the whole history has to run again."""
        self.kv.restart()
        self.drafts.restart()
        if self.scores is not None:
            self.scores.restart()
        self.cached = 0
        self.logits = self.ahead = self.guess = None

    def distrust(self) -> None:
        """Restart after a failed pass, without the drafters that may have caused it."""
        self.drafts.distrust()
        self.restart()

    def fork(self, seed: int, *, bare: bool = False) -> Handle:
        """An independent copy that draws from ``seed``; a ``bare`` one has an empty cache."""
        request, own = self.request.fork(seed), self.kv
        kv = KV(own.device) if bare else own.fork()
        twin = Handle(request, kv, self.drafts.fork())
        if bare:
            twin.restart()
        else:
            twin.logits = self.logits  # the draft stays with this one
        twin.asks_each = self.asks_each
        twin.started = self.started and twin._began
        twin.scores = None  # they are delivered once
        twin.faults = self.faults
        return twin

    def close(self) -> None:
        """End the generation and free its cache."""
        end(self.request, "cancelled")
        if not self.closed:
            for drafter in self.drafts.drafters:
                drafter.learn(self.history)
            self.drafts.restart()
        self.logits = self.ahead = self.guess = None
        self.kv.close()
        self.closed = True

    def check_integrity(self) -> None:
        """Assert what holds between two steps; for tests."""
        self.request.check_integrity()
        assert self.ahead is None


def logits_of(handles: Iterable[Handle]) -> mx.array:
    """The logits [draws, vocab] to draw from; no copy if they are one array in order."""
    runs: list[tuple[mx.array, int, int]] = []  # an array, and where a run in it starts and ends
    for handle in handles:
        assert handle.logits is not None
        logits, places, length = handle.logits
        first = len(handle.history) - length
        guess = handle.guess
        due = 1 if guess is None or handle.asks_each else len(guess.draws)
        for place in places[first : first + due]:
            if runs and runs[-1][0] is logits and runs[-1][2] == place:
                runs[-1] = (logits, runs[-1][1], place + 1)
            else:
                runs.append((logits, place, place + 1))
    parts = [
        array if end - start == array.shape[0] else array[start:end] for array, start, end in runs
    ]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


class PromptScores:
    """The model's scores of a prompt's own ``tokens``, each with its ``top`` likeliest
    alternatives.

    Invariant: the first ``done`` tokens are scored once the device has run what was submitted; a
    pass that an interrupt cut off does not count.
    """

    __slots__ = ("_parts", "_tokens", "_top")

    def __init__(self, tokens: Sequence[Token], top: int) -> None:
        self._tokens = tuple(tokens)
        self._top = top
        # Where each part ends, and its arrays on the device: log-probabilities [n] and ranks [n],
        # and if wanted, the likeliest alternatives [n, top] with theirs
        self._parts: list[tuple[int, list[mx.array]]] = []

    @property
    def done(self) -> int:
        """How many tokens are scored; the first one counts as scored, as it has no score."""
        return self._parts[-1][0] if self._parts else 1

    @property
    def is_complete(self) -> bool:
        """Whether all tokens are scored."""
        return self.done == len(self._tokens)

    def read(self) -> tuple[PromptScore, ...]:
        """All scores, when they are complete; waits for the device."""
        assert self.is_complete
        scores = [PromptScore(self._tokens[0])]
        for _, arrays in self._parts:
            logprobs, ranks, *top = [cast(list[Any], array.tolist()) for array in arrays]
            tokens, values = top or [[()] * len(ranks)] * 2
            for logprob, rank, *alternatives in zip(logprobs, ranks, tokens, values, strict=True):
                likeliest = tuple(map(Alternative, *alternatives))
                scores.append(PromptScore(self._tokens[len(scores)], logprob, rank, likeliest))
        return tuple(scores)

    def add(self, start: int, logits: mx.array) -> None:
        """Score by the logits [n, vocab] after the tokens from ``start`` on; submits the scores."""
        first, end = self.done, min(len(self._tokens), start + logits.shape[0] + 1)
        assert start < first, "a token before was not scored"
        if end <= first:
            return
        raw = logits[first - start - 1 : end - start - 1].astype(mx.float32)
        own = mx.take_along_axis(raw, mx.array(self._tokens[first:end])[:, None], axis=-1)
        mass = mx.logsumexp(raw, axis=-1, keepdims=True)
        arrays = [(own - mass)[:, 0], (raw > own).sum(axis=-1) + 1]
        if self._top:
            count = min(self._top, raw.shape[-1])
            ids = mx.argpartition(-raw, count - 1, axis=-1)[:, :count]
            values = mx.take_along_axis(raw, ids, axis=-1) - mass
            order = mx.argsort(-values, axis=-1)
            arrays += [mx.take_along_axis(array, order, axis=-1) for array in (ids, values)]
        mx.async_eval(arrays)
        self._parts.append((end, arrays))

    def restart(self) -> None:
        """Drop what was submitted: the whole prompt has to run again."""
        self._parts.clear()
