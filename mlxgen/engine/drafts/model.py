"""Drafts from a model: a smaller one here, a head of the same one in ``head``.

Owns the draws from their logits. The request's masks, penalties and biases apply to the draft as
well, so nothing is drafted that the request could not draw. A position is drawn with the request's
own random numbers: if both models agree on it, the same token comes out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import mlx.core as mx

from ...errors import OptionError
from ...forks import forked
from ...sampling import DrawRow, Sampler
from ...tokens import Token, Vocabulary
from ..history import History
from ..kv.footprint import Footprint
from ..kv.held import Fed, Later, Unread
from ..kv.kv import KV
from ..kv.layers import PREFILL_STEP
from ..kv.runner import Runner
from ..prefix.blocks import LEAST
from ..prefix.store import BlockStore
from ..request.leads import free_draws
from ..request.request import Request
from .drafts import WIDEST, Drafter, Guess, Policy, walk

SHARED = ("_device", "_sampler", "policy")  # with forks
LENGTH = 2.0  # tokens that are expected to stand at first
PIECE = 128  # tokens that it runs between two steps of others
MOST_MORE = 128  # tokens that one model may have more than the other, as in llama.cpp


class ModelledDrafter(Drafter):
    """A drafter that draws from logits. ``width`` is the width of the main model's."""

    most = 4  # each takes a pass, and later ones are accepted less often

    def __init__(
        self, device: Runner, sampler: Sampler, width: int, policy: Policy | None = None
    ) -> None:
        super().__init__(policy or Policy(LENGTH))
        self._device = device
        self._sampler = sampler
        self._width = width

    @abstractmethod
    def _catch_up(self, request: Request) -> mx.array | None:
        """Catch up with the history; returns logits [1, vocab] at its end, submitted or not, or
        None if it cannot."""

    @abstractmethod
    def _run(self, token: Fed) -> mx.array:
        """Run a drafted token; returns logits [1, vocab] after it."""

    def propose(self, request: Request, count: int) -> Guess | None:
        logits = self._catch_up(request)
        if logits is None:
            return None
        draws = free_draws(request, count + 1)
        if not draws:
            return self._draw_in_steps(request, logits, count)
        tokens: list[Fed] = []  # submitted all at once: each depends only on the one before
        for draw in draws[:-1]:
            token = self._draw(self._run(tokens[-1]) if tokens else logits, draw)
            self._device.submit([token])
            tokens.append(Later(Unread(token, self._device), 0))
        return Guess(tokens, draws)

    def _draw_in_steps(self, request: Request, logits: mx.array, count: int) -> Guess | None:
        """Draw one token after another, each under the mask that the ones before it leave."""
        drawn: list[Token] = []
        at = logits

        def choose(draw: DrawRow) -> Token | None:
            nonlocal at
            if len(drawn) == count:
                return None
            if drawn:
                at = self._run(drawn[-1])
            token = self._device.read(self._draw(at, draw))[0]
            if token < 0:
                return None
            drawn.append(token)
            return token

        walk(request, choose)
        return Guess(drawn) if drawn else None

    def _draw(self, logits: mx.array, draw: DrawRow) -> mx.array:
        """A token [1], drawn as the request draws it, but only from the likeliest candidates.

        Models with the same tokenizer pad it differently: logits that are missing become -inf.
        """
        short = self._width - logits.shape[-1]
        if short > 0:
            logits = mx.pad(logits, [(0, 0), (0, short)], constant_values=-mx.inf)
        return self._sampler.sample(logits[:, : self._width], [draw]).token


class ModelDrafter(ModelledDrafter):
    """Drafts with a smaller model with the same tokenizer; ``cache``: its prefix cache, if any."""

    name = "model"

    def __init__(
        self,
        device: Runner,
        sampler: Sampler,
        *,
        width: int,
        footprint: Footprint,
        policy: Policy | None = None,
        piece: Callable[[int], int] = lambda held: PREFILL_STEP,
        cache: BlockStore | None = None,
    ) -> None:
        super().__init__(device, sampler, width, policy)
        self.cache = cache
        self._footprint = footprint
        self._piece = piece  # how many tokens it has the memory to run after so many others
        self._kv = KV(device)

    def catches_up(self, history: History) -> bool:
        if len(history) - self._kv.common(history) <= PIECE:
            return False
        self._follow(history, PIECE)
        return True

    def keep(self, history: History, room: int) -> None:
        if self.cache is not None and self._kv.common(history) >= LEAST:
            self._kv.keep(history, room)

    def restart(self) -> None:
        self._kv.restart()

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes

    def nbytes_at(self, length: int) -> int:
        return self._footprint.alone(length)

    def fork(self) -> ModelDrafter:
        return forked(self, shared=(*SHARED, "_piece", "cache"))

    def _catch_up(self, request: Request) -> mx.array:
        history = request.history
        while len(history) - self._kv.common(history) > WIDEST:
            self._follow(history, PREFILL_STEP)
            if len(history) - self._kv.length > 1:
                self._kv.wait()  # before the next piece, as it takes memory
        return self._kv.run(self._kv.align(history))

    def _follow(self, history: History, count: int) -> None:
        """Run up to ``count`` tokens of a history, but not the last one; submits them."""
        cache, kv = self.cache, self._kv
        if cache is not None and not kv.length and cache.match(history) >= LEAST:
            kv.take(history)
        piece = kv.align(history)[:-1][: min(count, self._piece(kv.length))]
        if piece:
            kv.run(piece, wanted=0)

    def _run(self, token: Fed) -> mx.array:
        return self._kv.run([token])


def check_same_tokens(mine: Vocabulary, theirs: Vocabulary, name: str) -> None:
    """Raise ``OptionError`` unless every token that both models have is the same for both.

    A draft in other tokens would be nonsense. Models of one family may differ in a few added tokens
    at the end, and in those that end a text: a draft never proposes what its model does not know,
    and the end of a text is up to the main model.
    """
    if mine is theirs:
        return
    difference = mine.derived(("differs from", theirs), lambda: _difference(mine, theirs))
    if difference is not None:
        wanted, got = difference
        raise OptionError(
            "draft",
            f"expected {wanted}, got {got} of {name}; take a draft of the same model family",
        )


def _difference(mine: Vocabulary, theirs: Vocabulary) -> tuple[str, object] | None:
    if abs(mine.size - theirs.size) > MOST_MORE:
        return f"a tokenizer of {mine.size} tokens", theirs.size
    for token in range(min(mine.size, theirs.size)):
        one, other = mine.pieces[token], theirs.pieces[token]
        if one != other:
            return f"token {token} to be {one!r}", repr(other)
    return None
