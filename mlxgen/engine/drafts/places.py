"""Tokens, and where each run of three of them occurs: hash chains, as in LZ77.

A place is the index of the token after such a run; what never matches has none. ``heads`` has the
latest place for each value of the hash, and ``chain`` the one before it for each place; -1 is none.
As other runs may have the same hash, what is found has to be compared. It takes 12 to 24 bytes a
token.

Only one thread may change it. Others may read it at the same time, if it is not cut: they read
a head before they read ``chain``.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ...tokens import Token

Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Slots: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

RUN = 3  # tokens of a run
FEW = 64  # tokens that are added one by one faster than all at once
FIRST, MORE = 256, 4  # heads at first, and times as many if there are more tokens than heads
NOTHING = -(2**31)  # in the place of what never matches, such as the patch of an image

_FACTOR = 40503  # Knuth's, for words of 16 bits


class Places:
    """See the module."""

    __slots__ = ("chain", "heads", "tokens")

    def __init__(self) -> None:
        self.tokens = array("i")
        self.chain = array("i")
        self.heads = array("i", [-1]) * FIRST

    def __len__(self) -> int:
        return len(self.tokens)

    def latest(self, a: Token, b: Token, c: Token) -> int:
        """The latest place that may be one after these three tokens; -1 if there is none."""
        if a | b | c < 0:
            return -1
        heads = self.heads
        return heads[(a * _FACTOR + b) * _FACTOR + c & len(heads) - 1]

    def append(self, token: Token) -> None:
        """Add a token; its place is one after the three tokens before it."""
        self.tokens.append(token if token >= 0 else NOTHING)
        if len(self.tokens) > len(self.heads):
            self._link_all()
        else:
            self._link_next()

    def extend(self, tokens: Ids) -> None:
        """Add any number of tokens: all of them before anything leads to one of them."""
        self.tokens.frombytes(tokens.tobytes())
        if len(self.tokens) > len(self.heads):
            self._link_all()
        elif len(tokens) > FEW:
            self._link(len(self.chain), self.heads)
        else:
            for _ in range(len(tokens)):
                self._link_next()

    def cut(self, to: int) -> None:
        """Keep the first ``to`` tokens."""
        tokens, chain, heads = self.tokens, self.chain, self.heads
        if len(tokens) - to > max(FEW, to):
            del tokens[to:]
            self._link_all()
            return
        for place in range(len(tokens) - 1, max(to, RUN) - 1, -1):
            a, b, c, token = tokens[place - 3 : place + 1]
            if a | b | c | token >= 0:
                heads[(a * _FACTOR + b) * _FACTOR + c & len(heads) - 1] = chain[place]
        del tokens[to:], chain[to:]

    def fork(self) -> Places:
        """An independent copy."""
        twin = Places.__new__(Places)
        twin.tokens, twin.chain, twin.heads = self.tokens[:], self.chain[:], self.heads[:]
        return twin

    def _link_next(self) -> None:
        """Link the next place that is not in the chain yet."""
        tokens, place = self.tokens, len(self.chain)
        if place >= RUN:
            a, b, c = tokens[place - 3], tokens[place - 2], tokens[place - 1]
            if a | b | c | tokens[place] >= 0:
                heads = self.heads
                slot = (a * _FACTOR + b) * _FACTOR + c & len(heads) - 1
                self.chain.append(heads[slot])
                heads[slot] = place
                return
        self.chain.append(-1)

    def _link_all(self) -> None:
        """Make chain and heads anew, these for at least as many tokens as there are."""
        size = FIRST
        while size < len(self.tokens):
            size *= MORE
        self._link(0, array("i", [-1]) * size)

    def _link(self, start: int, heads: array[int]) -> None:
        """Link the places from ``start`` on; ``heads`` has those before."""
        tokens = np.frombuffer(self.tokens, np.int32).astype(np.int64)
        first = max(start, RUN)
        a, b, c, after = (tokens[first - back : len(tokens) - back] for back in (3, 2, 1, 0))
        slots = _slots(a, b, c, len(heads))
        places = np.arange(first, len(tokens))
        # One sort of slot and place in one word gives the places of each slot in their order.
        pairs = np.sort((slots << 32 | places)[a | b | c | after >= 0])
        slots, places = pairs >> 32, pairs & 0xFFFFFFFF
        is_other = np.diff(slots, prepend=-1, append=-1) != 0
        begins, ends = is_other[:-1], is_other[1:]
        latest = np.frombuffer(heads, np.int32)
        before = np.concatenate([[-1], places])[:-1]
        before[begins] = latest[slots[begins]]
        linked = np.full(len(tokens) - start, -1, np.int32)
        linked[places - start] = before
        chain = self.chain[:start]
        chain.frombytes(linked.tobytes())
        self.chain = chain
        latest[slots[ends]] = places[ends]
        self.heads = heads


def as_ids(tokens: Sequence[Token]) -> Ids:
    """Tokens as an array."""
    try:
        ids = np.array(tokens, np.int32)
    except OverflowError:  # patches of images have long ids
        ids = np.array([max(token, NOTHING) for token in tokens], np.int32)
    return np.where(ids < 0, NOTHING, ids)


def _slots(a: Slots, b: Slots, c: Slots, size: int) -> Slots:
    """Which of ``size`` heads has the places after these three tokens."""
    return (a * _FACTOR + b) * _FACTOR + c & size - 1
