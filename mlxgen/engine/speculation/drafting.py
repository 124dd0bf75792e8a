"""Where drafted tokens come from: a second model, or the text so far.

Owns the two kinds of drafter and what each remembers. Must never know whether a draft was
accepted. Invariant: a drafter is asked with a request and looks at its history; whatever was
taken back there since the last time, it notices by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mlx.core as mx

from ...errors import OptionError
from ...sampling import DrawRow, Sampler
from ...tokens import Token, Vocabulary
from ..history import History
from ..kv import KV, PREFILL_STEP, Device, Fed, Footprint, Later, Unread
from ..kv.held import integers
from ..request.drawing import plain_draw
from ..request.request import Request
from .ahead import walk

LONGEST_GRAM, SHORTEST_GRAM = 4, 2  # tokens that must be alike for a continuation to be taken


class Proposal(NamedTuple):
    """Drafted tokens, perhaps not known yet.

    ``free``: the draws behind them depend on nothing but their positions.
    """

    tokens: Sequence[Fed]
    free: bool = False

    @classmethod
    def of(cls, tokens: Sequence[Token]) -> Proposal | None:
        """Tokens that are known; ``None`` for none."""
        return cls(tokens) if tokens else None


class Drafter(Protocol):
    """Names tokens that may come next; ``most`` at a time, unless the caller says otherwise."""

    most: int

    def propose(self, request: Request, count: int) -> Proposal | None:
        """Up to ``count`` tokens behind the request's history; ``None``: nothing comes to mind."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that it holds."""

    def nbytes_at(self, length: int) -> int:
        """Bytes that it takes for a history of ``length`` tokens, at most."""

    def fork(self) -> Drafter:
        """An independent copy."""

    def restart(self) -> None:
        """Hold nothing on the device any more, as what is there cannot be trusted."""


class NgramDrafter:
    """Continues the text like the last time that its end occurred in it, prompt included.

    Costs no model: "prompt lookup decoding" (Saxena 2023). The latest occurrence counts, of
    the longest end of up to 4 tokens that occurred at all.
    """

    most = 8  # they cost nothing until they are tested

    def __init__(self) -> None:
        self._places: dict[tuple[Token, ...], int] = {}  # behind the latest occurrence of a gram
        self._seen = 0  # tokens of the history whose grams are known

    def propose(self, request: Request, count: int) -> Proposal | None:
        history = request.history
        self._learn(history)
        for size in range(LONGEST_GRAM, SHORTEST_GRAM - 1, -1):
            end = tuple(history[len(history) - size :])
            place = self._places.get(end)
            # What was taken back may still be noted, so every find is looked at again
            if place is not None and place < len(history) and _is_at(history, end, place):
                tokens = history[place : place + count]
                while len(tokens) < count:  # it repeats itself
                    tokens += history[place : place + count - len(tokens)]
                return Proposal.of(_allowed(request, tokens))
        return None

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
        """Note the grams that end before the last token: the last one's have no continuation."""
        start = min(self._seen, len(history) - LONGEST_GRAM)
        for place in range(max(SHORTEST_GRAM, start), len(history)):
            for size in range(SHORTEST_GRAM, min(LONGEST_GRAM, place) + 1):
                self._places[tuple(history[place - size : place])] = place
        self._seen = len(history)


