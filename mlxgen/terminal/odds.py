"""The odds of an answer's tokens: its text tinted by them, and the least sure ones in a table.

Must never know where tokens come from. Without colours, marks stand for the tints.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.cells import cell_len

from ..chat.events import ChatEvent
from ..engine import Chunk
from ..tokens import Token
from ..words import counted
from .branches import percent
from .painter import Painter, legend
from .screens import PlainScreen

LEAST = 8  # unsure tokens that are listed
MARKS = ((0.1, "«", "»"), (0.5, "‹", "›"))  # around tokens that are less likely


def tinted(
    readings: Iterable[tuple[Chunk | None, Sequence[ChatEvent]]], *, colours: bool
) -> Iterator[str]:
    """A legend, and the text of these chunks, tinted or marked."""
    text = io.StringIO()
    screen = PlainScreen(text, Painter() if colours else Painter(marked))
    for chunk, events in readings:
        screen.show(chunk, events)
    marks = (f"{before}less than {least:.0%}{after}" for least, before, after in reversed(MARKS))
    yield f"probability: {legend() if colours else ' '.join(marks)}"
    yield text.getvalue()


def least_sure(
    chunks: Sequence[Chunk],
    piece: Callable[[Token], str],
    count: int = LEAST,
    *,
    columns: int | None = None,
) -> Iterator[str]:
    """The least sure of these tokens in a table, with as many likely ones as fit in so many
    ``columns``; ``piece`` is the text of a token."""
    known = [(i, c) for i, c in enumerate(chunks, 1) if c.logprob is not None]
    least = sorted(known, key=lambda each: each[1].logprob or 0.0)[:count]
    if not least:
        return
    width = max(cell_len(_shown(piece, chunk.token)) for _, chunk in least)
    yield f"{counted(len(chunks), 'token')}; the least sure, with what was likely there as well:"
    for number, chunk in sorted(least, key=lambda each: each[0]):
        name = _shown(piece, chunk.token)
        line = f"  @{number:<5} {name}{' ' * (width - cell_len(name))} {percent(chunk.logprob)} "
        for token, logprob in chunk.top:
            if token == chunk.token:
                continue
            longer = f"{line}  {_shown(piece, token)} {percent(logprob).strip()}"
            if columns is not None and cell_len(longer) > columns:
                break
            line = longer
        yield line.rstrip()


def marked(text: str, probability: float) -> str:
    """A text with marks around it, if it is not likely."""
    inner = text.strip()
    for least, before, after in MARKS:
        if inner and probability < least:
            return text.replace(inner, f"{before}{inner}{after}", 1)
    return text


def _shown(piece: Callable[[Token], str], token: Token | None) -> str:
    """A token's text in quotes, with what cannot be seen spelled out."""
    return json.dumps("" if token is None else piece(token), ensure_ascii=False)
