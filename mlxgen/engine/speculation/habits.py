"""What came where filters left only few tokens.

Owns the counts of it, by the mask: within a grammar it says where the text is (after a key, in a
number, at the end of a list), and the token before it says more. Must never know filters or
requests. It is bounded: what has not come up for longest is forgotten.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from ...filters import Int32Words
from ...tokens import Token

FEW = 64  # tokens that a mask may leave
MOST = 4096  # masks that are remembered, about 300 bytes each
NEWEST = 64  # counts of a mask are halved when they reach this: habits change


class Junction(NamedTuple):
    """A place where few tokens may come: the mask's hash, and the token before it."""

    mask: int
    before: Token

    @classmethod
    def of(cls, mask: Int32Words, before: Token) -> Junction | None:
        """The junction with this mask; ``None`` if it leaves more than a few tokens."""
        if np.count_nonzero(mask) > FEW:
            return None
        words = (mask != 0).nonzero()[0]  # a third of the time of ``flatnonzero``
        bits = mask[words].tobytes()
        if int.from_bytes(bits, "little").bit_count() > FEW:
            return None
        return cls(hash((words.tobytes(), bits)), before)


class Habit(NamedTuple):
    """What came most often at a junction: in this ``share`` of ``seen`` times. ``known``: after the
    same token before it, not only with the same mask."""

    token: Token
    share: float
    seen: int
    known: bool


class Habits:
    """See the module. Threads may share it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Token | None], dict[Token, int]] = {}
        self._lock = threading.Lock()

    def likeliest(self, at: Junction) -> Habit | None:
        """What came there most often, most lately of equals; ``None`` if nothing did."""
        with self._lock:
            counts = self._counts.get(at)
            known = counts is not None
            if counts is None and (counts := self._counts.get((at.mask, None))) is None:
                return None
            token = max(reversed(counts), key=counts.__getitem__)
            seen = sum(counts.values())
            return Habit(token, counts[token] / seen, seen, known)

    def saw(self, at: Junction, token: Token) -> None:
        """Note what came at a junction."""
        with self._lock:
            self._count(at, token)
            self._count((at.mask, None), token)

    def _count(self, key: tuple[int, Token | None], token: Token) -> None:
        counts = self._counts.pop(key, None) or {}
        count = counts.pop(token, 0) + 1
        if count >= NEWEST:
            counts = {each: half for each, n in counts.items() if (half := n // 2)}
            count //= 2
        counts[token] = count
        self._counts[key] = counts  # the latest are last
        if len(self._counts) > MOST:
            del self._counts[next(iter(self._counts))]
