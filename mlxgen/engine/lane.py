"""The step loop of one sequence with its own caches.

Owns the order of a step: forward, masks meanwhile, sample, look-ahead forward, the one
host synchronisation, settle. Must never decide what a token means: that is the row's.
Invariant: after a step, either the generation has ended, or the logits for the position
where the history ends are submitted, and the KV cache holds no token that is not in the
history.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import mlx.core as mx

from ..errors import StateError
from ..sampling import Sampler
from .chunk import Chunk, Usage
from .kv import KV, Model
from .row import Row, Verdict
from .view import DrawnView

PREFILL_STEP = 2048  # prompt tokens in one forward pass
SINGLE_PASS = 16  # pending tokens that go through with their logits, in one pass
SORTED_DRAWS = 16  # draws that sort the vocabulary at once, after one whose candidates fell short
CLEAR_EVERY = 256  # steps between two releases of MLX's buffer cache


class Ahead(NamedTuple):
    """What was submitted behind a sampled token before that was known."""

    logits: mx.array  # [1, vocab]
    view: DrawnView | None  # the draw from them, where nothing that the host decides goes in


class Lane:
    """One row, the model that it runs on, and the logits for its next position."""

    __slots__ = (
        "_began",
        "_drawn",
        "_first_token",
        "_logits",
        "_model",
        "_passes",
        "_sampler",
        "_sorted",
        "_started",
        "_steps",
        "row",
    )

    def __init__(self, model: Model, row: Row, sampler: Sampler) -> None:
        self.row = row
        self._model = model
        self._sampler = sampler
        self._logits: mx.array | None = None  # [1, vocab], for the position after the history
        self._drawn: DrawnView | None = None  # from these logits, already submitted
        self._started = False
        self._sorted = 0  # draws left that sort at once: a flat distribution rarely stands alone
        self._steps = 0
        self._passes = 0
        self._began = time.perf_counter()
        self._first_token: float | None = None
        if row.may_decline:
            self._kv.expect_rewinds()

    @property
    def _kv(self) -> KV:
        kv = self.row.sequence.kv
        if kv is None:
            raise StateError("this generation is closed; make a new one")
        return kv

    @property
    def usage(self) -> Usage:
        """Tokens, passes and seconds so far."""
        row, first = self.row, self._first_token
        now = time.perf_counter()
        return Usage(
            prompt_tokens=row.sequence.base,
            completion_tokens=row.position,
            forward_passes=self._passes,
            forced_tokens=row.tally.forced,
            rewound_tokens=row.tally.rewound,
            redraws=row.tally.redraws,
            incomplete=row.tally.incomplete,
            prompt_seconds=(first if first is not None else now) - self._began,
            generation_seconds=now - first if first is not None else 0.0,
        )

    def step(self) -> list[Chunk]:
        """Draw once; returns the chunks that became deliverable, possibly none."""
        row = self.row
        if not self._started:
            self._started = True
            if row.start() is Verdict.END:
                return row.take()
            self._logits = self._forward()
            row.warm()
            chunks = row.take()
            if chunks:
                return chunks
        if self._logits is None:
            self._logits = self._forward()
        before = row.position
        verdict, ahead = self._draw()
        if verdict is Verdict.NEXT:
            verdict = row.fast_forward()
        if verdict is not Verdict.END:
            self._go_on(ahead, before)
        if self._first_token is None:
            self._first_token = time.perf_counter()
        return row.take()

    def rewind(self, target: int) -> None:
        """Keep the first ``target`` generated tokens."""
        self.row.rewind(target)
        self._kv.rewind(len(self.row.sequence))  # a step that failed may have looked ahead
        self._logits = self._drawn = None

    def fork(self, seed: int) -> Lane:
        """An independent copy that draws from ``seed`` and shares the cache until it writes."""
        twin = Lane(self._model, self.row.fork(seed), self._sampler)
        twin._logits = self._logits
        twin._started = self._started
        return twin

    def close(self) -> None:
        """End the generation and free its cache."""
        self.row.end("cancelled")
        self._logits = self._drawn = None
        self.row.sequence.kv = None

    def _draw(self) -> tuple[Verdict, Ahead | None]:
        """Sample and settle one position; also what was submitted behind the sampled token.

        The sampled token and the look-ahead are submitted apart: what is evaluated in one
        call becomes ready together, and the token is wanted first.
        """
        row, kv, logits = self.row, self._kv, self._logits
        assert logits is not None
        view, self._drawn = self._drawn, None
        if view is None:
            exact = self._sorted > 0
            view = DrawnView(self._sampler, logits, row.request(), row.want, exact=exact)
        ahead, submitted = None, view.lazy_token
        safe = not row.may_decline or kv.can_undo(1)
        try:
            if safe and not row.is_last and not row.expects_forced:
                ahead = self._look_ahead(submitted[:, None])
            token = view.token
            self._sorted = max(0, self._sorted - 1) if view.was_exact else SORTED_DRAWS
            if ahead is not None and view.lazy_token is not submitted:  # drawn anew: another one
                kv.rewind(len(row.sequence))
                ahead = None
            return row.settle(token, view), ahead
        except BaseException:  # an interrupt too: the cache must not stay ahead of the history
            kv.rewind(len(row.sequence))
            raise

    def _look_ahead(self, tokens: mx.array) -> Ahead:
        """Submit the forward pass behind ``tokens`` [1, 1], and the next draw if it can be told."""
        logits = self._run(tokens)
        request = self.row.blind_request() if not self._sorted else None
        if request is None:
            mx.async_eval(logits)
            return Ahead(logits, None)
        return Ahead(logits, DrawnView(self._sampler, logits, request, self.row.want))

    def _go_on(self, ahead: Ahead | None, before: int) -> None:
        """Have the logits for the next position submitted, and its mask computed meanwhile."""
        row, kv = self.row, self._kv
        stands = len(row.sequence)
        if ahead is not None and row.position == before + 1 and kv.length == stands:
            self._logits, self._drawn = ahead
        elif row.position != before:
            self._logits = self._forward()
        # else: declined at once, and drawn again from the same logits
        row.warm()
        self._steps += 1
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()

    def _forward(self) -> mx.array:
        """Run the pending tokens; the last one's logits [1, vocab] are submitted."""
        sequence, kv = self.row.sequence, self._kv
        if kv.length == len(sequence):  # nothing pending, but its logits are not at hand
            kv.rewind(kv.length - 1)
        pending = sequence.pending
        if len(pending) > SINGLE_PASS:
            pending = self._prefill(pending)
        return self._submit(mx.array([pending]))

    def _prefill(self, pending: list[int]) -> list[int]:
        """Run all but the last pending token, in pieces whose logits nobody computes."""
        kv = self._kv
        for start in range(0, len(pending) - 1, PREFILL_STEP):
            piece = pending[start : min(start + PREFILL_STEP, len(pending) - 1)]
            kv.forward(self._model, mx.array([piece]))
            mx.eval(kv.arrays())
            mx.clear_cache()
            kv.checkpoint()
        return pending[-1:]

    def _submit(self, tokens: mx.array) -> mx.array:
        logits = self._run(tokens)
        mx.async_eval(logits)
        return logits

    def _run(self, tokens: mx.array) -> mx.array:
        """One forward pass, not yet submitted: the logits [1, vocab] behind the last token."""
        kv = self._kv
        logits = kv.forward(self._model, tokens)[:, -1, :]
        self._passes += 1
        kv.checkpoint()
        return logits
