"""What a model has generated and read lately, for those who draft from it.

A text is kept as far as it is new: whatever the younger half has already is left out, with a few
tokens on either side so that what is found before it goes on in it. When the younger half is full
it becomes the older one, and the older one is dropped. What is used again and again therefore
stays, and nothing is ever moved.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from ...tokens import Token
from .places import NOTHING, Ids, Places, as_ids

MOST = 1 << 18  # tokens: 4 MiB
LEAST_KNOWN = 64  # tokens in a row that have to be known to be left out
EDGE = 16  # tokens of them that are kept all the same, on either side
STRIDE = 16  # how far apart the places are from which known tokens are looked for


class Texts:
    """See the module; ``most`` is how many tokens it may hold. Several threads may use it."""

    __slots__ = ("_half", "_lock", "generations")

    def __init__(self, most: int = MOST) -> None:
        self._half = most // 2
        self._lock = threading.Lock()
        self.generations = Places(), Places()  # the younger, and the older, which nobody changes

    def __len__(self) -> int:
        return sum(map(len, self.generations))

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(each.nbytes for each in self.generations)

    def add(self, tokens: Sequence[Token]) -> None:
        """Remember a text, or its last tokens if it is longer than there is room for."""
        ids = as_ids(tokens[-self._half + 1 :])
        with self._lock:
            for start, end in _unknown(ids, self.generations[0]):
                self._append(ids[start:end])

    def _append(self, ids: Ids) -> None:
        young, old = self.generations
        if len(young) + len(ids) + 1 > self._half:
            young, old = Places(), young
            self.generations = young, old
        young.extend(np.append(ids, np.int32(NOTHING)))  # matches end with a text


def _unknown(ids: Ids, known: Places) -> list[tuple[int, int]]:
    """The parts of a text that are not known yet, with their edges."""
    parts: list[tuple[int, int]] = []
    start = 0  # of what is not known
    for place, other in _anchors(ids, known):
        if place < start:
            continue
        there = np.frombuffer(known.tokens, np.int32)
        before = _common(ids[start:place][::-1], there[:other][::-1])
        after = _common(ids[place:], there[other:])
        if before + after < LEAST_KNOWN:
            continue
        if place - before > start:
            parts.append((max(0, start - EDGE), place - before + EDGE))
        start = place + after
    if start < len(ids):
        parts.append((max(0, start - EDGE), len(ids)))
    return parts


def _anchors(ids: Ids, known: Places) -> Iterator[tuple[int, int]]:
    """Places of a text with one that is known for each; the tokens around them are the same."""
    around = np.arange(-STRIDE // 2, STRIDE // 2)
    places = np.arange(STRIDE, len(ids) - STRIDE, STRIDE, dtype=np.int64)
    there = np.array(known.tokens, np.int32)
    others = known.latest_of(ids, places)
    near = (others + around[0] >= 0) & (others + around[-1] < len(there))
    places, others = places[near], others[near]
    same = (ids[places[:, None] + around] == there[others[:, None] + around]).all(axis=1)
    yield from zip(places[same].tolist(), others[same].tolist(), strict=True)


def _common(ids: Ids, others: Ids) -> int:
    """How many of the first tokens are the same."""
    most, done, piece = min(len(ids), len(others)), 0, 64
    while done < most:
        end = min(most, done + piece)
        differ = np.flatnonzero(ids[done:end] != others[done:end])
        if len(differ):
            return done + int(differ[0])
        done, piece = end, 4 * piece
    return most
