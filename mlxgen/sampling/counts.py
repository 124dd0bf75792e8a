"""How often each token occurs in one sequence: the counts that penalties are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..forks import forked

if TYPE_CHECKING:
    from ..tokens import Token


class TokenCounts:
    """The tokens of a history: a prompt, then generated tokens.

    A part: ``advance`` one generated token, ``rewind`` to an absolute length of the
    history (the prompt included), ``fork``. Each takes constant time per token.

    ``window`` limits the table to that many of the newest tokens; 0 means all.
    """

    __slots__ = ("_base", "_generated", "_occurring", "_tokens", "_window")

    def __init__(self, prompt: Sequence[Token] = (), *, window: int = 0) -> None:
        self._window = window
        self._tokens: list[Token] = []
        self._occurring: dict[Token, int] = {}  # how often each occurs
        self._generated: dict[Token, int] = {}  # the same tokens, and how often that was generated
        self._base = len(prompt)
        for token in prompt:
            self._add(token, 0)

    def __len__(self) -> int:
        """Length of the history."""
        return len(self._tokens)

    def table(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The different tokens [n], and how often each was generated [n]."""
        before = len(self._tokens) - self._window
        if self._window and before > 0:
            ids, which = np.unique(self._tokens[before:], return_inverse=True)
            generated = np.bincount(which[max(0, self._base - before) :], minlength=len(ids))
            return ids.astype(np.int32), generated.astype(np.float32)
        count, counts = len(self._generated), self._generated
        return np.fromiter(counts, np.int32, count), np.fromiter(counts.values(), np.float32, count)

    def advance(self, token: Token) -> None:
        """Counts one generated token."""
        self._add(token, 1)

    def rewind(self, to: int) -> None:
        """Forgets the tokens after the first ``to`` of the history."""
        while len(self._tokens) > max(to, 0):
            token = self._tokens.pop()
            self._occurring[token] -= 1
            self._generated[token] -= len(self._tokens) >= self._base
            if not self._occurring[token]:
                del self._occurring[token], self._generated[token]
        self._base = min(self._base, len(self._tokens))

    def fork(self) -> TokenCounts:
        """An independent copy."""
        return forked(self)

    def _add(self, token: Token, generated: int) -> None:
        self._tokens.append(token)
        self._occurring[token] = self._occurring.get(token, 0) + 1
        self._generated[token] = self._generated.get(token, 0) + generated
