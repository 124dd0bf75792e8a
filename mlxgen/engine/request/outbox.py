"""Chunks on their way to the caller.

Owns what was delivered (tokens and characters) and the tokens that wait. Must never know why a
token was accepted or taken back. Invariant: the texts of all released chunks, put together with
their retractions, are the delivered text; every token that stays is in exactly one released chunk,
in order.

If no hook or ban can take tokens back, each chunk is released at once. Otherwise a chunk is
released when its token is settled: ``hold`` newer tokens follow it, and no stop or ban can claim
its text, whatever is taken back after it. Callers who allow retractions, and callers who push
the tokens themselves, get every chunk at once; the former are told what to delete, the latter
get settled text only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal, TypeAlias

from ...errors import RewindError
from ...forks import forked
from ...text import Transcript
from ..chunk import Chunk, FinishReason, Stop
from ..options import Options

Mode: TypeAlias = Literal["at once", "when settled", "pushed", "retracting"]


class Outbox:
    """What was delivered of one sequence, and what waits; see the module.

    ``checked``: a finished text may be taken back. Without ``queued``, every token's chunk is due
    at once. ``released``: the number of tokens whose chunks were released; ``delivered``: the
    number of characters of ``transcript`` that were delivered; both count what was skipped.
    """

    def __init__(
        self, transcript: Transcript, options: Options, *, queued: bool, checked: bool
    ) -> None:
        self._transcript, self._hold = transcript, options.hold_tokens
        takes_back = options.hooks or options.banned or options.loops != "off" or checked
        self._mode: Mode = "at once"
        if options.allow_retract:
            self._mode = "retracting"
        elif takes_back or options.hold_tokens:
            self._mode = "when settled" if queued else "pushed"
        # Chunks without text, each with how many of the newest tokens a hook wanted held back
        self._waiting: deque[tuple[Chunk, int]] = deque()
        self._owed = 0  # characters to retract with the next chunk
        self._tail = ""  # what the flush appended to the text
        self.skip()

    def skip(self) -> None:
        """Count everything so far as delivered, for a prefix. Its text never will be, even if a
        stop could claim it."""
        count = self._taken = len(self._transcript)  # tokens that were pushed
        self.released = self._settled = count
        self._longest = count  # the most tokens there have been at a release
        self.delivered = self._given = self._transcript.decoder.end(count)

    def wait_for_checks(self) -> None:
        """From here on, deliver only settled text: a finished text may be taken back."""
        if self._mode == "at once":
            self._mode = "when settled"

    @property
    def text(self) -> str:
        """The text of all chunks released so far."""
        return self._transcript.decoder.slice(self._given, self.delivered) + self._tail

    # ---- how far back is possible ----------------------------------------------------------

    @property
    def is_pushed(self) -> bool:
        """Whether every token's chunk is due at once, its text settled or not."""
        return self._mode == "pushed"

    @property
    def floor(self) -> int:
        """The smallest length that a ban may rewind to: what was delivered stays, unless the
        caller is told what to delete."""
        return self.released if self._mode == "when settled" else 0

    @property
    def shown(self) -> int:
        """The smallest length that a reader may take the text back to, likewise."""
        return 0 if self._mode == "retracting" else self.released

    @property
    def settled(self) -> int:
        """The smallest length that anything may rewind to."""
        return self._settled if self._mode == "pushed" else self.floor

    def reach(self, position: int, first: int) -> int:
        """How many tokens a hook may take back at ``position``, after a prefix of ``first``."""
        return position + 1 - max(first, self.settled)

    def check_reach(self, back: int, position: int, first: int) -> None:
        """Raise ``RewindError`` if ``back`` tokens are more than ``reach``."""
        possible, target = self.reach(position, first), position + 1 - back
        if back <= possible:
            return
        if target < first:
            count, given = position + 1 - first, f" after the prefix of {first}" if first else ""
            why = f"{count} {'was' if count == 1 else 'were'} generated{given}"
            more = ""
        else:
            why = f"{possible} {'is' if possible == 1 else 'are'} not delivered yet"
            # From the most tokens there have been at a release, whatever was taken back since
            needed = self._longest - target
            more = f", or use hold_tokens={needed} (it is {self._hold}) or allow_retract=True"
        raise RewindError(
            f"a hook asked at position {position} to take back {back} tokens, but only {why}; ask "
            f"for at most can_rewind={possible}{more}",
            possible=possible,
        )

    # ---- chunks ----------------------------------------------------------------------------

    def push(self, chunk: Chunk, hold: int = 0) -> None:
        """Take in a newly accepted token, as a chunk without text; ``hold``: how many of the newest
        tokens, this one included, a hook wants held back."""
        self._waiting.append((chunk, hold))
        self._taken = chunk.index + 1

    def release(self) -> list[Chunk]:
        """The chunks that may be delivered now."""
        transcript, count = self._transcript, self._taken
        if not self._waiting:
            return []
        if self._mode == "at once":
            end = transcript.safe()
        elif self._mode == "retracting":
            held_back = transcript.decoder.end(max(0, count - self._hold))
            end = min(transcript.safe(with_bans=False), held_back)
        else:
            self._longest = max(self._longest, count)
            hold = max(self._hold, self._waiting[-1][1])
            self._settled = transcript.settled(hold, max(self._settled, self.floor))
            end = transcript.decoder.end(self._settled)
            if self._mode == "when settled":
                count = self._settled
        return self._first(count, end)

    def finish(
        self, reason: FinishReason, stop: Stop | None = None, cut: int | None = None
    ) -> list[Chunk]:
        """Release everything; ``cut`` is where a stop ends the text, ``None`` if none does."""
        transcript, count = self._transcript, len(self._transcript)
        tail = self._tail = transcript.decoder.flush() if cut is None else ""
        end = transcript.decoder.end(count) if cut is None else cut
        if not self._waiting:
            self._waiting.append((Chunk("", None, count), 0))
            count += 1
        *chunks, last = self._first(count, end)
        return [*chunks, replace(last, text=last.text + tail, finish_reason=reason, stop=stop)]

    def _first(self, count: int, end: int) -> list[Chunk]:
        """The waiting chunks of the first ``count`` tokens, with the text up to character ``end``;
        each but the last of them gets at most the text of its own token."""
        chunks, decoder = list[Chunk](), self._transcript.decoder
        while self._waiting and self._waiting[0][0].index < count:
            chunk, _ = self._waiting.popleft()
            start, owed, self._owed = self.delivered, self._owed, 0
            if chunk.token is not None:
                self.released = chunk.index + 1
            upto = end
            if chunk.index + 1 < count:
                upto = min(end, decoder.end(chunk.index + 1))
            if upto > start:
                self.delivered = upto
                chunk = replace(chunk, text=decoder.slice(start, upto), retract=owed)
            elif owed:
                chunk = replace(chunk, retract=owed)
            chunks.append(chunk)
        return chunks

    # ---- back, and copies ------------------------------------------------------------------

    def rewind(self, to: int) -> None:
        """Forget what was delivered after the first ``to`` tokens.

        The transcript must have been rewound before. If retractions are allowed, delivered
        characters that are gone, or held again, become an owed retraction.
        """
        if to >= self._taken:
            return
        while self._waiting and self._waiting[-1][0].index >= to:
            self._waiting.pop()
        self._taken, self._tail = to, ""
        self.released, self._settled = min(self.released, to), min(self._settled, to)
        transcript = self._transcript
        self._given = min(self._given, transcript.decoder.end(to))
        safe = transcript.safe(with_bans=self._mode != "retracting")
        kept = max(self._given, min(self.delivered, safe))
        if self._mode == "retracting":
            self._owed += self.delivered - kept
        self.delivered = kept

    def forgive(self) -> None:
        """Owe no retraction: a consumer who rewinds reads the whole text anew."""
        self._owed = 0

    def fork(self, transcript: Transcript) -> Outbox:
        """An independent copy for a forked transcript."""
        return forked(self, _transcript=transcript)
