"""How often each token occurs in one sequence: the counts that penalties are computed from.

Invariant: the first slots hold each token of the history once, in the order of first
occurrence, with the number of times that it was generated; so a rewind only ever removes
the newest slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..forks import forked

if TYPE_CHECKING:
    from ..tokens import Token

_ROOM = 64


class TokenCounts:
    """The tokens of a history: a prompt, then generated tokens.

    A part: ``advance`` one generated token, ``rewind`` to an absolute length of the
    history (the prompt included), ``fork``. Each takes constant time per token.

    ``window`` limits the table to that many of the newest tokens; 0 means all.
    """

    __slots__ = ("_base", "_firsts", "_generated", "_ids", "_slot_of", "_slots", "_window")

    def __init__(self, prompt: Sequence[Token] = (), *, window: int = 0) -> None:
        self._window = window
        self._slot_of: dict[Token, int] = {}
        self._slots: list[int] = []  # of each token of the history
        self._firsts: list[int] = []  # the first place of each slot in the history
        for token in prompt:
            self._slots.append(self._slot(token))
        self._base = len(self._slots)
        room = max(_ROOM, 2 * len(self._slot_of))
        self._ids = np.zeros(room, dtype=np.int32)
        self._ids[: len(self._slot_of)] = list(self._slot_of)
        self._generated = np.zeros(room, dtype=np.float32)

    def __len__(self) -> int:
        """Length of the history."""
        return len(self._slots)

    def table(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The different tokens [n], and how often each was generated [n].

        They may be views, valid until the next change.
        """
        distinct, before = len(self._slot_of), len(self._slots) - self._window
        if not self._window or before <= 0:
            return self._ids[:distinct], self._generated[:distinct]
        slots, which = np.unique(self._slots[before:], return_inverse=True)
        generated = np.bincount(which[max(0, self._base - before) :], minlength=len(slots))
        return self._ids[slots], generated.astype(np.float32)

    def advance(self, token: Token) -> None:
        """Counts one generated token."""
        slot = self._slot(token)
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._generated = np.concatenate([self._generated, np.zeros_like(self._generated)])
        self._ids[slot] = token
        self._generated[slot] += 1
        self._slots.append(slot)

    def rewind(self, to: int) -> None:
        """Forgets the tokens after the first ``to`` of the history."""
        while len(self._slots) > max(to, 0):
            slot = self._slots.pop()
            length = len(self._slots)
            if length >= self._base:
                self._generated[slot] -= 1
            else:
                self._base = length
            if self._firsts[slot] == length:
                self._firsts.pop()
                del self._slot_of[int(self._ids[slot])]

    def fork(self) -> TokenCounts:
        """An independent copy."""
        return forked(self, _ids=self._ids.copy(), _generated=self._generated.copy())

    def _slot(self, token: Token) -> int:
        slot = self._slot_of.setdefault(token, len(self._slot_of))
        if slot == len(self._firsts):
            self._firsts.append(len(self._slots))
        return slot
