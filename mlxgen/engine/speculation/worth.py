"""Which drafts pay, and how many tokens of each: decided for all rows of a step at once.

Everything here is a value, and nothing is known of models: a drafted token is worth the chance that
it stands, and costs what drafting it takes and what it makes the common pass longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .acceptance import Price

LEAST_GAIN = 1.01  # times the speed without drafts; less is not worth the risk
LIKELY = 0.4  # that all tokens of a draft stand, if it was asked for whatever it takes
FORCED = 1.0  # the chance of a token that filters force, and of no other: see ``_expected``


class Offer(NamedTuple):
    """What a drafter could propose: how likely each of its tokens stands if those before it do, and
    what drafting them takes."""

    chances: Sequence[float]
    price: Price = Price()


class Choice(NamedTuple):
    """So many tokens of a row's offer at this place among its offers."""

    offer: int
    tokens: int


def choose(
    rows: Sequence[Sequence[Offer]],
    of: Callable[[int], float],
    *,
    host: float = 0.0,
    pending: int = 1,
) -> list[Choice | None]:
    """What to draft for each of the ``rows`` that share the next pass; None: nothing.

    ``of``: what a pass of so many tokens takes. ``pending``: the tokens of each that are in it
    anyway. ``host``: the seconds that a step takes longer as nothing is submitted before its tokens
    are known.
    """
    longest = max([len(offer.chances) for row in rows for offer in row], default=0)
    nothing: list[Choice | None] = [None] * len(rows)
    if not longest:
        return nothing
    plain = of(len(rows) * pending)
    best, found = LEAST_GAIN * len(rows) / plain, nothing
    sums = [[_expected(offer.chances) for offer in row] for row in rows]
    for width in range(1, longest + 1):
        took = of(len(rows) * (pending + width)) + host
        if len(rows) * (1 + width) / took <= best:
            continue  # not even if all of them stood
        tokens, choices = float(len(rows)), []
        for offers, row in zip(rows, sums, strict=True):
            choice, gain = _best(offers, row, width, len(rows) / plain)
            choices.append(choice)
            if choice is not None:
                took += offers[choice.offer].price.of(choice.tokens)
                tokens += gain
        if tokens / took > best:
            best, found = tokens / took, choices
    return found


def asked(offers: Sequence[Offer], most: int | None) -> Choice | None:
    """As many tokens of the first offer as were asked for, or else as are likely to stand, whatever
    they take."""
    if not offers:
        return None
    chances = offers[0].chances
    count = len(chances) if most is not None else _likely(chances)
    return Choice(0, count) if count else None


def _likely(chances: Sequence[float]) -> int:
    """How many tokens are likely to stand, but one at least."""
    all_stand = 1.0
    for count, chance in enumerate(chances):
        all_stand *= chance
        if count and chance < FORCED and all_stand < LIKELY:
            return count
    return len(chances)


def _best(
    offers: Sequence[Offer], sums: Sequence[Sequence[float]], width: int, rate: float
) -> tuple[Choice | None, float]:
    """The offer of a row that is worth the most with ``width`` tokens at most, and the tokens that
    it is expected to give; its seconds are worth ``rate`` tokens each."""
    best, net, gain = None, 0.0, 0.0
    for place, (offer, expected) in enumerate(zip(offers, sums, strict=True)):
        most = min(width, len(expected))
        for count in range(1 if any(offer.price) else max(1, most), most + 1):
            left = expected[count - 1] - offer.price.of(count) * rate
            if left > net:
                best, net, gain = Choice(place, count), left, expected[count - 1]
    return best, gain


def _expected(chances: Sequence[float]) -> list[float]:
    """How many draws are expected to be saved by the first token, by the first two, and so on.

    What filters force is not drawn in any case, but it has to run: a token saves nothing without
    all that is forced after it.
    """
    sums, all_stand, total = [], 1.0, 0.0
    for place, chance in enumerate(chances, 1):
        all_stand *= chance
        if place == len(chances) or chances[place] < FORCED:
            total += all_stand
        sums.append(total)
    return sums
