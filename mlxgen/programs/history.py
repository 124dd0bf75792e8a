"""The tokens of one branch as its program knows them.

Owns the history that reports add up to, and the labels in it. Must never know the engine's own
history. Invariant: a label that ``find`` accepts stands where it stood when it was made: nothing
before it was taken back since.
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


class History:
    """Prompt and generated tokens; ``base`` is the length of what is left of the prompt."""

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
        """Take in a report: tokens taken back, then tokens appended."""
        if back:
            length = len(self.tokens) - back
            del self.tokens[length:]
            self.base = min(self.base, length)
            self._cuts.append(length)
        self.tokens += appended

    @property
    def text(self) -> str:
        """The text of the generated tokens, without an unfinished character at the end."""
        decoder = self.decoder(0)
        for token in self.tokens[self.base :]:
            decoder.advance(token)
        return decoder.text

    def opens(self) -> bool:
        """Whether the next token is the first of a text of its own."""
        return self.opens_text and len(self.tokens) == self.base

    def decoder(self, generated: int) -> TextDecoder:
        """A decoder for tokens behind the first ``generated`` ones."""
        return TextDecoder(self.vocabulary, strip=self.opens_text and not generated)

    def label(self) -> Label:
        return Label(len(self.tokens), len(self._cuts))

    def find(self, label: Label) -> int:
        """How many tokens are behind a label; StateError where its place is gone."""
        cuts = self._cuts[label.cuts :]
        behind = len(self.tokens) - label.length
        if behind < 0 or len(self._cuts) < label.cuts or any(cut < label.length for cut in cuts):
            raise StateError("the place of this label was taken back; make a new one")
        return behind

    def fork(self) -> History:
        """An independent copy."""
        twin = History(self.tokens, self.vocabulary, opens_text=self.opens_text)
        twin.base = self.base
        twin._cuts = list(self._cuts)
        return twin
