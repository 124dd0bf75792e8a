"""One ``gen`` of a program: sampling until a filter, a stop, an end token or a limit ends it.

Invariant: when it is done, the history ends with exactly the tokens of its text: a stop is
taken back with everything after it, and an end token is never appended.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine import Branch, Splice
from ..filters import Constraint, Filter, Specification
from ..text import BanMatch, StopMatch, StopMatcher, Transcript
from ..tokens import Token
from .history import History


class Generation:
    """A piece of text being generated after ``history``; see ``Guide.gen`` for the rest."""

    def __init__(
        self,
        history: History,
        vocab_size: int,
        filters: Sequence[Specification | Filter],
        stop: Sequence[str],
        max_tokens: int | None,
        temperature: float | None,
    ) -> None:
        vocabulary = history.vocabulary
        opens = history.opens()
        self._vocabulary = vocabulary
        self._constraint: Constraint | None = None
        if filters:
            strips = opens and vocabulary.strips_space
            self._constraint = Constraint(filters, vocabulary, vocab_size, strips_space=strips)
        self._transcript = Transcript(
            history.decoder(0 if opens else 1), StopMatcher(stop) if stop else None
        )
        self._everything = range(vocab_size)
        self._left = max_tokens
        self._temperature = temperature
        ends = [token for token in vocabulary.eos if token < vocab_size]
        self._ends = (Splice(ends, backtrack=1),) if ends else ()
        self._samples = False  # whether the last answer asked for a token
        self._match: StopMatch | None = None
        self._surplus = 0  # tokens after the one that completed the stop
        self.text: str | None = None  # set when it is done

    def answer(self) -> Branch | None:
        """How it continues; ``None``: it is done, and ``text`` is set."""
        if self.text is None and self._match is not None:
            return self._cut(self._match)
        constraint = self._constraint
        if self._left == 0 or (constraint is not None and constraint.ended()):
            self._finish()
        if self.text is not None:
            return None
        mask = None
        if constraint is not None:
            forced = constraint.forced()
            if forced:
                self._samples = False
                return Branch(ff_tokens=[forced if self._left is None else forced[: self._left]])
            mask = constraint.mask()
        self._samples = True
        return Branch(
            sample_mask=self._everything if mask is None else mask,
            splices=self._ends,
            temperature=self._temperature,
        )

    def take(self, tokens: Sequence[Token]) -> None:
        """Takes the tokens that were appended since the last answer."""
        if self._match is not None or (self._samples and not tokens):
            self._finish()  # the stop was cut off, or an end token was drawn
            return
        for token in tokens:
            if self._match is not None:
                self._surplus += 1
                continue
            if self._constraint is not None:
                self._constraint.advance(token)
            match = self._transcript.advance(token)
            assert not isinstance(match, BanMatch)
            self._match = match
        if self._left is not None:
            self._left = max(0, self._left - len(tokens))

    def _finish(self) -> None:
        if self.text is not None:
            return
        transcript, match = self._transcript, self._match
        if match is None:
            self.text = transcript.so_far() + transcript.flush()
        else:
            self.text = transcript.slice(0, match.start)

    def _cut(self, match: StopMatch) -> Branch:
        """Takes the stop back, and spells again the text before it in its first token."""
        transcript = self._transcript
        kept = transcript.token_at(match.start)
        rest = transcript.slice(transcript.end(kept), match.start)
        back = len(transcript) - kept + self._surplus
        spelled = self._vocabulary.continue_with(rest.encode()) if rest else []
        return Branch(backtrack=back, ff_tokens=[spelled])
