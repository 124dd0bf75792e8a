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

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
ASIDE = "| "  # before each line of reasoning that cannot be dimmed
_PIECES = re.compile(r"\n|[^\S\n]+|\S+")


class Screen(Protocol):
    """Shows one answer."""

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        """Show the events of a chunk."""

    def end(self) -> None:
        """End the answer."""


Style: TypeAlias = Callable[[str, float | None], str]
"""Gives what to write for the next piece of text, whose token has this log-probability."""


def width() -> int:
    """The columns of the terminal, now."""
    return shutil.get_terminal_size().columns


class Wrapper:
    """Breaks the lines of a stream of text between words, on a terminal.

    A word that turns out not to fit is erased and written on the next line. A word that is wider
    than a line, and lines that begin with a space (code), are left to the terminal.
    """

    def __init__(self, columns: Callable[[], int] = width) -> None:
        self._columns = columns
        self._line = ""  # the text on the line
        self._word = ""  # the last word of it

    def push(self, text: str, logprob: float | None = None) -> str:
        """What to write for the next piece of text."""
        return "".join(self._put(piece) for piece in _PIECES.findall(text))

    def _put(self, piece: str) -> str:
        if piece == "\n":
            self._line = self._word = ""
            return piece
        before, self._line = self._line, self._line + piece
        fits = self._line[0].isspace() or cell_len(self._line) <= self._columns()
        if piece.isspace():
            self._word = ""
            return piece if fits else ""
        printed, self._word = self._word, self._word + piece
        if fits or before == printed:
            return piece
        self._line = self._word
        back = f"\x1b[{cell_len(printed)}D\x1b[K" if printed else ""
        return f"{back}\n{self._word}"


def plain(text: str, logprob: float | None) -> str:
    """The text as it is."""
    return text


@dataclass(slots=True)
class PlainScreen:
    """Writes the answer to ``out`` in a ``style``, after its reasoning, which is dimmed unless the
    style ``tints``. With ``notes``, for output that cannot be dimmed, the reasoning goes there."""

    out: TextIO
    style: Style = plain
    tints: bool = False
    notes: TextIO | None = None
    _part: type[Reasoning | Text] | None = None
    _ends_line: bool = True  # of ``out``

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        logprob = None if chunk is None else chunk.logprob
        texts = [event for event in events if isinstance(event, Reasoning | Text) and event.text]
        for event in texts:
            if type(event) is not self._part:
                self._begin(type(event))
            if self.notes is not None and self._part is Reasoning:
                self.notes.write(event.text.replace("\n", f"\n{ASIDE}"))
            else:
                self.out.write(self.style(event.text, logprob))
                self._ends_line = event.text.endswith("\n")
        if texts:
            self._flush()
        else:
            self.style("", logprob)  # of a token whose text comes later

    def end(self) -> None:
        self._begin(None)
        self.out.write("" if self._ends_line else "\n")
        self._flush()

    def _begin(self, part: type[Reasoning | Text] | None) -> None:
        """End the part that is shown, and begin another one, if given."""
        before, self._part = self._part, part
        aside, dims = self.notes, self.notes is None and not self.tints
        if before is Reasoning and aside is not None:
            aside.write("\n")
        self.out.write(_RESET if dims and before is Reasoning else "")
        if before is not None and part is not None and aside is None:
            self.out.write(self.style("\n\n", None))
        if part is Reasoning and aside is not None:
            aside.write(ASIDE)
        self.out.write(_DIM if dims and part is Reasoning else "")

    def _flush(self) -> None:
        self.out.flush()
        if self.notes is not None:
            self.notes.flush()
