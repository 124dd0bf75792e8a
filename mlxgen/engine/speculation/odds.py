"""How often what was expected came, by the grounds that it was expected on.

Owns one running mean for each kind of grounds: the length of a match and how its places agree, or
how well a habit is known. It is learned from whatever comes, drafted or not. Must never know
requests. Invariant: every mean is a probability.
"""

from __future__ import annotations

from bisect import bisect_left

SLOWEST = 1 / 256  # of the newest in a mean
KNOWN = 16  # what came before that a mean begins with
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 32)  # of matches, in tokens: up to so many
SHARES = (0.25, 0.5, 0.8, 0.99)  # of the places that agree, or of the times of a habit
AGREEING = (1, 2, 3)  # places, if all agree
TIMES = (1, 2, 4, 8, 16)  # that a habit was seen

# What was right of the first guesses in rewritten files, records, tool calls and prose
_MATCHES = (
    (0.1, 0.2, 0.3, 0.5, 0.6, 0.6, 0.6, 0.6),
    (0.15, 0.25, 0.4, 0.6, 0.75, 0.8, 0.8, 0.8),
    (0.14, 0.17, 0.34, 0.6, 0.55, 0.7, 0.9, 0.95),
    (0.1, 0.22, 0.45, 0.65, 0.7, 0.85, 0.95, 0.96),
    (0.1, 0.15, 0.4, 0.6, 0.75, 0.87, 0.95, 0.96),
    (0.1, 0.2, 0.4, 0.5, 0.84, 0.9, 0.95, 0.96),
    (0.15, 0.2, 0.4, 0.5, 0.9, 0.94, 0.95, 0.96),
    (0.15, 0.2, 0.4, 0.5, 0.92, 0.93, 0.95, 0.96),
    (0.15, 0.2, 0.4, 0.5, 0.97, 0.97, 0.98, 0.98),
    (0.15, 0.2, 0.4, 0.5, 0.98, 0.98, 0.98, 0.98),
)  # by length, and then by share or, if all agree, by places
_MASK_KNOWN = (0.35, 0.6, 0.75, 0.85, 0.9, 0.95)  # by times, if the habit never changed
_TOKEN_KNOWN = (0.5, 0.7, 0.85, 0.9, 0.95, 0.98)  # the same after the same token
_VOTES = (0.2, 0.4, 0.65, 0.9, 1.0)  # by share
_START = (
    *[chance for row in _MATCHES for chance in row],
    *[0.8 * chance for row in _MATCHES for chance in row],
    *[chance * votes for row in (_MASK_KNOWN, _TOKEN_KNOWN) for chance in row for votes in _VOTES],
)
_KINDS = len(_MATCHES[0])
_FREE = len(_MATCHES) * _KINDS
_HABITS = 2 * _FREE


def match_grounds(length: int, share: float, places: int, filtered: bool) -> int:
    """The grounds of what came next at this ``share`` of a match's places.

    ``filtered``: filters allow it; much of such a match is what they force everywhere.
    """
    kind = bisect_left(SHARES, share)
    if kind == len(SHARES):
        kind += bisect_left(AGREEING, places)
    return filtered * _FREE + bisect_left(LENGTHS, length) * _KINDS + kind


def habit_grounds(seen: int, share: float, known: bool) -> int:
    """The grounds of a habit."""
    row = known * len(_MASK_KNOWN) + bisect_left(TIMES, seen)
    return _HABITS + row * len(_VOTES) + bisect_left(SHARES, share)


class Odds:
    """See the module; of all requests to a model. Threads may share it, as no figure is exact."""

    __slots__ = ("_counts", "_means")

    def __init__(self) -> None:
        self._means = list(_START)
        self._counts = [KNOWN] * len(_START)

    def __getitem__(self, grounds: int) -> float:
        return self._means[grounds]

    def saw(self, grounds: int, came: bool) -> None:
        """Note whether what was expected on these grounds came."""
        self._counts[grounds] += 1
        weight = max(SLOWEST, 1 / self._counts[grounds])
        self._means[grounds] += weight * (came - self._means[grounds])
