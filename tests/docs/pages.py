"""The README and the pages of ``docs``, read as their readers and their tests read them.

Owns what a block, a link, an anchor and a table are. Must never know what the blocks do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``output`` is the ``text`` block that follows it at once, if any."""

    kind: str
    code: str
    line: int
    output: str | None = None


class Page:
    """One page; ``name`` is its path in the repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.prose = re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    def __repr__(self) -> str:
        return self.name

    @property
    def all_blocks(self) -> list[Block]:
        found = []
        fence = re.compile(
            r"^```(\w*)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
        )
        for match in fence.finditer(self.text + "\n"):
            line = self.text.count("\n", 0, match.start()) + 2
            found.append(Block(match[1], match[2], line, match[3]))
        return found

    def blocks(self, *kinds: str) -> list[Block]:
        """The blocks of some kinds, in order."""
        return [block for block in self.all_blocks if block.kind in kinds]

    def function(self, name: str) -> str:
        """The source of an async function in one of the page's examples."""
        for block in self.blocks("python"):
            found = re.search(rf"^async def {name}\(.*?(?=^\S|\Z)", block.code, re.M | re.S)
            if found is not None:
                return found[0]
        raise AssertionError(f"{self} has no async function {name}")

    def section(self, heading: str) -> str:
        """What is under a heading, up to the next one of its level or above."""
        start = re.search(rf"^(#+) {re.escape(heading)}$", self.text, re.MULTILINE)
        assert start is not None, f"{self} has no heading {heading!r}"
        rest = self.text[start.end() :]
        return re.split(rf"^#{{1,{len(start[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]

    def table(self, heading: str) -> list[list[str]]:
        """The rows of the first table under a heading, without the two at its top."""
        lines = [line for line in self.section(heading).splitlines() if line.startswith("|")]
        assert lines, f"{self}: no table under {heading!r}"
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]
        return [[cell.strip() for cell in row] for row in rows]

    @property
    def anchors(self) -> set[str]:
        """What ``#...`` of a link may be, as GitHub makes it of headings."""
        titles = re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    @property
    def links(self) -> list[str]:
        """The targets of links and pictures, apart from those of other hosts."""
        return re.findall(r"\]\((?!https?:)([^)\s]+)\)", self.prose)


@cache
def page(name: str) -> Page:
    return Page(ROOT / name)


README = page("README.md")
PAGES = [README, *(page(f"docs/{path.name}") for path in sorted((ROOT / "docs").glob("*.md")))]
