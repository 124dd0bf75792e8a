"""How an answer is shown while it streams: plain, with its reasoning dimmed, or tinted.

Owns where reasoning and answer go, and what is between them; the marks of reasoning are never
shown. Must never know how an answer is made. Invariant: ``end`` leaves the terminal in its own
colours, at the beginning of a line.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO, TypeAlias

from rich.cells import cell_len

from ..chat.events import ChatEvent, Reasoning, Text
from ..engine import Chunk
from .painter import Painter

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
ASIDE = "| "  # before each line of reasoning that cannot be dimmed


class Screen(Protocol):
    """Shows one answer."""

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        """Show what came with a chunk."""

    def end(self) -> None:
        """End the answer."""


Look: TypeAlias = Callable[[bool], Screen]
"""Makes a screen; if its argument is true, every space of the answer counts, as in JSON."""

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")


def width() -> int:
    """The columns of the terminal, now."""
    return shutil.get_terminal_size().columns


class Wrapper:
    """Breaks the lines of a stream of text between words, on a terminal.

    A word that turns out not to fit is erased and written on the next line. A word that is wider
    than a line, and lines that begin with a space (code), are left to the terminal.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._line = ""  # what stands on the line
        self._word = ""  # the last word of it

    def push(self, text: str) -> str:
        """What to write for a further piece of text."""
        return "".join(self._put(piece) for piece in _PIECES.findall(text))

    def _put(self, piece: str) -> str:
        if piece == "\n":
            self._line = self._word = ""
            return piece
        before, self._line = self._line, self._line + piece
        width = self._columns()
        if piece.isspace():
            self._word = ""
            return piece if self._line[0].isspace() or cell_len(self._line) <= width else ""
        printed, self._word = self._word, self._word + piece
        if cell_len(self._line) <= width or before == printed or self._line[0].isspace():
            return piece
        self._line = self._word
        back = f"\x1b[{cell_len(printed)}D\x1b[K" if printed else ""
        return f"{back}\n{self._word}"


@dataclass(slots=True)
class PlainScreen:
    """The answer goes to ``out`` as it is, after its reasoning, which is dimmed. With a
    ``painter``, both are painted by their probability instead. With ``notes``, which are for where
    nothing can be dimmed, the reasoning goes there."""

    out: TextIO
    painter: Painter | None = None
    wrapper: Wrapper | None = None
    notes: TextIO | None = None
    _part: type[Reasoning | Text] | None = None
    _ends_line: bool = True  # of ``out``

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        texts = [event for event in events if isinstance(event, Reasoning | Text) and event.text]
        if not texts and self.painter is not None and chunk is not None:
            self.painter.push("", chunk.logprob)
        for event in texts:
            if type(event) is not self._part:
                self._end_part(before=type(event))
            text = event.text
            if self._is_aside:
                self._stream.write(text.replace("\n", f"\n{ASIDE}"))
                continue
            if self.painter is not None:
                text = self.painter.push(text, None if chunk is None else chunk.logprob)
            self.out.write(self._wrapped(text))
            self._ends_line = event.text.endswith("\n")
        if texts:
            self.out.flush()
            self._stream.flush()

    def end(self) -> None:
        self._end_part()
        self.out.write("" if self._ends_line else "\n")
        self.out.flush()

    def _end_part(self, before: type[Reasoning | Text] | None = None) -> None:
        """End what is shown, and begin another part."""
        if self._is_aside:
            self._stream.write("\n")
            self._stream.flush()
        self.out.write(_RESET if self._is_dim else "")
        if before is not None and self._part is not None and self.notes is None:
            self.out.write(self._wrapped("\n\n"))
        self._part = before
        if self._is_aside:
            self._stream.write(ASIDE)
        self.out.write(_DIM if self._is_dim else "")

    @property
    def _is_aside(self) -> bool:
        return self._part is Reasoning and self.notes is not None

    @property
    def _is_dim(self) -> bool:
        return self._part is Reasoning and self.notes is None and self.painter is None

    @property
    def _stream(self) -> TextIO:
        return self.notes if self.notes is not None and self._is_aside else self.out

    def _wrapped(self, text: str) -> str:
        return text if self.wrapper is None or self.painter is not None else self.wrapper.push(text)
