"""What became of the sampled tokens: their text, and how much of it may be delivered.

Owns the decoder and the two matchers of one sequence and moves them in step: decode,
then bans, then stops. Must never know how tokens are sampled or who receives the
text. Invariant: ``len(self)`` tokens have been taken in, and every question about the
text (``end``, ``safe``, ``token_at``) is about exactly these.
"""

from __future__ import annotations

from ..tokens import Token
from .ban import BanMatch, BanMatcher
from .decoder import TextDecoder
from .stop import StopMatch, StopMatcher


class Transcript:
    """Decoder, ban matcher and stop matcher of one sequence, as one part.

    ``stops`` and ``bans`` may be ``None``. The ``mute`` tokens (the end-of-sequence ones)
    are the decoder's business: they give no text.
    """

    __slots__ = ("_bans", "_claims", "_decoder", "_stops")

    def __init__(
        self,
        decoder: TextDecoder,
        stops: StopMatcher | None = None,
        bans: BanMatcher | None = None,
    ) -> None:
        self._decoder = decoder
        self._stops = stops
        self._bans = bans
        # After each token, the first character that a stop or a ban could still claim.
        self._claims: list[int] | None = [] if stops is not None or bans is not None else None

    def __len__(self) -> int:
        return len(self._decoder)

    def advance(self, token: Token) -> BanMatch | StopMatch | None:
        """Take in one token; returns the ban, else the stop, that its text completed.

        After a ban the caller must ``rewind`` behind the match before anything else;
        the stops have not seen the token then.
        """
        text = self._decoder.advance(token)
        if self._claims is None:
            return None
        if self._bans is not None:
            banned = self._bans.advance(text)
            if banned is not None:
                return banned
        stopped = self._stops.advance(token, text) if self._stops is not None else None
        self._claims.append(self.safe())
        return stopped

    def ban_at_end(self) -> BanMatch | None:
        """The ban that completes because the text ends here; changes nothing."""
        return self._bans.finish() if self._bans is not None else None

    def rewind(self, to: int) -> None:
        """Keep the first ``to`` tokens."""
        self._decoder.rewind(to)
        if self._bans is not None:
            self._bans.rewind(to)
        if self._stops is not None:
            self._stops.rewind(to)
        if self._claims is not None:
            del self._claims[to:]

    def fork(self) -> Transcript:
        """An independent copy."""
        twin = Transcript(
            self._decoder.fork(),
            self._stops.fork() if self._stops is not None else None,
            self._bans.fork() if self._bans is not None else None,
        )
        twin._claims = self._claims.copy() if self._claims is not None else None
        return twin

    @property
    def text(self) -> str:
        """All complete characters so far."""
        return self._decoder.text

    def so_far(self) -> str:
        """The text of all tokens taken in, as far as its characters are complete."""
        return self.slice(0, self.end(len(self)))

    def text_with(self, token: Token) -> str:
        """All complete characters if ``token`` came next; changes nothing."""
        count = len(self._decoder)
        self._decoder.advance(token)
        text = self._decoder.text
        self._decoder.rewind(count)
        return text

    def flush(self) -> str:
        """What an unfinished character at the end gives; changes nothing."""
        return self._decoder.flush()

    def end(self, count: int) -> int:
        """Characters that are complete after the first ``count`` tokens."""
        return self._decoder.end(count)

    def is_open(self, count: int) -> bool:
        """Whether the first ``count`` tokens end inside a character."""
        return bool(self._decoder.pending(count))

    def slice(self, start: int, stop: int) -> str:
        """The characters from ``start`` to ``stop`` of the text."""
        return self._decoder.slice(start, stop)

    def safe(self, *, with_bans: bool = True) -> int:
        """Characters that no stop (and no ban, unless left out) can claim any more."""
        held = self._stops.held if self._stops is not None else 0
        if with_bans and self._bans is not None:
            held = max(held, self._bans.held)
        return self._decoder.end(len(self._decoder)) - held

    def settled(self, hold: int, floor: int) -> int:
        """How many tokens nothing can reach any more, if rewinds stop at what is settled.

        That is the largest count, at least ``floor`` and ``hold`` less than all, such that no
        stop or ban claims text before it: neither now nor after a rewind to any place behind
        it, where something may be claimed again that later tokens had ruled out.
        """
        end = self._decoder.end
        last = len(self) - hold
        if last <= floor:
            return floor
        claim = end(len(self))
        if self._claims is not None:
            claim = min(claim, *self._claims[last - 1 :])
        lowest = end(floor + 1)  # of what could be settled: where all is claimed, it stays so
        for count in range(last, floor, -1):
            if self._claims is not None:
                claim = min(claim, self._claims[count - 1])
                if claim < lowest:
                    return floor
            if claim >= end(count) and not self.is_open(count):
                return count
        return floor

    def token_at(self, offset: int) -> int:
        """Index of the token that holds the first byte of the character at ``offset``."""
        end = self._decoder.end
        low, high = 0, len(self._decoder) - 1  # the token that completes the character
        while low < high:
            middle = (low + high) // 2
            if end(middle + 1) > offset:
                high = middle
            else:
                low = middle + 1
        index = low
        # Further back while the character was begun by earlier tokens: they ended
        # inside it and completed nothing after it.
        while index > 0 and end(index) == offset and self.is_open(index):
            index -= 1
        return index
