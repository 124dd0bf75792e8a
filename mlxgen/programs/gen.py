"""One ``gen`` of a program: sampling until a filter, a stop, an end token or a limit ends it.

A ``Session`` has the rules; here they become branches. Invariant: when it is done, the history
ends with exactly the tokens of its text: a stop is taken back with everything after it, and an end
token is never appended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from ..engine import Branch, Session, Splice
from ..filters import Filter, Specification
from ..tokens import Token
from .branch_history import BranchHistory
from .steps import Answer, Done


class Gen:
    """Generates a piece of text after ``history``; see ``Guide.gen`` for the rest."""

    def __init__(
        self,
        history: BranchHistory,
        vocab_size: int,
        filters: Sequence[Specification | Filter],
        stop: Sequence[str],
        max_tokens: int | None,
        temperature: float | None,
    ) -> None:
        opens = history.opens()
        self._vocabulary = history.vocabulary
        self._decoder = history.decoder(0 if opens else 1)
        self._session = Session(
            history.vocabulary,
            prompt=None if opens else history.tokens[-1:],
            vocab_size=vocab_size,
            filters=filters,
            stop=stop,
            max_tokens=max_tokens or None,
        )
        self._max_tokens = max_tokens
        ends = [token for token in history.vocabulary.eos if token < vocab_size]
        splices = [Splice(ends, backtrack=1)] if ends else []
        self._sampled = Branch(0, range(vocab_size), (), splices, temperature)
        self._tokens: list[Token] = []  # all that were appended, even after the end of the text
        self._cut: Branch | None = None  # takes the stop back
        self._samples = False  # whether the last answer asked for a token
        self._text: str | None = None  # set when it is done
        if max_tokens == 0 or self._session.finish_reason is not None:
            self._finish()

    def ask(self) -> Answer:
        if self._text is not None:
            cut, self._cut = self._cut, None
            return Done(self._text) if cut is None else [cut]
        forced = self._session.forced()
        self._samples = not forced
        if forced:
            left = None if self._max_tokens is None else self._max_tokens - len(self._tokens)
            return [Branch(ff_tokens=[forced[:left]])]
        mask = self._session.mask()
        return [self._sampled if mask is None else replace(self._sampled, sample_mask=mask)]

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        if self._text is not None:
            return  # the stop was taken back
        for token in tokens:
            self._tokens.append(token)
            if self._session.finish_reason is None:
                self._session.push_token(token)
        if self._session.finish_reason == "stop":
            self._cut = self._without_stop()
        if self._session.finish_reason is not None or (self._samples and not tokens):
            self._finish()  # in the second case by an end token, which was not appended

    def _finish(self) -> None:
        self._session.finish()
        self._text = self._session.text

    def _without_stop(self) -> Branch:
        """Takes the stop back, and spells again the text before it in its first token."""
        text, decoder = self._session.text, self._decoder
        ends = []  # of the text after each token
        for token in self._session.tokens:
            decoder.advance(token)
            ends.append(decoder.end())
        kept = bisect_left(ends, len(text))
        if text and ends[kept] == len(text):
            kept += 1
        rest = text[ends[kept - 1] if kept else 0 :]
        spelled = self._vocabulary.continue_with(rest.encode()) if rest else []
        return Branch(backtrack=len(self._tokens) - kept, ff_tokens=[spelled])