class ModelDrafter:
    """Drafts with a smaller model of the same tokenizer, under the request's own settings.

    Its filters' masks, penalties and biases hold for the draft as well, so that nothing is
    drafted that the request could not draw. A position is drawn with the request's own random
    numbers: where the two models think alike, the same token comes out.
    """

    most = 4  # each takes a pass of the draft, and the later ones stand less and less often

    def __init__(
        self,
        device: Device,
        sampler: Sampler,
        *,
        width: int,
        footprint: Footprint,
    ) -> None:
        self._footprint = footprint
        self._sampler = sampler
        self._width = width  # of the main model's logits
        self._kv = KV(device)

    def propose(self, request: Request, count: int) -> Proposal | None:
        logits = self._catch_up(request.history)
        if request.is_free(count + 1):
            return self._draw_freely(request, logits, count)
        return self._draw_in_steps(request, logits, count)

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes

    def nbytes_at(self, length: int) -> int:
        return self._footprint.alone(length)

    def fork(self) -> ModelDrafter:
        twin = ModelDrafter.__new__(ModelDrafter)
        twin._sampler, twin._width = self._sampler, self._width
        twin._footprint = self._footprint
        twin._kv = self._kv.fork()
        return twin

    def restart(self) -> None:
        self._kv.restart()

    def _catch_up(self, history: History) -> mx.array:
        """Bring the draft's cache to the end of the history: logits [1, vocab] behind it."""
        pending = self._kv.align(history)
        while len(pending) > PREFILL_STEP:
            self._run(pending[:PREFILL_STEP])
            self._kv.wait()
            pending = pending[PREFILL_STEP:]
        logits = self._run(pending)
        self._kv.expect_rewinds()
        return logits

    def _run(self, tokens: Sequence[Fed]) -> mx.array:
        logits = self._kv.run(tokens)[:, -1, :]
        self._kv.snapshot()
        return logits

    def _draw_freely(self, request: Request, logits: mx.array, count: int) -> Proposal:
        """Submit all draws at once: none depends on anything but the one before."""
        tokens: list[Fed] = []
        for i in range(count):
            if tokens:
                logits = self._run(tokens[-1:])
            token = self._draw(logits, plain_draw(request, request.position + i))
            tokens.append(Later(Unread(token), 0))
        return Proposal(tokens, free=True)

    def _draw_in_steps(self, request: Request, logits: mx.array, count: int) -> Proposal | None:
        """Draw one token after another, each under the mask that the ones before it leave."""
        drawn: list[Token] = []
        at = logits

        def choose(draw: DrawRow) -> Token | None:
            nonlocal at
            if len(drawn) == count:
                return None
            if drawn:
                at = self._run(drawn[-1:])
            token = integers(self._draw(at, draw))[0]
            if token < 0:
                return None
            drawn.append(token)
            return token

        walk(request, choose)
        return Proposal.of(drawn)

    def _draw(self, logits: mx.array, draw: DrawRow) -> mx.array:
        """A token [1], drawn as the request draws it, but that the likeliest candidates will do."""
        return self._sampler.sample(_widened(logits, self._width), [draw]).token


def check_same_tokens(mine: Vocabulary, theirs: Vocabulary, name: str) -> None:
    """Raise ``OptionError`` unless every token means the same to both models."""
    if mine is theirs:
        return
    if mine.eos != theirs.eos:
        raise OptionError(
            "draft",
            f"the text ends with tokens {sorted(theirs.eos)} for {name}, and with "
            f"{sorted(mine.eos)} here; take a draft of the same model family",
        )
    if mine.size != theirs.size:
        raise OptionError(
            "draft",
            f"{name} has a tokenizer of {theirs.size} tokens, and here are {mine.size}; take a "
            "draft of the same model family",
        )
    differing = mine.derived(("differs from", theirs), lambda: _first_difference(mine, theirs))
    if differing is not None:
        raise OptionError(
            "draft",
            f"token {differing} is {theirs.pieces[differing]!r} for {name}, and "
            f"{mine.pieces[differing]!r} here; take a draft of the same model family",
        )


def _first_difference(mine: Vocabulary, theirs: Vocabulary) -> Token | None:
    return next((t for t in range(mine.size) if mine.pieces[t] != theirs.pieces[t]), None)


def _widened(logits: mx.array, width: int) -> mx.array:
    """Logits [1, any] as [1, width]: models of one tokenizer pad it differently."""
    if logits.shape[-1] >= width:
        return logits[:, :width]
    short = width - logits.shape[-1]
    return mx.pad(logits, [(0, 0), (0, short)], constant_values=-mx.inf)


def _is_at(history: Sequence[Token], gram: tuple[Token, ...], place: int) -> bool:
    return place >= len(gram) and tuple(history[place - len(gram) : place]) == gram


def _allowed(request: Request, tokens: list[Token]) -> list[Token]:
    """As many of the tokens as the filters would take one after another."""
    constraint = request.constraint
    return tokens if constraint is None else tokens[: constraint.validate(tokens)]
