"""What draws look back at: the tokens of a sequence, and the probabilities of those drawn.

Penalties count the tokens. Their order is that of mlx-lm: the multiplicative penalty (Keskar et al.
2019) applies to all tokens, and the additive ones to those that were generated.

DRY ("don't repeat yourself") is as its author describes it (p-e-w, text-generation-webui's pull
request 5677). If the history ends as it did somewhere before, the token that came next there would
make that repetition longer. Its logit is lowered by
``multiplier * base ** (length - allowed_length)``, where ``length`` is how many tokens the two ends
have in common, up to 1,000. No repetition goes beyond a sequence breaker: only the tokens after the
newest one in which a breaker ends are compared, however it is spelled in tokens. Tokens that hold a
whole breaker are not made less likely.

Adaptive-p is as its author describes it (MrJackSpade, adaptive-p-docs; llama.cpp's pull request
17927). Tokens near a target probability are preferred to likelier and to less likely ones. So that
drawn tokens reach the target on average, a draw aims as far beyond it as the moving average of the
latest ones is on the other side.

Invariant: what a draw depends on is a function of what is stored for each token, so going back
means forgetting the later ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..forks import forked
from .rows import Change

if TYPE_CHECKING:
    from ..tokens import Token
    from .settings import SamplingSettings

MOST = 1e9  # a penalty; if it were infinite, there might be nothing left to draw
_LONGEST = 1000  # tokens of a repetition that count; each costs a comparison of all matches so far
_ROOM = 64


class Lookback:
    """The tokens of a history: a prompt, then generated tokens.

    A part: ``advance`` one token, ``rewind`` to an absolute length of the history (the prompt
    included), ``fork``. Each takes constant time per token. ``piece`` gives the bytes of a token.
    """

    __slots__ = (
        "_averages",
        "_base",
        "_breakers",
        "_breaking",
        "_ids",
        "_piece",
        "_reach",
        "_settings",
        "_share",
        "_since",
    )

    def __init__(
        self, prompt: Sequence[Token], settings: SamplingSettings, piece: Callable[[Token], bytes]
    ) -> None:
        self._settings = settings
        self._piece = piece
        texts = settings.dry_sequence_breakers if settings.avoids_repetitions else ()
        self._breakers = tuple(text.encode("utf-8", "surrogatepass") for text in texts)
        self._reach = max(map(len, self._breakers), default=0)
        self._breaking: dict[Token, bool] = {}  # whether a token holds a breaker, once asked
        self._ids = np.zeros(max(_ROOM, 2 * len(prompt)), dtype=np.int32)  # with room for more
        self._since: list[int] = []  # at each token, how many have come since a breaker
        # The average probability before each token, as if all before the first were on target
        self._averages = [settings.adaptive_target]
        self._share: float | None = None
        for token in prompt:
            self.advance(token)
        self._base = len(prompt)

    def __len__(self) -> int:
        """Length of the history."""
        return len(self._since)

    def drew(self, share: float | None) -> None:
        """Note the probability that the next token had before adaptive-p's preference. One that was
        not drawn, such as a forced one, has none and leaves the average as it is."""
        self._share = share

    def advance(self, token: Token) -> None:
        """Append a token."""
        length = len(self)
        if length == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        before = self._since[-1] if length else 0
        self._since.append(0 if self._ends_breaker(token) else before + 1)
        self._ids[length] = token
        average, decay = self._averages[-1], self._settings.adaptive_decay
        if self._share is not None:
            average = (1 - decay) * self._share + decay * average
        self._averages.append(average)
        self._share = None

    def rewind(self, to: int) -> None:
        """Forget the tokens after the first ``to`` of the history."""
        del self._since[max(to, 0) :], self._averages[max(to, 0) + 1 :]
        self._base = min(self._base, len(self))
        self._share = None

    def fork(self) -> Lookback:
        """An independent copy."""
        shared = ("_piece", "_breaking")  # facts about the tokens, not about the history
        return forked(self, shared=shared, _ids=self._ids.copy())

    @property
    def target(self) -> float | None:
        """The probability at which the next draw aims, if it does."""
        if not self._settings.aims:
            return None
        return min(max(2 * self._settings.adaptive_target - self._averages[-1], 0.0), 1.0)

    def changes(self) -> tuple[Change, ...]:
        """How the logits change before the next draw."""
        return tuple([each for each in (self.penalties(), self.repetitions()) if each is not None])

    def penalties(self) -> Change | None:
        """The change of the tokens so far by the penalties."""
        settings, count = self._settings, len(self)
        if not settings.penalises or not count:
            return None
        window = settings.repetition_context_size
        start = max(0, count - window) if window else 0
        ids = np.unique(self._ids[start:count])
        generated = np.searchsorted(ids, self._ids[max(start, self._base) : count])
        times = np.bincount(generated, minlength=len(ids))
        less = settings.presence_penalty * (times > 0) + settings.frequency_penalty * times
        return Change(ids, np.full(len(ids), settings.repetition_penalty), less)

    def repetitions(self) -> Change | None:
        """The change of the tokens that would extend a repetition, if any would."""
        settings = self._settings
        if not settings.avoids_repetitions:
            return None
        longest = {
            token: length for token, length in self._repeated().items() if not self._breaks(token)
        }
        if not longest:
            return None
        rise, first = math.log(settings.dry_base), math.log(settings.dry_multiplier)
        most, allowed = math.log(MOST), settings.dry_allowed_length
        exponents = (first + (length - allowed) * rise for length in longest.values())
        less = [math.exp(min(exponent, most)) for exponent in exponents]
        return Change(np.array(list(longest), np.int32), np.ones(len(less)), np.array(less))

    def _repeated(self) -> dict[Token, int]:
        """The tokens that followed an earlier match of the end, and the length of that match."""
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
        ends = np.flatnonzero(ids[start:last] == ids[last]) + start  # of what matches the end
        for length in range(1, most + 1):
            longer = (ends >= start + length) & (ids[ends - length] == ids[last - length])
            longer &= length < most
            if length >= allowed:
                longest.update(dict.fromkeys(ids[ends[~longer] + 1].tolist(), length))
            ends = ends[longer]
            if not len(ends):
                break
        return longest

    def _breaks(self, token: Token) -> bool:
        """Whether a token holds a whole breaker."""
        known = self._breaking.get(token)
        if known is None:
            piece = self._piece(token)
            known = self._breaking[token] = any(text in piece for text in self._breakers)
        return known

    def _ends_breaker(self, token: Token) -> bool:
        """Whether a breaker ends in a token that comes next."""
        if self._reach < 2 or self._breaks(token):
            return bool(self._reach) and self._breaks(token)
        before, at = b"", len(self)
        while at and len(before) < self._reach - 1:
            at -= 1
            before = self._piece(int(self._ids[at])) + before
        whole = before + self._piece(token)
        return any(
            whole.find(text, max(0, len(before) - len(text) + 1)) >= 0 for text in self._breakers
        )
