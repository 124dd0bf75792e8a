"""Which tokens would go on with a repetition: DRY ("don't repeat yourself").

As its author describes it (p-e-w, text-generation-webui's pull request 5677). If the history ends
as it did somewhere before, the token that came next there would make that repetition longer. Its
logit is lowered by ``multiplier * base ** (length - allowed_length)``, where ``length`` is how many
tokens the two ends have in common, up to 1,000. No repetition goes beyond a sequence breaker: only
the tokens after the newest one in which a breaker ends are compared, however it is spelled in
tokens. Tokens that hold a whole breaker are not made less likely.

Invariant: the table is a function of the history alone. No length is remembered, so there is
nothing to take back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ..forks import forked
from .settings import SamplingSettings

if TYPE_CHECKING:
    from ..tokens import Token

Penalties: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Different tokens [n], and what to subtract from the logit of each [n]."""

MOST = 1e9  # a penalty; if it were infinite, there might be nothing left to draw
_LONGEST = 1000  # tokens of a repetition that count; each takes a look at all that is alike so far
_ROOM = 64


class Repetitions:
    """The tokens of a history, in which repetitions are searched.

    A part: ``advance`` one token, ``rewind`` to an absolute length of the history (the prompt
    included), ``fork``. Each takes constant time per token. ``piece`` gives the bytes of a token.
    """

    __slots__ = (
        "_breakers",
        "_breaking",
        "_ids",
        "_piece",
        "_reach",
        "_settings",
        "_since",
    )

    def __init__(
        self, prompt: Sequence[Token], settings: SamplingSettings, piece: Callable[[Token], bytes]
    ) -> None:
        self._settings = settings
        self._piece = piece
        texts = settings.dry_sequence_breakers
        self._breakers = tuple(text.encode("utf-8", "surrogatepass") for text in texts)
        self._reach = max(map(len, self._breakers), default=0)
        self._breaking: dict[Token, bool] = {}  # whether a token holds a breaker, if it was asked
        self._ids = np.zeros(max(_ROOM, 2 * len(prompt)), dtype=np.int32)  # with room for more
        self._since: list[int] = []  # how many tokens there are since a breaker, at each token
        for token in prompt:
            self.advance(token)

    def __len__(self) -> int:
        """Length of the history."""
        return len(self._since)

    def advance(self, token: Token) -> None:
        """Append a token."""
        length = len(self)
        if length == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        before = self._since[-1] if length else 0
        self._since.append(0 if self._ends_breaker(token) else before + 1)
        self._ids[length] = token

    def rewind(self, to: int) -> None:
        """Forget the tokens after the first ``to`` of the history."""
        del self._since[max(to, 0) :]

    def fork(self) -> Repetitions:
        """An independent copy."""
        shared = ("_piece", "_breaking")  # facts about the tokens, not about the history
        return forked(self, shared=shared, _ids=self._ids.copy())

    def penalties(self) -> Penalties | None:
        """What the next token pays if it goes on with a repetition; ``None``: none does."""
        settings = self._settings
        allowed = settings.dry_allowed_length
        longest = {
            token: length for token, length in self._repeated().items() if not self._breaks(token)
        }
        if not longest:
            return None
        rise, first = math.log(settings.dry_base), math.log(settings.dry_multiplier)
        most = math.log(MOST)
        exponents = (first + (length - allowed) * rise for length in longest.values())
        values = [math.exp(min(exponent, most)) for exponent in exponents]
        return np.array(list(longest), np.int32), np.array(values, np.float32)

    def _repeated(self) -> dict[Token, int]:
        """The tokens that came after something like the end, and how much of the end that was."""
        count, settings = len(self), self._settings
        ids, last, window = self._ids, count - 1, settings.dry_penalty_last_n
        start = 0 if window < 0 else max(0, count - window)
        most = min(last - start, self._since[-1] if count else 0, _LONGEST)
        allowed, rise = settings.dry_allowed_length, math.log(settings.dry_base)
        if rise * most > 0:  # from some length on, the penalty does not grow
            left = math.log(MOST) - math.log(settings.dry_multiplier)
            most = min(most, allowed + math.ceil(left / rise))
        if most < allowed:
            return {}
        longest: dict[Token, int] = {}
        ends = np.flatnonzero(ids[start:last] == ids[last]) + start  # of what is like the end
        for length in range(1, most + 1):
            longer = (ends >= start + length) & (ids[ends - length] == ids[last - length])
            longer &= length < most
            if length >= allowed:
                longest.update(dict.fromkeys(ids[ends[~longer] + 1].tolist(), length))
            ends = ends[longer]
            if not len(ends):
                break
        return longest

    # ---- breakers ----------------------------------------------------------------------------

    def _breaks(self, token: Token) -> bool:
        """Whether a token holds a whole breaker."""
        known = self._breaking.get(token)
        if known is None:
            piece = self._piece(token)
            known = self._breaking[token] = any(text in piece for text in self._breakers)
        return known

    def _ends_breaker(self, token: Token) -> bool:
        """Whether a breaker ends in a token that comes next."""
        if self._breaks(token) or self._reach < 2:
            return self._breaks(token)
        before, at = b"", len(self)
        while at and len(before) < self._reach - 1:
            at -= 1
            before = self._piece(int(self._ids[at])) + before
        whole = before + self._piece(token)
        return any(
            whole.find(text, max(0, len(before) - len(text) + 1)) >= 0 for text in self._breakers
        )
