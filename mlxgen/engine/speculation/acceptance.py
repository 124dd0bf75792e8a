"""How often what a drafter proposes stands, and what proposing it takes.

Owns running means of both, and the rests of a drafter that is wrong all the time. Must never know
models or clocks. Invariant: if nothing ever stands, a draft is tried once in 256 tokens at last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DEEPEST = 16  # of the drafted tokens that are told apart; later ones stand as often as this one
HOPE = 0.7  # of the tokens of a drafter that nobody has seen yet
KNOWN = 8  # tokens that a mean over all requests counts as, when another one begins
_SLOWEST = 1 / 32  # of the newest in a mean of one request, and half of that over all of them
_SECONDS = 1 / 8  # of what is wrong with a price that one draft mends
_UNTRIED = 1 / 32  # by which the price of further tokens falls with each draft of a single one
_HOPE = 1 / 512  # by which a mean rises, and a price falls, with each step without a draft
_DOUBT = 1 / 8  # by which the price of a single draft would fall
SELDOM = 0.5  # of the first tokens of drafts stand, if their drafter rests now and then
CAREFUL = 2  # drafted tokens at a time of who was wrong, if it is not known to be right mostly
REST, LONGEST_REST = 4, 256  # tokens without a draft, after one of which nothing stood


class Price(NamedTuple):
    """The seconds that drafting takes: those of the ``first`` token, with all that begins anew for
    a draft, and those of each ``further`` one."""

    first: float = 0.0
    further: float = 0.0

    def of(self, count: int) -> float:
        return self.first + (count - 1) * self.further if count else 0.0


class Experience:
    """What the drafts of one kind were worth, over all requests of a model.

    ``means``: how often the tokens stood by their places, if those before them did. ``share``: of
    the main model's pass that drafting a token takes, as long as nothing was seen. Threads may
    share it, as no figure is exact.
    """

    __slots__ = ("_price", "_seen", "means", "share")

    def __init__(self, share: float = 0.0) -> None:
        self.means = [HOPE] * DEEPEST
        self.share = share
        self._price = Price()
        self._seen = 0  # drafts that took so long, the first one included

    def price(self, plain: float) -> Price:
        """What drafting takes, where a pass without drafts takes ``plain`` seconds."""
        return self._price if self._seen > 1 else Price(self.share * plain, self.share * plain)

    def took(self, count: int, seconds: float, plain: float) -> None:
        """Note what drafting ``count`` tokens took beside a ``plain`` pass; what can be done in
        much less was held up before. The first time tells nothing, as kernels are made then."""
        self._seen += 1
        if self._seen == 1:
            return
        seconds, price = max(0.0, seconds), self._price
        weight = max(_SECONDS, 1 / (self._seen - 1))
        if self._seen == 2:
            each = seconds / count
            price = Price(each, each if count > 1 else min(each, self.share * plain))
        error, steps = seconds - price.of(count), count - 1
        step = error / (1 + steps * steps)
        step *= 1.0 if 2 * seconds < price.of(count) else weight
        further = price.further + steps * step if steps else (1.0 - _UNTRIED) * price.further
        self._price = Price(max(0.0, price.first + step), max(0.0, further))

    def hope(self) -> None:
        """Take what drafting takes for a little less, the more so the less is known of it."""
        rate = max(_HOPE, _DOUBT / max(1, self._seen))
        self._price = Price(*[(1.0 - rate) * each for each in self._price])


class Acceptance:
    """See the module, for one request; ``experience`` of others is where it begins."""

    __slots__ = ("_counts", "_doubtful", "_means", "_rest", "_until", "experience")

    def __init__(self, experience: Experience | None = None) -> None:
        self.experience = experience or Experience()
        self._means = list(self.experience.means)
        self._counts = [KNOWN] * DEEPEST
        self._doubtful = False
        self._rest, self._until = REST, 0  # the position from which drafts are tried again

    def rests(self, position: int) -> bool:
        """Whether nothing is to be drafted after ``position``."""
        return position < self._until

    def careful(self, count: int) -> int:
        """How many of ``count`` tokens to try, where the least that is lost is to be lost."""
        return min(count, CAREFUL) if self._doubtful else count

    def chances(self, count: int) -> Sequence[float]:
        """How often each of ``count`` tokens stood if those before it did."""
        if count <= DEEPEST:
            return self._means[:count]
        return [*self._means, *self._means[-1:] * (count - DEEPEST)]

    def hope(self) -> None:
        """Note a step without a draft: what did not pay may do so by now, and is tried again."""
        self._means = [mean + _HOPE * (1.0 - mean) for mean in self._means]
        self.experience.hope()

    def saw(self, position: int, proposed: int, accepted: int) -> None:
        """Note how many of the ``proposed`` tokens stood, and the position reached."""
        for depth in range(min(proposed, accepted + 1, DEEPEST)):
            stood = depth < accepted
            self._counts[depth] += 1
            weight = max(_SLOWEST, 1 / self._counts[depth])
            self._means[depth] += weight * (stood - self._means[depth])
            means = self.experience.means
            means[depth] += _SLOWEST / 2 * (stood - means[depth])
        if not proposed:
            return
        self._doubtful = not accepted and self._means[0] < HOPE
        if accepted:
            self._rest = REST
        elif self._means[0] < SELDOM:
            self._until = position + self._rest
            self._rest = min(LONGEST_REST, 2 * self._rest)

    def fork(self) -> Acceptance:
        """An independent copy."""
        twin = Acceptance(self.experience)
        twin._means, twin._counts = list(self._means), list(self._counts)
        twin._doubtful, twin._rest, twin._until = self._doubtful, self._rest, self._until
        return twin
