"""The odds of tokens in a terminal: text tinted by them, and the least sure ones in a table.

Owns the palette and the decision whether to use colours. Must never know where text or odds come
from. Invariant: with the escape sequences removed, tinted text is the original text, and each line
and each piece ends with the terminal's own colours restored. Without colours, marks stand for the
tints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from ..words import counted

if TYPE_CHECKING:
    from ..engine import Chunk
    from ..tokens import Token

LEAST = 8  # unsure tokens that are listed
MARKS = ((0.1, "«", "»"), (0.5, "‹", "›"))  # around tokens that are less likely

# For each least probability, the 256-colour codes of the background and of the text.
# From blue (likely) over grey to vermilion (unlikely), after the palette of Okabe and Ito:
# the ends differ for every kind of colour vision. Each background has a foreground of high
# contrast, so the terminal's own colours do not matter. The steps are logarithmic at both ends, as
# most tokens are almost certain, and one in a thousand is far from one in ten.
_BLACK, _WHITE = 16, 231
PALETTE = (
    (0.99, 25, _WHITE),
    (0.9, 74, _BLACK),
    (0.5, 153, _BLACK),
    (0.1, 253, _BLACK),
    (0.01, 214, _BLACK),
    (0.0, 166, _BLACK),
)


def paint(text: str, probability: float) -> str:
    """``text`` in the colours of ``probability``, line by line; NaN counts as unlikely."""
    shades = (shade for shade in PALETTE if probability >= shade[0])
    _, background, foreground = next(shades, PALETTE[-1])
    code = f"\x1b[48;5;{background};38;5;{foreground}m"
    return "\n".join(f"{code}{line}\x1b[0m" if line else "" for line in text.split("\n"))


def mark(text: str, probability: float) -> str:
    """A text with marks around it, if it is not likely."""
    inner = text.strip()
    for least, before, after in MARKS:
        if inner and probability < least:
            return text.replace(inner, f"{before}{inner}{after}", 1)
    return text


class Painter:
    """Tints the text of a stream of tokens, some of which deliver their text late.

    Text that comes out at once for several tokens (a character split over them, or text
    that was held for a stop string) takes the colour of the least likely of them.
    """

    def __init__(self, *, colours: bool = True) -> None:
        self._paint = paint if colours else mark
        self._least = 1.0

    def push(self, text: str, logprob: float | None) -> str:
        """The tinted text of one more token, with its natural log-probability."""
        if logprob is not None:
            self._least = min(self._least, math.exp(min(logprob, 0.0)))
        if not text:
            return ""
        least, self._least = self._least, 1.0
        return self._paint(text, least)


def legend(*, colours: bool = True) -> str:
    """One line that shows the palette, which a narrow terminal does not break, or the marks."""
    if not colours:
        return " ".join(f"{a}less than {least:.0%}{b}" for least, a, b in reversed(MARKS))
    words = [f" ≥ {least:.0%} " for least, _, _ in PALETTE[:-1]] + [" less "]
    return "".join(paint(word, shade[0]) for word, shade in zip(words, PALETTE, strict=True))


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether to colour what goes to ``stream``.

    ``NO_COLOR`` forbids it, and ``FORCE_COLOR`` asks for it even without a terminal.
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and environment.get("TERM") != "dumb"


def percent(logprob: float | None) -> str:
    """A probability as people read it, always 7 characters wide."""
    if logprob is None:
        return "  typed"
    value = 100 * math.exp(min(0.0, logprob))
    if value >= 99.95:
        return "> 99.9%"
    return f"{value:6.2f}%" if value >= 0.01 else "< 0.01%"


def least_sure(
    chunks: Sequence[Chunk],
    piece: Callable[[Token], str],
    count: int = LEAST,
    *,
    columns: int | None = None,
) -> Iterator[str]:
    """The least sure of these tokens in a table, with as many other likely tokens as fit in
    ``columns``; ``piece`` gives the text of a token."""

    def shown(token: Token | None) -> str:  # in quotes, with what cannot be seen spelled out
        return json.dumps("" if token is None else piece(token), ensure_ascii=False)

    known = [(i, c) for i, c in enumerate(chunks, 1) if c.logprob is not None]
    least = sorted(known, key=lambda each: each[1].logprob or 0.0)[:count]
    if not least:
        return
    width = max(cell_len(shown(chunk.token)) for _, chunk in least)
    yield f"{counted(len(chunks), 'token')}; the least sure, with what was likely there as well:"
    for number, chunk in sorted(least, key=lambda each: each[0]):
        name = shown(chunk.token)
        line = f"  @{number:<5} {name}{' ' * (width - cell_len(name))} {percent(chunk.logprob)} "
        for token, logprob in chunk.top:
            if token == chunk.token:
                continue
            longer = f"{line}  {shown(token)} {percent(logprob).strip()}"
            if columns is not None and cell_len(longer) > columns:
                break
            line = longer
        yield line.rstrip()
