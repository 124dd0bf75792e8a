"""The versions of the last answer: those that were left behind, and the one that is shown.

Owns their numbers, their tree and its drawing, and what two of them have in common. Must never know
a stream. Invariant: no version but the one that is shown is the beginning of another.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..engine import Chunk
from ..errors import OptionError, StateError
from ..tokens import Token
from .odds import percent

Version = tuple[Chunk, ...]
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
WIDTH, LEAST = 60, 20  # columns of a branch's text in the tree, and the fewest of them


@dataclass(frozen=True, slots=True)
class Branches:
    """See the module. ``all``: the versions, by number; ``here``: the number of the one that is
    shown. A new version gets the number after the highest."""

    all: Mapping[int, Version] = field(default_factory=lambda: {1: ()})
    here: int = 1

    def shows(self, chunks: Sequence[Chunk]) -> Branches:
        """The versions after the one that is shown has grown to these chunks."""
        others = self._others()
        for number, other in others.items():
            if tokens_of(other) == tokens_of(chunks):  # it is the same again
                return Branches(others, number)
        left = {number: other for number, other in others.items() if not begins(chunks, other)}
        return Branches({**left, self.here: tuple(chunks)}, self.here)

    def leaves(self, chunks: Sequence[Chunk] = ()) -> Branches:
        """The versions with a new one, which begins with these chunks; the one that was shown is
        kept, unless it is the beginning of another."""
        kept = self._kept()
        number = max(kept, default=0) + 1
        return Branches({**kept, number: tuple(chunks)}, number)

    def goes_to(self, number: int) -> Branches:
        """The versions with another one shown."""
        self.version(number)
        return self if number == self.here else Branches(self._kept(), number)

    def _others(self) -> dict[int, Version]:
        return {number: version for number, version in self.all.items() if number != self.here}

    def _kept(self) -> dict[int, Version]:
        """The versions that stay if another one is shown."""
        others, shown = self._others(), self.all[self.here]
        begun = any(begins(other, shown) for other in others.values())
        return others if begun else {**others, self.here: shown}

    def version(self, number: int) -> Version:
        """The version with a number; ``StateError`` if there is none."""
        if number not in self.all:
            known = ", ".join(map(str, sorted(self.all)))
            raise StateError(f"there is no branch {number}; there are {known}")
        return self.all[number]

    def other(self) -> int:
        """The version that was made last, apart from the one that is shown."""
        if len(self.all) == 1:
            raise OptionError(
                "/compare",
                "there is only one version of this answer; /rewind, /instead or /retry "
                "leave one behind",
            )
        return max(self._others())

    def tree(
        self, texts: Callable[[Version], Sequence[str]], *, columns: int | None = None
    ) -> list[str]:
        """The versions as a tree, a line for each branch; ``texts`` gives the text of each chunk,
        ``columns``: how wide a line may be."""
        shown = {number: texts(version) for number, version in self.all.items()}

        def lines(
            nodes: Sequence[int], start: int, mark: str, indent: str, odds: float | None
        ) -> Iterator[str]:
            """What these versions have in common from ``start`` on, and then where they part."""
            end = common([self.all[node] for node in nodes])
            ending = [node for node in nodes if len(self.all[node]) == end]
            here = "  <- here" if self.here in ending else ""
            numbers = f"{', '.join(f'[{node}]' for node in ending)} " if ending else ""
            before = f"{mark}{f'{percent(odds)}  ' if mark else ''}{numbers}"
            room = WIDTH if columns is None else columns - cell_len(before + here)
            text = _short(
                "".join(shown[nodes[0]][start:end]).lstrip(), max(LEAST, min(WIDTH, room))
            )
            yield f"{before}{text if start or text else '(where it begins)'}{here}".rstrip()
            groups: dict[Token | None, list[int]] = {}
            for node in nodes:
                if node not in ending:
                    groups.setdefault(self.all[node][end].token, []).append(node)
            parting = [self.all[group[0]][end] for group in groups.values()]
            known = {token: logprob for chunk in parting for token, logprob in chunk.top}
            for i, (chunk, group) in enumerate(zip(parting, groups.values(), strict=True)):
                odds = chunk.logprob
                if odds is None and chunk.token is not None:
                    odds = known.get(chunk.token)
                branch, below = ("└─ ", "   ") if i == len(groups) - 1 else ("├─ ", "│  ")
                yield from lines(group, end, indent + branch, indent + below, odds)

        return list(lines(sorted(self.all), 0, "", "", None))


def common(versions: Sequence[Version]) -> int:
    """How many tokens all of these begin with."""
    count = 0
    for each in zip(*versions, strict=False):
        if len({chunk.token for chunk in each}) > 1:
            break
        count += 1
    return count


def begins(text: Sequence[Chunk], beginning: Sequence[Chunk]) -> bool:
    """Whether a version begins with another one, or is the same."""
    return tokens_of(text)[: len(beginning)] == tokens_of(beginning)


def tokens_of(chunks: Sequence[Chunk]) -> list[Token]:
    """Their tokens, the end included."""
    return [chunk.token for chunk in chunks if chunk.token is not None]


def _short(text: str, columns: int) -> str:
    """The beginning and the end of a text, in whole words if these are not too long."""
    line = text.replace("\n", "⏎")
    half, short = (columns - 3) // 2, line
    while cell_len(short) > columns:
        left, right = line[:half], line[-half:]
        left = left[: left.rfind(" ") + 1] or left
        right = right[right.find(" ", 0, half // 2) :] if " " in right[: half // 2] else right
        short, half = f"{left}...{right}", half - 1
    return short


def write_side_by_side(sides: Sequence[tuple[str, str]], out: TextIO, *, colours: bool) -> None:
    """Write two texts, each with its title, in two columns as wide as half of the terminal."""
    console = Console(file=out, force_terminal=colours, no_color=not colours, highlight=False)
    table = Table(*(title for title, _ in sides), expand=True, show_lines=False)
    for column in table.columns:
        column.ratio, column.overflow = 1, "fold"
    words = [_WORDS.findall(text) for _, text in sides]
    found = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes()
    cells = []
    for side in (0, 1):
        cell = Text()
        for kind, *places in found:
            piece = "".join(words[side][slice(*places[2 * side : 2 * side + 2])])
            differs = kind != "equal" and not piece.isspace() and piece
            if differs and not colours:
                piece = f"«{piece}»"
            cell.append(piece, "bold reverse" if differs and colours else None)
        cells.append(cell)
    table.add_row(*cells)
    console.print(table)
    out.flush()
