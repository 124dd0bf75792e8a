"""Loops: text that has begun to repeat itself, and would do so for ever.

Owns how a loop is told from what may repeat: lists, tables, code, and what stands in the prompt.
That follows from the tokens alone, so there is nothing here to take back, and as long as nothing
repeats it costs one comparison a token: a period is looked for every few tokens. Must never take
anything back: ``accept`` does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from ...images import plain
from ...text import Transcript
from ...tokens import Token, Vocabulary
from ..history import History

EVERY = 4  # tokens between two looks
LONGEST = 1024  # tokens of a turn
TURNS = 3
LEAST = 16  # tokens of a loop in prose
WORD = 64  # if a turn has fewer than ``LETTERS`` different letters, as a single word, or is blank
PATIENT = 256  # in code, or if a turn has none: it may be a table, a matrix or a line
LETTERS = 6
HELD = 8  # tokens of a loop that wait, if a turn has not more
FENCE = "```"


class Repeat(NamedTuple):
    """How the first ``at`` generated tokens end: the last ``run`` repeat with this ``period``,
    which is 0 if they do not. The first ``kept`` of these may stay: the first turn, and what is in
    the prompt as well. What follows the first ``free`` is delivered once it is known to stay.
    ``is_loop``: it has to be taken back."""

    at: int
    period: int = 0
    run: int = 0
    kept: int = 0
    free: int = 0
    is_loop: bool = False

    @property
    def held(self) -> int:
        """How many of the newest tokens wait."""
        return max(0, self.run - self.free) if self.period else 0


UNKNOWN = Repeat(-1)


def repeated(
    known: Repeat, history: History, base: int, transcript: Transcript, vocabulary: Vocabulary
) -> Repeat:
    """How the tokens after the first ``base`` end; ``known`` is what one has told of fewer."""
    position = len(history) - base
    looked = position - position % EVERY
    if known.at < looked or known.at > position:
        known = _look(history, base, looked, transcript, vocabulary)
    more, period = position - known.at, known.period
    if not more:
        return known
    if not period or history[-more:] != history[-more - period : -period]:
        return Repeat(position)
    return known._replace(at=position, run=known.run + more)


def _look(
    history: History, base: int, at: int, transcript: Transcript, vocabulary: Vocabulary
) -> Repeat:
    end = base + at
    newest = history[max(base, end - 2 * LONGEST) : end]
    newest.reverse()
    period = 0
    while newest:
        try:
            period = newest.index(newest[0], period + 1, LONGEST + 1)
        except ValueError:
            break
        span = max(period, HELD - period)
        if newest[:span] != newest[period : period + span]:
            continue
        start = end - period - span
        while start > base and history[start - 1] == history[start - 1 + period]:
            start -= 1
        turn, patience = history[end - period : end], LEAST
        said = vocabulary.decode(turn).lower()
        letters = {letter for letter in said if letter.isalpha()}
        text = transcript.decoder.slice(0, transcript.decoder.end(at))
        if said.isspace():
            patience = WORD
        elif not letters or text.count(FENCE) % 2:
            patience = PATIENT
        elif len(letters) < LETTERS:
            patience = WORD
        least = max(TURNS * period, patience)
        kept = period
        if end - start >= least:
            # From the second turn on: the first may begin with what is not in the prompt
            again = _spelled(history[start + period : end], vocabulary)
            size, turns = len(_spelled(turn, vocabulary)), range(1, (end - start) // period)
            prompt = _spelled(plain(history[:base]), vocabulary)
            kept += period * bisect_left(turns, True, key=lambda n: again[: n * size] not in prompt)
        most = kept + least - period
        free = most - max(period, HELD)
        return Repeat(at, period, end - start, kept, free, end - start >= most)
    return Repeat(at)


def _spelled(tokens: Iterable[Token], vocabulary: Vocabulary) -> bytes:
    return b"".join(map(vocabulary.piece, tokens))
