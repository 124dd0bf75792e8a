"""The drafter that predicts from the model's own hidden states, with a ``HeadPredictor``.

Owns the states of passes that the predictor has not read, and the predictor's KV. Must never know
whether a draft was accepted. Entry ``i`` of that KV is of token ``i`` of the history, and of the
state that it was drawn from. Invariant: what is read was made of the history's own tokens, and
entries of drafted states are made anew from the trunk's. Where states are not known (a prompt began
with kept KV), the predictor begins after them: its drafts are worse then, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...forks import forked
from ...loading.predictor import HeadPredictor
from ...sampling import Sampler
from ..history import History
from ..kv.footprint import Footprint
from ..kv.held import Fed, known
from ..kv.kv import KV
from ..kv.layers import LayerCache
from ..kv.runner import Runner
from ..kv.slots import Group
from ..request.request import Request
from .drafts import Guess, Policy
from .model import SHARED, ModelledDrafter

BEHIND = 64  # tokens that ran without a draft, after which the predictor reads their states


class Bound:
    """A predictor as a model that a runner can run: it reads ``states`` [1, n, width] along with
    the tokens of a pass, and ends with the state ``last`` [1, 1, width]."""

    def __init__(self, predictor: HeadPredictor) -> None:
        self._predictor = predictor
        self.states = self.last = mx.zeros((1, 1, predictor.width))

    def __call__(self, inputs: mx.array, cache: list[LayerCache]) -> mx.array:
        states, self.states = mx.split(self.states, [inputs.shape[1]], axis=1)
        self.last = self._predictor(inputs, states, cache)[:, -1:]
        return self._predictor.logits(self.last)

    def footprint(self, trunk: Any) -> Footprint:
        """The memory of its caches, and of the weights of the ``trunk``, which it reads as well."""
        group = Group(self._predictor.make_cache)
        group.add(1).forward(self, mx.array([[0]]))
        return Footprint.of(trunk, group)


class HeadDrafter(ModelledDrafter):
    """See the module. ``device`` runs ``bound``."""

    name = "head"
    wants_states = True

    def __init__(
        self,
        device: Runner,
        bound: Bound,
        sampler: Sampler,
        *,
        width: int,
        footprint: Footprint,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(device, sampler, width, policy)
        self._bound, self._footprint = bound, footprint
        self._kv = KV(device)
        self._base = 0  # the first token that has an entry
        self._own = History()  # the history's tokens from there on
        self._exact = 0  # entries that were made of the trunk's states
        # The trunk's states [n, width] after these tokens, from this place of the history on
        self._start, self._ran = 0, list[Fed]()
        self._states: mx.array | None = None
        self._moment = 0
        self._unread = 0  # tokens that ran since states were read

    def propose(self, request: Request, count: int) -> Guess | None:
        self._follow(request.history)
        known = self._start + len(self._ran)
        return super().propose(request, count) if known >= len(request.history) - 1 else None

    def ran(self, history: History, start: int, tokens: Sequence[Fed], states: mx.array) -> None:
        if self._moment != history.moment:
            self._follow(history)
        self._cut(start)
        if self._states is None or self._start + len(self._ran) < start:  # others are not known
            self._start, self._ran, self._states = start, list(tokens), states
        else:
            self._states = mx.concatenate([self._states, states])
            self._ran += tokens
        self._unread += len(tokens)
        if self._unread >= BEHIND:
            logits = self._read(history)
            self._device.submit([logits] if logits is not None else [])

    def restart(self) -> None:
        self._begin(History(), 0)
        self._cut(0)

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes + (0 if self._states is None else self._states.nbytes)

    def nbytes_at(self, length: int) -> int:
        return self._footprint.alone(length)

    def fork(self) -> HeadDrafter:
        return forked(self, shared=(*SHARED, "_bound", "_states"))

    def _catch_up(self, request: Request) -> mx.array | None:
        logits = self._read(request.history)
        ends = self._base + self._kv.length == len(request.history)
        return logits if ends else None

    def _run(self, token: Fed) -> mx.array:
        self._bound.states = self._bound.last
        return self._kv.run([token])

    def _read(self, history: History) -> mx.array | None:
        """Read the known states; returns the logits [1, vocab] after the last of them."""
        self._follow(history)
        self._unread = 0
        for place, token in enumerate(self._ran, self._start):  # some were not accepted
            if place < len(history) and known([token])[0] != history[place]:
                self._cut(place)
                break
        if self._states is None:
            return None
        first, end = self._start, min(self._start + len(self._ran) + 1, len(history))
        again = first < len(history) - 1  # the last entry can be made again, for its logits
        self._kv.align(self._own, min(self._exact, len(self._own) - again))
        held = self._base + self._kv.length
        gap = first > max(0, held - 1)
        if max(held, first + 1 if gap else 0) >= end:
            return None
        if gap:
            self._begin(history, first + 1)
            held = first + 1
        states = self._states[max(0, held - 1 - first) : end - 1 - first]
        if not held:
            states = mx.concatenate([mx.zeros_like(self._states[:1]), states])
        self._bound.states = states[None]
        logits = self._kv.run(self._own[held - self._base : end - self._base])
        self._exact = self._kv.length
        if (read := end - 2 - first) > 0:  # except the last of them
            self._start, self._ran = first + read, self._ran[read:]
            self._states = self._states[read:]
        return logits

    def _follow(self, history: History) -> None:
        """Forget what was taken back since the last time, and note what was added."""
        if self._moment != history.moment:
            low, self._moment = history.low_since(self._moment), history.moment
            if low < self._start:
                self._cut(0)  # tokens before theirs changed; ``_read`` compares their own
            if low <= self._base:
                self._begin(history, 0)
            self._own.cut(low - self._base)
        self._own += history[self._base + len(self._own) :]

    def _begin(self, history: History, base: int) -> None:
        """Hold no entries, and let the next ones begin with token ``base``."""
        self._kv.restart()
        self._base, self._exact, self._own = base, 0, History(history[base:])

    def _cut(self, to: int) -> None:
        """Forget the states from a place on."""
        if self._states is not None and to < self._start + len(self._ran):
            del self._ran[max(0, to - self._start) :]
            self._states = self._states[: len(self._ran)] if self._ran else None
