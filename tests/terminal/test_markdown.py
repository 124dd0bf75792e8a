"""Markdown that is rendered while it streams."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mlxgen.chat.events import Mark, Reasoning, Text
from mlxgen.terminal import markdown
from mlxgen.terminal.markdown import MarkdownScreen, split

TEXT = """# A title

A **bold** word, `code`, <b>html</b> and
its second line.

| a | b |
|---|---|
| 1 | 2 |

- one
- two

```python
x = 1
```

The end of it
"""
SHOWN = [
    "A title",
    "",
    "A bold word, code, <b>html</b> and",
    "its second line.",
    "",
    " a  b",
    " ────",
    " 1  2",
    "",
    " • one",
    " • two",
    "",
    " x = 1",
    "",
    "The end of it",
]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("TERM", "xterm-256color")


def screen_of(written: str) -> list[str]:
    """What a terminal shows that gets this."""
    lines, row = [""], 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", written):
        if piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece.endswith("A") and piece.startswith("\x1b"):
            row -= int(piece[2:-1])
            assert row >= 0
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif not piece.startswith(("\x1b", "\r")):
            lines[row] += piece
    while lines and not lines[-1]:
        lines.pop()
    return lines


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


@pytest.mark.parametrize("every", [0.0, 1e9])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_block_is_on_the_screen_once_however_it_came(
    size: int, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markdown, "EVERY", every)
    out = io.StringIO()
    screen = MarkdownScreen(out)
    for piece in pieces(TEXT, size):
        screen.show(None, [Text(piece)])
    screen.end()
    assert screen_of(out.getvalue()) == SHOWN
    assert out.getvalue().endswith("\n")


def test_a_block_that_grows_beyond_the_terminal_is_whole_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markdown, "EVERY", 0.0)
    monkeypatch.setenv("LINES", "6")
    out = io.StringIO()
    screen = MarkdownScreen(out)
    items = [f"{number}. item" for number in range(1, 31)]
    for item in items:
        screen.show(None, [Text(f"{item}\n")])
        assert len(screen_of(out.getvalue())) <= 5
    screen.end()
    assert [line.split()[0] for line in screen_of(out.getvalue())] == [str(n) for n in range(1, 31)]


def test_a_long_block_leaves_the_time_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, drawn = [1.0], []
    monkeypatch.setattr(markdown, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    screen = MarkdownScreen(io.StringIO())
    lines = screen._lines

    def slow(markup: str) -> list[str]:
        clock[0] += 1.0
        drawn.append(markup)
        return lines(markup)

    monkeypatch.setattr(screen, "_lines", slow)
    for _ in range(200):
        clock[0] += 0.1
        screen.show(None, [Text("- item\n")])
    assert len(drawn) == 3


def test_reasoning_is_dimmed_and_marks_are_not_shown() -> None:
    out = io.StringIO()
    screen = MarkdownScreen(out)
    screen.show(None, [Mark("<think>\n"), Reasoning("hm **"), Reasoning("not** bold"), Mark("x")])
    screen.show(None, [Text("\n\nSo **it** is.")])
    screen.end()
    assert out.getvalue().startswith("\x1b[2mhm **not** bold\x1b[0m\n\n")
    assert screen_of(out.getvalue()) == ["hm **not** bold", "", "So it is."]
    assert "\x1b[1mit\x1b[0m" in out.getvalue()


def test_a_block_is_complete_when_another_has_begun_on_a_line_of_its_own() -> None:
    assert split("one\n\n") == ("", "one\n\n")
    assert split("one\n\ntwo") == ("", "one\n\ntwo")
    assert split("one\n\ntwo\nmore") == ("one\n", "two\nmore")
    assert split("one\n#hash\n") == ("", "one\n#hash\n")
    assert split("```\na\n\n# b\n") == ("", "```\na\n\n# b\n")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"so \(a\,b\) and $x_1*y*z_1$", r"so \(a\,b\) and $x_1*y*z_1$"),
        (r"\[ a_{i} \\ b_{i} \]", r"\[ a_{i} \\ b_{i} \]"),
        ("$$\na_1 \\\\\n_b_\n$$", "$$\na_1 \\\\\n_b_\n$$"),
        ("from $5 to *all* of $6", "from $5 to all of $6"),
        ("`$a$` and \\$ and $", "$a$ and $ and $"),
        ("see [it](http://x.y/z)", "see it (http://x.y/z)"),
        ("see <http://x.y/z>", "see http://x.y/z"),
        ("so ![a cat](cat.png) is", "so a cat (cat.png) is"),
    ],
)
def test_formulas_stay_as_they_are_and_addresses_are_shown(written: str, shown: str) -> None:
    out = io.StringIO()
    screen = MarkdownScreen(out)
    screen.show(None, [Text(written)])
    screen.end()
    assert "\n".join(screen_of(out.getvalue())) == shown
    assert "\x1b]8" not in out.getvalue()
