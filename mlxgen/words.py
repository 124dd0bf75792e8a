"""Numbers and texts in messages for people."""

from __future__ import annotations

_SHOWN = 60  # characters of a text


def counted(number: int, noun: str) -> str:
    """A number of things, as in ``1 token`` and ``2 tokens``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shortened(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
