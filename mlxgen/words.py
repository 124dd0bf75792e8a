"""Numbers and texts for people, in messages of the engine and of the terminal."""

from __future__ import annotations

from textwrap import fill

_SHOWN = 60  # characters of a text


def counted(number: int, noun: str) -> str:
    """A number of things, as in ``1 token`` and ``2 tokens``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def broken(text: str, columns: int) -> str:
    """A text with its long lines broken between words, except coloured ones."""
    return "\n".join(
        fill(line, columns, break_long_words=False, break_on_hyphens=False)
        if len(line) > columns and "\x1b" not in line
        else line
        for line in text.split("\n")
    )


def shortened(text: str) -> str:
    """The beginning of a text, in one line."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
