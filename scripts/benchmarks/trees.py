"""Whether a tree of continuations, verified in one pass, would be faster than the likeliest one.

Owns a reckoning of both on the matches that drafts from text are made of; no model runs. Must never
know how a tree would be verified: its masks, positions and moved KV cost nothing here. So what a
tree is found to bring is the most that it could.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from mlxgen.engine.history import History
from mlxgen.engine.speculation.matcher import Match, Matcher
from mlxgen.engine.speculation.odds import Odds, match_grounds
from mlxgen.engine.speculation.places import RUN
from mlxgen.engine.speculation.texts import Texts
from mlxgen.engine.speculation.worth import LEAST_GAIN

from .recited import Recital
from .simulated import Device, Shape

MOST = 16  # drafted tokens of a pass
WAYS = 4  # from a place, at most
LEAST = 0.02  # the chance of a token that is worth a place
OTHERS = 0.7  # of the chance that the likeliest token does not come: that another known one does
HOST = 0.5e-3  # seconds in which nothing runs, as drafts follow tokens that are known; a guess


class Node(NamedTuple):
    """A drafted ``token`` after another one (-1: after the history), and the chance of its path."""

    chance: float
    before: int
    token: int


def gain(recitals: Sequence[Recital], device: Device, shape: Shape) -> float:
    """Times the tokens a second of the likeliest continuation, if as many tokens are a tree."""
    single, tree = (seconds(recitals, device, shape, most) for most in (1, WAYS))
    return single / tree


def seconds(recitals: Sequence[Recital], device: Device, shape: Shape, most: int) -> float:
    """What all passes take in which the texts are recited, once it is known what matches are worth;
    ``most``: continuations from a place."""
    odds = Odds()
    for recital in recitals:
        _seconds(recital, device, shape, most, odds)
    return sum(_seconds(recital, device, shape, most, odds) for recital in recitals)


class Ways:
    """What came after the same three tokens before, and how often."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._counts: dict[tuple[int, ...], Counter[int]] = {}
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Count what comes after the third of these, and after later ones."""
        for at in range(RUN, len(tokens)):
            self._counts.setdefault(tuple(tokens[at - RUN : at]), Counter())[tokens[at]] += 1

    def after(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """The tokens that came after the last of these and their numbers, most frequent first."""
        return self._counts.get(tuple(tokens[-RUN:]), Counter()).most_common()


def _seconds(recital: Recital, device: Device, shape: Shape, most: int, odds: Odds) -> float:
    history, matcher, ways = History(recital.prompt), Matcher(Texts()), Ways(recital.prompt)
    total = 0.0
    while left := recital.text[len(history) - len(recital.prompt) :]:
        of = partial(_pass, device, shape, len(history))
        nodes: list[Node] = []
        if (match := matcher.at(history)) is not None:
            nodes = worth(grown(match, odds, history, ways, most), of)
            _learn(match, odds, left)
        total += of(1 + len(nodes))
        came = left[: 1 + stood(nodes, left)]
        ways.add([*history[-RUN:], *came])
        history += came
    return total


def _pass(device: Device, shape: Shape, length: int, tokens: int) -> float:
    return shape.seconds(device, 1, tokens, length) + HOST * (tokens > 1)


def grown(match: Match, odds: Odds, history: Sequence[int], ways: Ways, most: int) -> list[Node]:
    """The likeliest tokens after a match, the likeliest paths first, and ``most`` from a place."""
    nodes: list[Node] = []
    order = count()
    found: list[tuple[float, int, int, int, Match, list[int]]] = []

    def add(before: int, match: Match, last: list[int], chance: float) -> None:
        for token, share in _chances(match, odds, ways.after(last))[:most]:
            if chance * share >= LEAST:
                entry = (-chance * share, next(order), before, token, match, last)
                heapq.heappush(found, entry)

    add(-1, match, list(history[-RUN:]), 1.0)
    while found and len(nodes) < MOST:
        chance, _, before, token, match, last = heapq.heappop(found)
        nodes.append(Node(-chance, before, token))
        if (after := match.then(token)) is not None:
            add(len(nodes) - 1, after, [*last[1:], token], -chance)
    return nodes


def worth(nodes: Sequence[Node], of: Callable[[int], float]) -> list[Node]:
    """As many as give the most tokens a second."""
    best, size, tokens = LEAST_GAIN / of(1), 0, 1.0
    for number, node in enumerate(nodes, 1):
        tokens += node.chance
        if tokens / of(1 + number) > best:
            best, size = tokens / of(1 + number), number
    return list(nodes[:size])


def stood(nodes: Sequence[Node], text: Sequence[int]) -> int:
    """How many tokens of a text are a path of the tree."""
    ways, at = {(node.before, node.token): place for place, node in enumerate(nodes)}, -1
    for length, token in enumerate(text):
        if (at, token) not in ways:
            return length
        at = ways[at, token]
    return len(text)


def _chances(match: Match, odds: Odds, came: Sequence[tuple[int, int]]) -> list[tuple[int, float]]:
    """What may come next with its chance: what did at the longest match, and what else ``came``."""
    if not (found := match.next()):
        return []
    token, share = found[0]
    chance = odds[match_grounds(match.length, share, match.places, filtered=False)]
    others = [(other, number) for other, number in came if other != token]
    left, numbers = OTHERS * (1.0 - chance), sum([number for _, number in others])
    return [(token, chance), *[(other, left * number / numbers) for other, number in others]]


def _learn(match: Match | None, odds: Odds, text: Sequence[int]) -> None:
    """Note how far the likeliest continuation came."""
    for token in text[:MOST]:
        if match is None or not (found := match.next()):
            return
        (likeliest, share), *_ = found
        odds.saw(
            match_grounds(match.length, share, match.places, filtered=False), token == likeliest
        )
        if token != likeliest:
            return
        match = match.then(token)
