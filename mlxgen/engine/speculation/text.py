"""Drafts from text: what came after the same tokens before, and what filters nearly force.

Owns the walk along the tokens that are expected next. At each place that is what the filters force,
or what a match or a habit makes likeliest of the tokens that they allow. Must never know what a
draft is worth. Invariant: the request is as it was after a walk.

What came is compared with what was expected, drafted or not. So a text in which nothing recurs
costs the look-up of its last tokens, and little more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...filters import Int32Words, allows, words_of
from ...tokens import Token
from ..history import History
from ..request.ending import ends
from ..request.leads import next_mask, plain_draw
from ..request.request import Request
from .ahead import goes_on, returning
from .drafter import Drafter
from .guess import Guess
from .habits import Habits, Junction
from .matcher import Match, Matcher
from .odds import Odds, habit_grounds, match_grounds
from .texts import Texts
from .worth import FORCED

MOST_SURE = 0.99  # the highest chance of anything else
LEAST = 0.1  # the chance of all places so far from which another one is worth it
LEAST_FIRST = 0.25  # the chance of a first one that is worth a walk through filters
NEWEST = 1 / 32  # of one request's latest places in what is known of it
TRUST = 6  # places that the means of all requests count as, in one


class Place(NamedTuple):
    """What is expected at one place: the likeliest token, -1 for none, and its chance.

    ``odds``: that chance in all requests, on these ``grounds`` (-1: none). ``junction``: where
    habits learn what comes.
    """

    token: Token = -1
    chance: float = 0.0
    odds: float = 0.0
    grounds: int = -1
    junction: Junction | None = None


@dataclass(slots=True)
class Walk:
    """Places from ``start`` on in a history, as it was at ``moment``; ``most`` were wanted.

    ``words``: with filters, the masks at each of them and after the last. ``last``: the place where
    nothing was likely enough. ``trusted``: the filters take every token that comes.
    """

    start: int
    moment: int
    most: int
    trusted: bool = True
    places: list[Place] = field(default_factory=list)
    words: list[Int32Words | None] = field(default_factory=list)
    last: Place | None = None


class TextDrafter(Drafter):
    """See the module. ``texts``, ``habits`` and ``odds`` are shared with other requests."""

    name = "text"
    most = 16  # they cost nothing until they are verified

    def __init__(self, texts: Texts, habits: Habits, odds: Odds) -> None:
        super().__init__()
        self._texts, self._habits, self._odds = texts, habits, odds
        self._matcher = Matcher(texts)
        self._walk: Walk | None = None
        self._came = self._expected = 0.0  # lately in this request, by the odds of all

    def chances(self, request: Request, count: int) -> Sequence[float]:
        walk = self._look(request, count)
        return [place.chance for place in walk.places[:count]] if walk is not None else ()

    def early(self, request: Request, count: int) -> Sequence[float]:
        now = self.chances(request, count + 1)
        after = 1
        while after < len(now) and now[after] == FORCED:  # it comes with the next token anyway
            after += 1
        return (now[0] * now[after], *now[after + 1 :]) if after < len(now) else ()

    def propose(self, request: Request, count: int) -> Guess | None:
        walk = self._look(request, count)
        if walk is None or not walk.places:
            return None
        places = walk.places[:count]
        tokens = [place.token for place in places]
        words: list[Int32Words | None] = walk.words[: len(tokens) + 1]  # all that the draws need
        if request.constraint is None and request.is_free(len(tokens) + 1):
            words = [None] * (len(tokens) + 1)
        elif request.constraint is None or request.looks_back:
            words = []
        draws = [
            plain_draw(request, position)._replace(words=each)
            for position, each in enumerate(words, request.position)
        ]
        return Guess(tokens, draws, {i for i, p in enumerate(places) if p.chance == FORCED})

    def saw(self, position: int, proposed: int, accepted: int) -> None:
        """Nothing to note: the next look at the history sees it."""

    def learn(self, history: History) -> None:
        self._note(history)
        self._walk = None
        self._texts.add(history)

    def fork(self) -> TextDrafter:
        twin = TextDrafter(self._texts, self._habits, self._odds)
        twin._matcher = self._matcher.fork()
        twin._came, twin._expected = self._came, self._expected
        return twin

    # ---- what came -------------------------------------------------------------------------

    def _note(self, history: History) -> None:
        """Compare what came with what was expected, and keep what is still expected."""
        walk = self._walk
        if walk is None or (len(history) == walk.start and history.moment == walk.moment):
            return
        self._walk = None
        if history.low_since(walk.moment) < walk.start:
            return
        passed = 0
        expected = walk.places if walk.last is None else [*walk.places, walk.last]
        came = history[walk.start : walk.start + len(expected)]
        for place, token in zip(expected, came, strict=False):
            stood = token == place.token
            if place.grounds >= 0:
                self._odds.saw(place.grounds, stood)
                self._came += stood - NEWEST * self._came
                self._expected += place.odds - NEWEST * self._expected
            if place.junction is not None:
                self._habits.saw(place.junction, token)
            if not (stood and walk.trusted):
                return
            passed += 1
        if passed < len(walk.places):
            del walk.places[:passed], walk.words[:passed]
            walk.start, walk.moment = walk.start + passed, history.moment
            walk.most -= passed
            self._walk = walk

    def _chance(self, odds: float) -> float:
        """The chance in this request, where these odds may be too low or too high."""
        return min(MOST_SURE, odds * (TRUST + self._came) / (TRUST + self._expected))

    # ---- what is expected ------------------------------------------------------------------

    def _look(self, request: Request, count: int) -> Walk | None:
        """The walk from where the history ends; ``None`` if nothing is known there."""
        history, constraint = request.history, request.constraint
        self._note(history)
        if request.steering is not None or request.retries.excluded(request.position):
            return None  # the next draw is unlike others
        walk = self._walk
        if walk is not None and (walk.last is not None or 2 * walk.most >= count):
            return walk
        self._walk = None
        match = self._matcher.at(history)
        most = min(count, request.budget - request.position - 1)
        if constraint is None:
            if match is not None:
                self._walk = Walk(len(history), history.moment, most)
                self._go(request, self._walk, match)
        elif constraint.rewinds:
            self._walk = Walk(len(history), history.moment, most, not request.options.hooks)
            with contextlib.suppress(Exception):  # the draw that needs it raises it again
                self._enter(request, self._walk, match)
            self._walk.moment = history.moment
        return self._walk

    def _go(self, request: Request, walk: Walk, match: Match | None) -> None:
        """Add what is likely, if there are no filters."""
        stands = 1.0
        while len(walk.places) < walk.most:
            place = self._place(match, None, -1)
            stands *= place.chance
            if match is None or stands < LEAST or ends(request, place.token):
                walk.last = place
                return
            walk.places.append(place)
            match = match.then(place.token)

    def _enter(self, request: Request, walk: Walk, match: Match | None) -> None:
        """Walk through the filters, if the first place is worth it."""
        mask = next_mask(request)
        walk.words.append(mask)
        walk.last = self._next(request, match, mask)
        if walk.last.chance >= LEAST_FIRST and walk.most > 0:
            with returning(request):
                self._go_filtered(request, walk, match)

    def _go_filtered(self, request: Request, walk: Walk, match: Match | None) -> None:
        """Add what is likely, each place with all that is forced after it.

        Without that, or if the text ends there, verifying the place would save no pass.
        """
        constraint, stands = request.constraint, 1.0
        assert constraint is not None
        while (place := walk.last) is not None:
            stands *= place.chance
            if stands < LEAST or ends(request, place.token):
                return
            group, run = [place], [place.token]
            while run:
                for token in run:
                    if not goes_on(request, token):
                        return
                    match = match and match.then(token)
                run = constraint.forced() if _skips(request) else []
                group += [Place(token, FORCED) for token in run]
                if len(walk.places) + len(group) > walk.most:
                    return
            mask = next_mask(request)
            if constraint.ended():
                return
            walk.words += [words_of((each.token,), request.vocab_size) for each in group[1:]]
            walk.words.append(mask)
            walk.places += group
            walk.last = None
            if len(walk.places) < walk.most:
                walk.last = self._next(request, match, mask)

    def _next(self, request: Request, match: Match | None, mask: Int32Words | None) -> Place:
        """What is expected where filters leave this mask."""
        constraint = request.constraint
        assert constraint is not None
        if not _skips(request) and (run := constraint.forced()):
            return Place(run[0], MOST_SURE)
        return self._place(match, mask, request.history[-1])

    def _place(self, match: Match | None, mask: Int32Words | None, before: Token) -> Place:
        """What a match makes likeliest, or a habit, of the tokens that a mask allows."""
        token, odds, grounds, junction = -1, 0.0, -1, None
        found = match.next() if match is not None else []
        if mask is not None:
            found = [each for each in found if allows(mask, each[0])]
        if found and match is not None:
            token, share = found[0]
            if mask is not None:
                share /= sum([other for _, other in found])
            grounds = match_grounds(match.length, share, match.places, mask is not None)
            odds = self._odds[grounds]
        if mask is not None and (junction := Junction.of(mask, before)) is not None:
            habit = self._habits.likeliest(junction)
            if habit is not None and allows(mask, habit.token):
                other = habit_grounds(habit.seen, habit.share, habit.known)
                if self._odds[other] > odds:
                    token, grounds, odds = habit.token, other, self._odds[other]
        return Place(token, self._chance(odds), odds, grounds, junction)


def _skips(request: Request) -> bool:
    """Whether what filters force is appended without a draw."""
    return request.options.top_logprobs is None
