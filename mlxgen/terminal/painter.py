"""Text coloured by probability, for terminals.

Owns the palette, the decision whether to use colours, and the escape sequences.
Must never know where text or probabilities come from. Invariant: with the sequences
removed, painted text is the original text, and each line and each piece ends with the
terminal's own colours restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

_RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Shade:
    """The 256-colour codes for text whose probability is ``least`` or more."""

    least: float
    background: int
    foreground: int

    @property
    def code(self) -> str:
        return f"\x1b[48;5;{self.background};38;5;{self.foreground}m"


# From blue (likely) over grey to vermilion (unlikely), after the palette of Okabe and Ito:
# the ends differ for every kind of colour vision. Each background has a foreground of high
# contrast, so the terminal's own colours do not matter. The steps are logarithmic at both ends, as
# most tokens are almost certain, and one in a thousand is another thing than one in ten.
_BLACK, _WHITE = 16, 231
PALETTE = (
    Shade(0.99, 25, _WHITE),
    Shade(0.9, 74, _BLACK),
    Shade(0.5, 153, _BLACK),
    Shade(0.1, 253, _BLACK),
    Shade(0.01, 214, _BLACK),
    Shade(0.0, 166, _BLACK),
)


def shade(probability: float) -> Shade:
    """The palette's entry for a probability; NaN counts as unlikely."""
    return next((entry for entry in PALETTE if probability >= entry.least), PALETTE[-1])


def paint(text: str, probability: float) -> str:
    """``text`` in the colours of ``probability``, line by line."""
    code = shade(probability).code
    return "\n".join(f"{code}{line}{_RESET}" if line else "" for line in text.split("\n"))


class Painter:
    """Colours the text of a stream of tokens, some of which deliver their text late, or does else
    what ``paint`` says with a text and its probability.

    Text that comes out at once for several tokens (a character split over them, or text
    that was held for a stop string) takes the colour of the least likely of them.
    """

    def __init__(self, paint: Callable[[str, float], str] = paint) -> None:
        self._paint = paint
        self._least = 1.0

    def push(self, text: str, logprob: float | None) -> str:
        """The painted text of one more token, with its natural log-probability."""
        if logprob is not None:
            self._least = min(self._least, math.exp(min(logprob, 0.0)))
        if not text:
            return ""
        painted = self._paint(text, self._least)
        self._least = 1.0
        return painted


def legend() -> str:
    """One line that shows the palette, which a narrow terminal does not break."""
    words = [f" ≥ {entry.least:.0%} " for entry in PALETTE[:-1]] + [" less "]
    return "".join(
        f"{entry.code}{word}{_RESET}" for entry, word in zip(PALETTE, words, strict=True)
    )


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether to colour what goes to ``stream``.

    ``NO_COLOR`` forbids it, and ``FORCE_COLOR`` asks for it even without a terminal.
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and environment.get("TERM") != "dumb"
