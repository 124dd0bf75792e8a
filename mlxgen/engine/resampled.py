"""Texts drawn from the model's own distribution over whole texts, under filters and to a power.

A mask removes tokens one by one, so it leads the model where it would not go: the more a beginning
rules out later, the more it is overdrawn. Here whole texts are weighed: Metropolis-Hastings over
their ends. A move forks a stream, goes back to a place drawn at random, and generates on from
there; the new text replaces the old one with the probability that makes texts come in proportion to
their probability under the model to the ``power``, restricted to those that filters allow. Source
for powers above 1: Karan and Du, "Reasoning with sampling" (2025).

Early places are drawn more often than late ones, the k-th of n with a probability of
``(sqrt(k + 1) - sqrt(k)) / sqrt(n)``: what a filter rules out late is often decided early.

Invariant: only drawn tokens are compared, by the model's own probability of each (``logprob``) and
that of its draw (``prob``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptionError
from ..options.rule import ABOVE_ZERO, integer, number
from ..tokens import Token
from .chunk import Chunk, Result, fold
from .stream import Stream

WITHOUT = ("hooks", "banned", "close_json", "loops")
"""Options that take tokens back, so that draws have other probabilities than they report."""


@dataclass(slots=True)
class _Chain:
    """A text in its present state, and what was generated for it in all."""

    stream: Stream
    chunks: list[Chunk]
    passes: int = 0
    rewound: int = 0

    def odds(self, start: int, power: float) -> float:
        """The logarithm of the weight of the tokens from ``start`` on, divided by the probability
        of their draws."""
        total = 0.0
        for chunk in self.chunks:
            if chunk.index >= start and chunk.prob is not None and chunk.logprob is not None:
                total += power * chunk.logprob - math.log(chunk.prob)
        return total

    def result(self, prefix: tuple[Token, ...]) -> Result:
        usage = replace(self.stream.usage, forward_passes=self.passes, rewound_tokens=self.rewound)
        return fold(self.chunks, usage, prefix)


def check(given: Mapping[str, Any], moves: int, power: float, chains: int) -> None:
    """Raise ``OptionError`` for options with which texts cannot be resampled."""
    for name in WITHOUT:
        if given.get(name):
            raise OptionError(
                name, "cannot be used with resampled, as it takes tokens back; leave it out"
            )
    if given.get("temperature") == 0:
        raise OptionError("temperature", "expected a number above 0 to draw with, got 0")
    integer(None, 0).check("moves", moves)
    number(1, ABOVE_ZERO, 1e6).check("power", power)
    integer(None, 1).check("chains", chains)


def resample(first: Stream, moves: int, power: float, chains: int) -> list[Result]:
    """``chains`` texts of a stream that has not begun, after ``moves`` moves of each."""
    prefix = tuple(first.tokens)
    least = len(prefix)
    begun = [next(first)]
    streams = [first, *first.fork(chains - 1)] if chains > 1 else [first]
    running = [_Chain(stream, list(begun)) for stream in streams]
    for chain in running[1:]:
        chain.stream.rewind(to=least)
        chain.chunks.clear()
    _finish(running)
    for chain in running:
        chain.passes = chain.stream.usage.forward_passes
    dice = random.Random(f"{first.seed}/moves")
    for _ in range(moves if first.tokens[least:] else 0):  # without a token there is no other text
        proposed = []
        for chain in running:
            place = least + int((len(chain.stream.tokens) - least) * dice.random() ** 2)
            (twin,) = chain.stream.fork()
            twin.rewind(to=place)
            kept = [chunk for chunk in chain.chunks if chunk.index < place]
            proposed.append((_Chain(twin, kept), place))
        _finish([new for new, _ in proposed])
        for chain, (new, place) in zip(running, proposed, strict=True):
            chain.passes += new.stream.usage.forward_passes
            old, drawn = chain.stream, new.stream
            ratio = new.odds(place, power) - chain.odds(place, power)
            ratio += math.log((len(old.tokens) - least) / (len(drawn.tokens) - least)) / 2
            if math.log(1 - dice.random()) < ratio:
                chain.stream, chain.chunks, drawn = drawn, new.chunks, old
            chain.rewound += len(drawn.tokens) - place
            drawn.close()
    results = [chain.result(prefix) for chain in running]
    for chain in running:
        chain.stream.close()
    return results


def _finish(chains: Sequence[_Chain]) -> None:
    """Generate all of them to their ends, one token of each in turn."""
    left = list(chains)
    while left:
        for chain in tuple(left):
            chunk = next(chain.stream, None)
            if chunk is None:
                left.remove(chain)
            else:
                chain.chunks.append(chunk)
