"""How an answer is shown while it streams: plain, with its reasoning dimmed, or tinted.

Owns where reasoning and answer go, and what is between them; the marks of reasoning are never
shown. Must never know how an answer is made. Invariant: ``end`` leaves the terminal in its own
colours, at the beginning of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO, TypeAlias

from ..chat.events import ChatEvent, Reasoning, Text
from ..engine import Chunk

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
ASIDE = "| "  # before each line of reasoning that cannot be dimmed


class Screen(Protocol):
    """Shows one answer."""

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        """Show what came with a chunk."""

    def end(self) -> None:
        """End the answer."""


class Paints(Protocol):
    """Paints the text of a stream of tokens, as ``Painter`` does."""

    def push(self, text: str, logprob: float | None) -> str:
        """The painted text of one more token."""


Look: TypeAlias = Callable[[], Screen]


@dataclass(slots=True)
class PlainScreen:
    """The answer goes to ``out``, and nothing else does; the reasoning goes to ``notes``."""

    out: TextIO
    notes: TextIO
    _ends_line: bool = True
    _aside_ends_line: bool = True

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        for event in events:
            if isinstance(event, Reasoning) and event.text:
                lines = event.text.replace("\n", f"\n{ASIDE}")
                self.notes.write((ASIDE if self._aside_ends_line else "") + lines)
                self.notes.flush()
                self._aside_ends_line = False
            elif isinstance(event, Text) and event.text:
                self._end_aside()
                self.out.write(event.text)
                self.out.flush()
                self._ends_line = event.text.endswith("\n")

    def end(self) -> None:
        self._end_aside()
        if not self._ends_line:
            self.out.write("\n")
            self.out.flush()

    def _end_aside(self) -> None:
        if not self._aside_ends_line:
            self.notes.write("\n")
            self.notes.flush()
            self._aside_ends_line = True


@dataclass(slots=True)
class DimScreen:
    """The answer as it is, after its reasoning, which is dimmed. With a ``painter``, both are
    painted by their probability instead."""

    out: TextIO
    painter: Paints | None = None
    _part: type[Reasoning | Text] | None = None
    _ends_line: bool = True

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        texts = [event for event in events if isinstance(event, Reasoning | Text) and event.text]
        if not texts and self.painter is not None and chunk is not None:
            self.painter.push("", chunk.logprob)
        for event in texts:
            self._write(event, chunk)
        if texts:
            self.out.flush()

    def _write(self, event: Reasoning | Text, chunk: Chunk | None) -> None:
        kind, text = type(event), event.text
        if kind is not self._part:
            self.out.write(self._end_part() + ("" if self._part is None else "\n\n"))
            self._part = kind
            self.out.write(_DIM if self._is_dim else "")
        if self.painter is not None:
            text = self.painter.push(text, None if chunk is None else chunk.logprob)
        self.out.write(text)
        self._ends_line = event.text.endswith("\n")

    @property
    def _is_dim(self) -> bool:
        return self._part is Reasoning and self.painter is None

    def _end_part(self) -> str:
        return _RESET if self._is_dim else ""

    def end(self) -> None:
        self.out.write(self._end_part() + ("" if self._ends_line else "\n"))
        self.out.flush()
