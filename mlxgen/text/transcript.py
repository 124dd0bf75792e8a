"""The text of the sampled tokens, and how much of it may be delivered.

``Transcript`` owns the decoder and the two matchers of one sequence and keeps them in
step: decode, then bans, then stops. It knows neither how tokens are sampled nor who
receives the text.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from ..forks import forked
from ..tokens import Token
from .ban import BanMatch, BanMatcher
from .decoder import TextDecoder
from .stop import StopMatch, StopMatcher
from .thoughts import Thoughts


class Transcript:
    """The decoder, ban matcher and stop matcher of one sequence, as one part.

    Read decoded text from the ``decoder``; only the transcript advances it. With ``thoughts``, stop
    strings apply to the answer alone, unless ``stop_in_thoughts`` is set. Bans and stop tokens
    apply to the whole text.
    """

    __slots__ = ("_bans", "_claims", "_stop_in_thoughts", "_stops", "decoder", "thoughts")

    def __init__(
        self,
        decoder: TextDecoder,
        stops: StopMatcher | None = None,
        bans: BanMatcher | None = None,
        thoughts: Thoughts | None = None,
        *,
        stop_in_thoughts: bool = False,
    ) -> None:
        self.decoder = decoder
        self._stops = stops
        self._bans = bans
        self._stop_in_thoughts = stop_in_thoughts
        self.thoughts = thoughts
        # After each token, the first character that a stop or a ban could still claim.
        self._claims: list[int] | None = [] if stops is not None or bans is not None else None

    def __len__(self) -> int:
        return len(self.decoder)

    def advance(self, token: Token) -> BanMatch | StopMatch | None:
        """Takes a token; returns the ban, or else the stop, that its text completed.

        The stops have not seen a token that completes a ban, so the caller must next ``rewind`` to
        before the match.
        """
        text = self.decoder.advance(token)
        sought = None
        if self.thoughts is not None:
            sought = self.thoughts.advance(text)
            if self._stop_in_thoughts:
                sought = None
        if self._claims is None:
            return None
        if self._bans is not None:
            banned = self._bans.advance(text)
            if banned is not None:
                return banned
        stopped = self._stops.advance(token, text, sought) if self._stops is not None else None
        self._claims.append(self.safe())
        return stopped

    def ban_at_end(self, cut: int | None = None) -> BanMatch | None:
        """The ban that completes because the text ends here, or at the character ``cut``.

        Changes nothing.
        """
        return self._bans.finish(cut) if self._bans is not None else None

    def look_for(self, stops: StopMatcher | None) -> None:
        """Replaces the stops, for the text from here on."""
        if stops is not None:
            ends = [self.decoder.end(count) for count in range(len(self) + 1)]
            for start, end in pairwise(ends):
                stops.advance(None, self.decoder.slice(start, end), "")
            if self._claims is None:
                self._claims = ends[1:]
        self._stops = stops

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` tokens; does nothing if there are no more than that."""
        self.decoder.rewind(to)
        if self._bans is not None:
            self._bans.rewind(to)
        if self._stops is not None:
            self._stops.rewind(to)
        if self.thoughts is not None:
            self.thoughts.rewind(to)
        if self._claims is not None:
            del self._claims[to:]

    def fork(self) -> Transcript:
        """An independent copy."""
        return forked(self)

    def so_far(self) -> str:
        """All complete characters."""
        return self.decoder.text

    def text_with(self, token: Token) -> str:
        """All characters that would be complete if ``token`` came next. Changes nothing."""
        count = len(self.decoder)
        self.decoder.advance(token)
        text = self.decoder.text
        self.decoder.rewind(count)
        return text

    def is_open(self, count: int) -> bool:
        """Whether the first ``count`` tokens end inside a character."""
        return bool(self.decoder.pending(count))

    def safe(self, *, with_bans: bool = True) -> int:
        """How many characters no stop, and ``with_bans`` no ban, can claim any more."""
        held = self._stops.held if self._stops is not None else 0
        if self.thoughts is not None and self._stops is not None and not self._stop_in_thoughts:
            held = max(held, self.thoughts.undecided)
        if with_bans and self._bans is not None:
            held = max(held, self._bans.held)
        return self.decoder.end() - held

    def settled(self, hold: int, floor: int) -> int:
        """How many tokens nothing can reach any more, if rewinds never go below this count.

        The largest count, at least ``floor`` and ``hold`` less than all, such that no stop or ban
        claims text before it: neither now nor after a rewind to any later place, where a claim that
        later tokens ruled out may come back.
        """
        end = self.decoder.end
        last = len(self) - hold
        if last <= floor:
            return floor
        claim = end(len(self))
        if self._claims is not None:
            claim = min(claim, *self._claims[last - 1 :])
        lowest = end(floor + 1)  # a claim before this leaves nothing more to settle
        for count in range(last, floor, -1):
            if self._claims is not None:
                claim = min(claim, self._claims[count - 1])
                if claim < lowest:
                    return floor
            if claim >= end(count) and not self.is_open(count):
                return count
        return floor

    def token_at(self, offset: int) -> int:
        """The index of the token that holds the first byte of the character at ``offset``."""
        end = self.decoder.end
        # The token that completes the character.
        index = bisect_right(range(1, len(self)), offset, key=end)
        # Go back while earlier tokens hold bytes of the character: they ended inside it.
        while index > 0 and end(index) == offset and self.is_open(index):
            index -= 1
        return index
