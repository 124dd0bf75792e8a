"""Where the last tokens of a text occurred before, in it or in others, and what came after them.

A match is the longest one, and every place with a match of that length has a vote. While the text
goes on as it did at one of them, they are only followed, as nothing else can be longer then; after
that it is searched anew. If nothing is found where a long match has just broken off, as at an edit,
one or two tokens that are found again close to there are a match as well.

The idea is that of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), with chains of places
rather than a tree of suffixes.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

from ...tokens import Token
from ..history import History
from .places import FEW, RUN, Places, as_ids
from .texts import Texts

MOST = 64  # places that are looked at in a search
FARTHEST = 64  # tokens that are compared at each of them
LONG = 12  # tokens of a match that is to be found again after a small difference
BEFORE, AFTER = 4, 40  # how far from where it broke off, in tokens

Occurrences: TypeAlias = "list[tuple[array[int], list[int]]]"  # tokens of texts, and places in them


class Match:
    """The last ``length`` tokens are found elsewhere; fewer than three: close to a longer match.

    It does not change, and holds until its matcher is asked again or the history is cut.
    """

    __slots__ = ("_end", "_here", "_matcher", "_there", "_walked", "length")

    def __init__(
        self,
        matcher: Matcher,
        length: int,
        here: list[int],
        there: Occurrences,
        end: int,
        walked: tuple[Token, ...] = (),
    ) -> None:
        self.length = length
        self._matcher = matcher
        self._here = here  # places in the history itself, the latest first
        self._there = there  # places in other texts
        self._end = end  # how many tokens of the history it is about
        self._walked = walked  # the tokens after them

    @property
    def places(self) -> int:
        """How many places have a vote."""
        return len(self._here) + sum(len(places) for _, places in self._there)

    def next(self) -> list[tuple[Token, float]]:
        """The tokens that came next there with their shares, most frequent first, then latest."""
        own, end, walked = self._matcher.own.tokens, self._end, self._walked
        came = [own[p] if p < end else walked[p - end] for p in self._here]
        for tokens, places in self._there:
            came += [tokens[p] for p in places]
        votes: dict[Token, int] = {}
        for token in came:
            votes[token] = votes.get(token, 0) + 1
        if len(votes) == 1:
            return [(token, 1.0)] if token >= 0 else []
        ranked = sorted(votes.items(), key=lambda item: -item[1])
        return [(token, count / len(came)) for token, count in ranked if token >= 0]

    def then(self, token: Token) -> Match | None:
        """The match after one more token; ``None`` if there is none."""
        followed = self._followed(token)
        if followed is None:
            return self._matcher.search(self._end, (*self._walked, token))
        return followed

    def _followed(self, token: Token) -> Match | None:
        """The match with those places that go on with a token, if there are any."""
        own, end, walked = self._matcher.own.tokens, self._end, self._walked
        here = [
            p + 1
            for p in self._here
            if (own[p] if p < end else walked[p - end]) == token
            and (p + 1 >= end or own[p + 1] >= 0)
        ]
        there = [
            (tokens, places)
            for tokens, before in self._there
            if (places := [p + 1 for p in before if tokens[p] == token and tokens[p + 1] >= 0])
        ]
        if not (here or there) or token < 0 or self.length == RUN - 1:
            return None  # three tokens may be elsewhere as well
        return Match(self._matcher, self.length + 1, here, there, end, (*walked, token))

    def latest(self) -> tuple[array[int], int]:
        """Its latest place, and the tokens of the text that it is in."""
        if self._here:
            return self._matcher.own.tokens, self._here[0]
        tokens, places = self._there[0]
        return tokens, places[0]


class Matcher:
    """Finds matches of one text, the ``history``, with what it and ``texts`` have.

    It notices by itself what was taken back of the history, which has to be the same at each call.
    """

    __slots__ = ("_broken", "_match", "_moment", "_texts", "own")

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.own = Places()  # of the history
        self._moment = 0
        self._match: Match | None = None  # at the end of the history when it was last seen
        # Where a long match broke off: tokens, a place in them, and the length of the history.
        self._broken: tuple[array[int], int, int] | None = None

    def at(self, history: History) -> Match | None:
        """The longest match at the end of a history; ``None`` if there is none."""
        own, match = self.own, self._match
        known = min(len(own), history.low_since(self._moment))
        self._moment = history.moment
        if known < len(own):
            own.cut(known)
            match = None
        new = history[known:]
        if len(new) > FEW:
            own.extend(as_ids(new))
            match = None
        else:
            for token in new:
                own.append(token)
                if match is not None:
                    match = self._follow(match, token)
        if match is None:
            match = self.search(len(own)) or self._resume()
        elif new:
            match._end, match._walked = len(own), ()  # nobody else has it yet
        self._match = match
        return match

    def _follow(self, match: Match, token: Token) -> Match | None:
        followed = match._followed(token)
        if followed is None and match.length >= LONG:
            self._broken = *match.latest(), len(self.own)
        return followed

    def _resume(self) -> Match | None:
        """A match of one or two tokens close to where a long one broke off."""
        own, broken = self.own.tokens, self._broken
        if broken is None:
            return None
        tokens, place, end = broken
        if not 0 <= len(own) - end < AFTER:
            self._broken = None
            return None
        before, last = own[-2:]
        near = range(max(2, place - BEFORE), min(place + AFTER, len(tokens)))
        ones = [p for p in near if tokens[p - 1] == last and tokens[p] >= 0] if last >= 0 else []
        found = [p for p in ones if tokens[p - 2] == before][:1]
        length = 2 if found else 1
        found = found or [p for p in ones if p > place][:1]
        if not found:
            return None
        here, there = (found, []) if tokens is own else ([], [(tokens, found)])
        return Match(self, length, here, there, len(own))

    def search(self, end: int, walked: tuple[Token, ...] = ()) -> Match | None:
        """The longest match after ``end`` tokens of the history and ``walked`` ones."""
        recent = self.own.tokens[max(0, end - FARTHEST) : end]
        if walked:
            recent.extend(walked)
        if len(recent) < RUN:
            return None
        a, b, c = recent[-RUN:]
        sources = self.own, *self._texts.generations
        firsts = [source.latest(a, b, c) for source in sources]
        if max(firsts) < 0:
            return None
        longest, ending, left = RUN, recent[-RUN:], MOST
        found: Occurrences = []
        for source, place in zip(sources, firsts, strict=True):
            tokens, earlier = source.tokens, source.chain
            places: list[int] = []
            while place >= 0 and left:
                left -= 1
                # Compared first: the token that most probably differs, and as far as it matters.
                if (
                    place >= longest
                    and tokens[place - longest] == ending[0]
                    and tokens[place - longest : place] == ending
                ):
                    length = _common_end(tokens, place, recent, longest)
                    if length > longest:
                        longest, ending = length, recent[-length:]
                        found, places = [], []
                    places.append(place)
                place = earlier[place]
            if places:
                found.append((tokens, places))
        if not found:
            return None
        here = found.pop(0)[1] if found[0][0] is self.own.tokens else []
        return Match(self, longest, here, found, end, walked)

    def fork(self) -> Matcher:
        """A matcher for a fork of the history."""
        twin = Matcher(self._texts)
        twin.own, twin._moment = self.own.fork(), self._moment
        return twin


def _common_end(tokens: array[int], place: int, recent: array[int], known: int) -> int:
    """How many tokens before a place are as the last ``recent`` ones; ``known`` of them are."""
    most = min(place, len(recent))
    for length in range(known, most):
        token = recent[-1 - length]
        if tokens[place - 1 - length] != token or token < 0:
            return length
    return most
