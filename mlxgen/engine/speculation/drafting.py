"""Where drafted tokens come from: a second model, or the text so far.

Owns the two kinds of drafter and what each remembers. Must never know whether a draft was
accepted. Invariant: a drafter looks at the history of the request that it is asked for, and
notices by itself what was taken back there since the last time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from ...errors import OptionError
from ...sampling import DrawRow, Sampler
from ...tokens import Token, Vocabulary
from ..history import History
from ..kv import KV, PREFILL_STEP, Device, Fed, Footprint, Later, Unread
from ..request.drawing import plain_draw
from ..request.request import Request
from .ahead import walk
from .guess import Guess

LONGEST_GRAM, SHORTEST_GRAM = 4, 2  # how many tokens must recur for their continuation to be used


class Drafter(Protocol):
    """Proposes tokens that may come next, at most ``most`` at a time by default."""

    most: int

    def propose(self, request: Request, count: int) -> Guess | None:
        """Up to ``count`` tokens after the request's history; ``None`` if it has none."""

    def missing(self, history: History) -> int:
        """How many tokens of a history a model has to run before it can propose any."""

    def follow(self, history: History, count: int) -> None:
        """Run ``count`` of them at most, but not the last one; they are submitted."""

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that it holds."""

    def nbytes_at(self, length: int) -> int:
        """The most bytes that it needs for a history of ``length`` tokens."""

    def fork(self) -> Drafter:
        """An independent copy."""

    def restart(self) -> None:
        """Drop everything on the device, as it can no longer be trusted."""


class NgramDrafter:
    """Continues the text as it went on when its last tokens last occurred, prompt included.

    This is "prompt lookup decoding" (Saxena 2023) and needs no second model. Of the last 4 to 2
    tokens it looks for the most that have occurred before, and takes their latest occurrence.
    """

    most = 8  # they cost nothing until they are verified

    def __init__(self) -> None:
        self._places: dict[tuple[Token, ...], int] = {}  # the end of a gram's latest occurrence
        self._seen = 0  # tokens of the history whose grams are known

    def propose(self, request: Request, count: int) -> Guess | None:
        history = request.history
        self._learn(history)
        for size in range(LONGEST_GRAM, SHORTEST_GRAM - 1, -1):
            end = tuple(history[len(history) - size :])
            place = self._places.get(end)
            # Grams that were taken back may still be noted, so every find is checked.
            if place is not None and place < len(history) and _is_at(history, end, place):
                tokens = history[place : place + count]
                while len(tokens) < count:  # the text repeats itself
                    tokens += history[place : place + count - len(tokens)]
                tokens = tokens[
                    : next((i for i, t in enumerate(tokens) if t < 0), count)
                ]  # no images
                if request.constraint is not None:  # as many as the filters accept in turn
                    tokens = tokens[: request.constraint.validate(tokens)]
                return Guess(tokens) if tokens else None
        return None

    def missing(self, history: History) -> int:
        return 0

    def follow(self, history: History, count: int) -> None:
        """Nothing to do: there is no model."""

    nbytes = 0  # no arrays

    def nbytes_at(self, length: int) -> int:
        return 0

    def fork(self) -> NgramDrafter:
        twin = NgramDrafter()
        twin._places = dict(self._places)
        twin._seen = self._seen
        return twin

    def restart(self) -> None:
        """Nothing to do: it has no arrays."""

    def _learn(self, history: Sequence[Token]) -> None:
        """Note the grams that end before the last token; those that end with it lead nowhere."""
        start = min(self._seen, len(history) - LONGEST_GRAM)
        for place in range(max(SHORTEST_GRAM, start), len(history)):
            for size in range(SHORTEST_GRAM, min(LONGEST_GRAM, place) + 1):
                self._places[tuple(history[place - size : place])] = place
        self._seen = len(history)


class ModelDrafter:
    """Drafts with a smaller model of the same tokenizer, under the request's own settings.

    The masks of its filters, penalties and biases apply to the draft as well, so nothing is
    drafted that the request could not draw. A position is drawn with the request's own random
    numbers: if the two models agree on it, the same token comes out.
    """

    most = 4  # each takes a pass of the draft model, and later ones are accepted less often

    def __init__(
        self,
        device: Device,
        sampler: Sampler,
        *,
        width: int,
        footprint: Footprint,
        piece: Callable[[int], int] = lambda held: PREFILL_STEP,
    ) -> None:
        self._footprint = footprint
        self._piece = piece  # how many tokens it has the memory to run after so many others
        self._sampler = sampler
        self._width = width  # of the main model's logits
        self._kv = KV(device)

    def propose(self, request: Request, count: int) -> Guess | None:
        logits = self._catch_up(request.history)
        if request.is_free(count + 1):
            return self._draw_freely(request, logits, count)
        return self._draw_in_steps(request, logits, count)

    def missing(self, history: History) -> int:
        return len(history) - self._kv.common(history)

    def follow(self, history: History, count: int) -> None:
        piece = self._kv.align(history)[:-1][: min(count, self._piece(self._kv.length))]
        if piece:
            self._kv.run(piece, logits=False)
            self._kv.submit()
            self._kv.snapshot()

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes

    def nbytes_at(self, length: int) -> int:
        return self._footprint.alone(length)

    def fork(self) -> ModelDrafter:
        twin = ModelDrafter.__new__(ModelDrafter)
        twin._sampler, twin._width = self._sampler, self._width
        twin._footprint, twin._piece = self._footprint, self._piece
        twin._kv = self._kv.fork()
        return twin

    def restart(self) -> None:
        self._kv.restart()

    def _catch_up(self, history: History) -> mx.array:
        """Bring the draft's cache to the end of the history; returns logits [1, vocab] there."""
        while len(pending := self._kv.align(history)) > (piece := self._piece(self._kv.length)):
            self.follow(history, piece)
            self._kv.wait()
        logits = self._run(pending)
        self._kv.expect_rewinds()
        return logits

    def _run(self, tokens: Sequence[Fed]) -> mx.array:
        logits = self._kv.run(tokens)[:, -1, :]
        self._kv.snapshot()
        return logits

    def _draw_freely(self, request: Request, logits: mx.array, count: int) -> Guess:
        """Submit all draws at once: each depends only on the one before."""
        tokens: list[Fed] = []
        for i in range(count):
            if tokens:
                logits = self._run(tokens[-1:])
            token = self._draw(logits, plain_draw(request, request.position + i))
            self._kv.device.submit([token])
            tokens.append(Later(Unread(token, self._kv.device), 0))
        return Guess(tokens, free=True)

    def _draw_in_steps(self, request: Request, logits: mx.array, count: int) -> Guess | None:
        """Draw one token after another, each under the mask that the ones before it leave."""
        drawn: list[Token] = []
        at = logits

        def choose(draw: DrawRow) -> Token | None:
            nonlocal at
            if len(drawn) == count:
                return None
            if drawn:
                at = self._run(drawn[-1:])
            token = self._kv.device.read(self._draw(at, draw))[0]
            if token < 0:
                return None
            drawn.append(token)
            return token

        walk(request, choose)
        return Guess(drawn) if drawn else None

    def _draw(self, logits: mx.array, draw: DrawRow) -> mx.array:
        """A token [1], drawn as the request draws it, but only from the likeliest candidates."""
        return self._sampler.sample(_widened(logits, self._width), [draw]).token


def check_same_tokens(mine: Vocabulary, theirs: Vocabulary, name: str) -> None:
    """Raise ``OptionError`` unless every token is the same for both models."""
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
    if mine.eos != theirs.eos:
        return f"the end tokens {sorted(mine.eos)}", sorted(theirs.eos)
    if mine.size != theirs.size:
        return f"a tokenizer of {mine.size} tokens", theirs.size
    for token in range(mine.size):
        one, other = mine.pieces[token], theirs.pieces[token]
        if one != other:
            return f"token {token} to be {one!r}", repr(other)
    return None


def _widened(logits: mx.array, width: int) -> mx.array:
    """Logits [1, any] as [1, width]: models with the same tokenizer pad it differently."""
    if logits.shape[-1] >= width:
        return logits[:, :width]
    short = width - logits.shape[-1]
    return mx.pad(logits, [(0, 0), (0, short)], constant_values=-mx.inf)


def _is_at(history: Sequence[Token], gram: tuple[Token, ...], place: int) -> bool:
    return place >= len(gram) and tuple(history[place - len(gram) : place]) == gram
