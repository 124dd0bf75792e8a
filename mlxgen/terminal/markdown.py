"""An answer's Markdown, rendered while it streams.

Owns where a block of Markdown ends. A complete block is printed once and for all; the last one is
drawn again over itself, a few times a second, as it grows: as much of its end as fits the terminal.
Each drawing is one write, so nothing flickers. Invariant: at the end, the screen has every block
once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import ClassVar, TextIO

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement

from ..chat.events import ChatEvent, Reasoning, Text
from ..engine import Chunk
from .screens import PlainScreen

EVERY = 0.08  # seconds between two drawings
LEAVES = 9  # the model gets that many times the time of a drawing before the next one
# $$..$$, \[..\] and \(..\), and $..$ where no space or digit makes it two prices.
_FORMULA = re.compile(
    r"\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)|\$(?![\s$])[^$\n]*?(?<![\s\\])\$(?!\d)", re.DOTALL
)
# Padding up to the width of the terminal.
_FILL = re.compile(r"(?:\x1b\[[\d;]*m *\x1b\[0m| )+$| +(?=\x1b\[0m$)", re.MULTILINE)


def _formula(state: StateInline, silent: bool) -> bool:
    """Leaves LaTeX as it was written: its backslashes and underscores mean something else."""
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("text", "", 0).content = found[0]
    state.pos = found.end()
    return True


_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_PARSER.disable("reference")  # text that is printed already cannot become a link
_PARSER.inline.ruler.before("escape", "formula", _formula)


class MarkdownScreen:
    """See the module; reasoning is dimmed and stays as it is."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._console = Console(file=out, force_terminal=True, highlight=False)
        self._aside: PlainScreen | None = None  # while there is reasoning to end
        self._begun = False  # whether a block was printed
        self._open = ""  # the block that grows, and what follows it
        self._height = 0  # lines of it that are drawn
        self._drawn = 0.0  # when that was
        self._took = 0.0  # seconds, which grow with the block

    def show(self, chunk: Chunk | None, events: Sequence[ChatEvent]) -> None:
        for event in events:
            if isinstance(event, Reasoning) and event.text:
                self._print(self._open)
                self._open = ""
                self._aside = self._aside or PlainScreen(self._out)
                self._aside.show(chunk, [event])
            elif isinstance(event, Text) and event.text:
                if self._aside is not None:
                    self._end_aside()
                    self._out.write("\n")
                self._write(event.text)

    def end(self) -> None:
        self._print(self._open)
        self._end_aside()

    def _write(self, text: str) -> None:
        self._open += text if self._open else text.lstrip("\n")
        begun = time.monotonic()
        if begun - self._drawn < max(EVERY, LEAVES * self._took):
            return
        *done, self._open = blocks(self._open)
        self._print("\n".join(done))
        if self._open.strip():
            lines = self._lines(self._open)[-max(1, self._console.height - 1) :]
            self._put("\n".join(lines))
            self._height = len(lines)
        self._drawn = time.monotonic()
        self._took = self._drawn - begun

    def _print(self, markup: str) -> None:
        """Print complete blocks in the place of their drawing."""
        if markup.strip():
            self._put("\n".join([*self._lines(markup), ""]))
            self._height, self._begun = 0, True

    def _put(self, text: str) -> None:
        """Replace the drawing, in one write: a terminal that shows half of it would flicker."""
        back = "\r\x1b[2K" + (self._height - 1) * "\x1b[1A\x1b[2K" if self._height else ""
        self._out.write(back + text)
        self._out.flush()

    def _lines(self, markup: str) -> list[str]:
        """Markdown as lines, with an empty one before each block but the first."""
        lines: list[str] = []
        for block in blocks(f"{markup}\n"):
            with self._console.capture() as captured:
                self._console.print(Rendered(block))
            lines += ["", *_FILL.sub("", captured.get()).strip("\n").split("\n")]
        return lines if self._begun else lines[1:]

    def _end_aside(self) -> None:
        if self._aside is not None:
            self._aside.end()
            self._aside = None


def blocks(text: str) -> list[str]:
    """The blocks of a text, as far as they begin on complete lines; the last has all the rest."""
    lines = text.split("\n")
    tokens = _PARSER.parse("\n".join([*lines[:-1], ""]))
    starts = [token.map[0] for token in tokens if not token.level and token.map]
    ends = [*starts[1:], len(lines)]
    return ["\n".join(lines[a:b]) for a, b in zip([0, *starts[1:]], ends, strict=True)]


class _Heading(Heading):
    """A heading at the left, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text
        text.justify = "left"
        if self.tag == "h1":
            text.stylize("underline")
        yield text


class Rendered(Markdown):
    """Markdown with headings at the left, its own line breaks, and HTML as text. The addresses of
    links are shown, as not every terminal can open hidden ones."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
    }

    def __init__(self, markup: str) -> None:
        super().__init__(markup, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(markup)
        for token in self.parsed:
            if token.children is not None:
                token.children = [_adapted(child) for child in token.children]


def _adapted(token: Token) -> Token:
    """An inline token in the form for rich, which would put images before the line, and show the
    address of a link twice that is its own text."""
    if token.type == "softbreak":
        return Token("hardbreak", "br", 0)
    if token.type == "image":
        return Token("text", "", 0, content=f"{token.content} ({token.attrGet('src')})".lstrip())
    if token.markup == "autolink":
        return Token("text", "", 0)
    return token
