"""Two texts side by side, with what differs marked.

Must never know where they come from. Without colours, marks stand for them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


def write_side_by_side(
    left: tuple[str, str], right: tuple[str, str], out: TextIO, *, colours: bool
) -> None:
    """Write two texts, each with its title, in two columns as wide as half of the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, force_terminal=colours, no_color=not colours, highlight=False)
    table = Table(left[0], right[0], expand=True, show_lines=False)
    for column in table.columns:
        column.ratio, column.overflow = 1, "fold"
    table.add_row(*_marked(left[1], right[1], colours=colours))
    console.print(table)


def _marked(left: str, right: str, *, colours: bool) -> Iterator[Text]:
    from rich.text import Text

    words = [_WORDS.findall(text) for text in (left, right)]
    found = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes()
    for side in (0, 1):
        text = Text()
        for kind, *places in found:
            piece = "".join(words[side][slice(*places[2 * side : 2 * side + 2])])
            if kind == "equal" or not piece.strip():
                text.append(piece)
            elif colours:
                text.append(piece, "bold reverse")
            else:
                text.append(f"«{piece}»")
        yield text
