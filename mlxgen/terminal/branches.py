"""The versions of the last answer: those that were left behind, and the one that is shown.

Owns their numbers, their tree and its drawing, and what two of them have in common. Must never know
a stream. Invariant: no version is the beginning of another one, but for the one that
is shown.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..engine import Chunk
from ..errors import OptionError, StateError
from ..tokens import Token

Version = tuple[Chunk, ...]
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
WIDTH, LEAST = 60, 20  # columns that the tree shows of a branch, and in a narrow terminal at least


@dataclass(frozen=True, slots=True)
class Branches:
    """See the module. ``all`` are the versions by their numbers, and ``here`` is the one that is
    shown. A new one has the number after the highest."""

    all: Mapping[int, Version] = field(default_factory=lambda: {1: ()})
    here: int = 1

    def shows(self, chunks: Sequence[Chunk]) -> Branches:
        """The version that is shown has these chunks now, which continue those that it had."""
        found = {self.here: tuple(chunks)}
        for number, other in self.all.items():
            if number == self.here:
                continue
            if begins(chunks, other):
                if len(other) == len(chunks):  # it came to be the same again
                    return Branches(self._others(), number)
                continue
            found[number] = other
        return Branches(dict(sorted(found.items())), self.here)

    def leaves(self, chunks: Sequence[Chunk] = ()) -> Branches:
        """Another version begins, with these; the one that is shown is left behind, if it is not
        the beginning of one that was."""
        kept = self._kept()
        number = max(kept, default=0) + 1
        return Branches({**kept, number: tuple(chunks)}, number)

    def goes_to(self, number: int) -> Branches:
        """Another version is shown."""
        self.version(number)
        return self if number == self.here else Branches(self._kept(), number)

    def _others(self) -> dict[int, Version]:
        return {number: version for number, version in self.all.items() if number != self.here}

    def _kept(self) -> dict[int, Version]:
        """Those that stay if another one is shown."""
        others, shown = self._others(), self.all[self.here]
        begun = any(begins(other, shown) for other in others.values())
        return others if begun else dict(self.all)

    def version(self, number: int) -> Version:
        """One of them; ``StateError`` if there is none."""
        if number not in self.all:
            known = ", ".join(map(str, self.all))
            raise StateError(f"there is no branch {number}; there are {known}")
        return self.all[number]

    def other(self) -> int:
        """The version that was made last, apart from the one that is shown."""
        numbers = [number for number in self.all if number != self.here]
        if not numbers:
            raise OptionError(
                "/compare",
                "there is only one version of this answer; /rewind, /instead or /retry "
                "leave one behind",
            )
        return max(numbers)

    def tree(
        self, texts: Callable[[Version], Sequence[str]], *, columns: int | None = None
    ) -> list[str]:
        """The versions as a tree, a line for each branch; ``texts``: those of each chunk,
        ``columns``: how wide a line may be."""
        shown = {number: texts(version) for number, version in self.all.items()}
        return list(self._lines(sorted(self.all.items()), shown, 0, "", "", None, columns))

    def _lines(
        self,
        nodes: Sequence[tuple[int, Version]],
        shown: Mapping[int, Sequence[str]],
        start: int,
        mark: str,
        indent: str,
        odds: float | None,
        columns: int | None,
    ) -> Iterator[str]:
        """What these have in common from ``start`` on, and then where they part."""
        end = common([version for _, version in nodes])
        text = "".join(shown[nodes[0][0]][start:end])
        alone = [number for number, version in nodes if len(version) == end]
        numbers = ", ".join(f"[{number}]" for number in alone)
        share = f"{percent(odds)}  " if start else ""
        here = "  <- here" if self.here in alone else ""
        before = f"{mark}{share}{f'{numbers} ' if numbers else ''}"
        room = WIDTH if columns is None else columns - cell_len(before + here)
        part = _short(text, max(LEAST, min(WIDTH, room))) if start or text else "(where it begins)"
        yield f"{before}{part}{here}".rstrip()
        parting = sorted(
            (node for node in nodes if len(node[1]) > end), key=lambda node: _token(node, end)
        )
        groups = [list(group) for _, group in groupby(parting, key=lambda n: _token(n, end))]
        groups.sort(key=lambda group: group[0][0])
        known = {t: p for group in groups for t, p in group[0][1][end].top}
        for i, group in enumerate(groups):
            last = i == len(groups) - 1
            first = group[0][1][end]
            share_of = first.logprob
            if share_of is None and first.token is not None:
                share_of = known.get(first.token)
            branch = indent + ("└─ " if last else "├─ ")
            below = indent + ("   " if last else "│  ")
            yield from self._lines(group, shown, end, branch, below, share_of, columns)


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


def percent(logprob: float | None) -> str:
    """A probability as people read it, in as many characters for all."""
    if logprob is None:
        return "  typed"
    value = 100 * math.exp(min(0.0, logprob))
    if value >= 99.95:
        return "> 99.9%"
    return f"{value:6.2f}%" if value >= 0.01 else "< 0.01%"


def _token(node: tuple[int, Version], at: int) -> int:
    token = node[1][at].token
    return -1 if token is None else token


def _short(text: str, columns: int) -> str:
    """The beginning and the end of a text, of whole words if these are not too long."""
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
    table.add_row(*_marked(*(text for _, text in sides), colours=colours))
    console.print(table)
    out.flush()


def _marked(left: str, right: str, *, colours: bool) -> Iterator[Text]:
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
