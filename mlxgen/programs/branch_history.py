"""The tokens of one branch as its program knows them, summed up from the engine's reports.

Invariant: if ``find`` accepts a label, nothing before the label was taken back since it was
made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.history import History
from ..errors import StateError
from ..forks import forked
from ..text import TextDecoder
from ..tokens import Token, Vocabulary


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the text to go back to; made by ``Guide.label``."""

    length: int
    moment: int  # of the history when it was made


class BranchHistory:
    """The prompt and the generated tokens; ``base`` is how much of the prompt is left, and
    ``labelled`` the length at the last label, before which nothing is spelled anew."""

    __slots__ = ("base", "labelled", "opens_text", "tokens", "vocabulary")

    def __init__(self, prompt: Sequence[Token], vocabulary: Vocabulary, *, opens_text: bool):
        self.tokens = History(prompt)
        self.base = len(self.tokens)
        self.vocabulary = vocabulary
        self.opens_text = opens_text
        self.labelled = 0

    def apply(self, back: int, appended: Sequence[Token]) -> None:
        """Takes a report: tokens taken back, then tokens appended."""
        if back:
            self.tokens.cut(len(self.tokens) - back)
            self.base = min(self.base, len(self.tokens))
        self.tokens += appended

    @property
    def text(self) -> str:
        """The text of the generated tokens, as far as characters are complete."""
        decoder = self.decoder(0)
        for token in self.tokens[self.base :]:
            decoder.advance(token)
        return decoder.text

    def opens(self) -> bool:
        """Whether the next token is the first of the generated text, which is a text of its own."""
        return self.opens_text and len(self.tokens) == self.base

    def decoder(self, generated: int) -> TextDecoder:
        """A decoder for tokens after the first ``generated`` ones."""
        return TextDecoder(self.vocabulary, strip=self.opens_text and not generated)

    def label(self) -> Label:
        self.labelled = len(self.tokens)
        return Label(len(self.tokens), self.tokens.moment)

    def find(self, label: Label) -> int:
        """How many tokens follow a label. StateError if its place was taken back."""
        tokens = self.tokens
        if label.moment > tokens.moment or label.length > tokens.low_since(label.moment):
            raise StateError("the text before this label was taken back; make a new label")
        return len(tokens) - label.length

    def fork(self) -> BranchHistory:
        """An independent copy."""
        return forked(self, shared=("vocabulary",))
