"""The tokens of one branch as its program knows them, summed up from the engine's reports.

Invariant: if ``find`` accepts a label, nothing before the label was taken back since it was
made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import StateError
from ..text import TextDecoder
from ..tokens import Token, Vocabulary


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the text to go back to; made by ``Guide.label``."""

    length: int
    cuts: int  # how often text had been taken back when it was made


class BranchHistory:
    """The prompt and the generated tokens; ``base`` is how much of the prompt is left."""

    __slots__ = ("_cuts", "base", "opens_text", "tokens", "vocabulary")

    def __init__(self, prompt: Sequence[Token], vocabulary: Vocabulary, *, opens_text: bool):
        self.tokens = list(prompt)
        self.base = len(self.tokens)
        self.vocabulary = vocabulary
        self.opens_text = opens_text
        self._cuts: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def apply(self, back: int, appended: Sequence[Token]) -> None:
        """Takes a report: tokens taken back, then tokens appended."""
        if back:
            length = len(self.tokens) - back
            del self.tokens[length:]
            self.base = min(self.base, length)
            self._cuts.append(length)
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
        return Label(len(self.tokens), len(self._cuts))

    def find(self, label: Label) -> int:
        """How many tokens follow a label. StateError if its place was taken back."""
        cuts = self._cuts[label.cuts :]
        after = len(self.tokens) - label.length
        if after < 0 or len(self._cuts) < label.cuts or any(cut < label.length for cut in cuts):
            raise StateError("the text before this label was taken back; make a new label")
        return after

    def fork(self) -> BranchHistory:
        """An independent copy."""
        twin = BranchHistory(self.tokens, self.vocabulary, opens_text=self.opens_text)
        twin.base = self.base
        twin._cuts = list(self._cuts)
        return twin
