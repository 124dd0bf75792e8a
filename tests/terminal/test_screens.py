"""How an answer looks on a terminal: rendered while it streams, wrapped, coloured by odds."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mlxgen.chat.events import Mark, Reasoning, Text
from mlxgen.engine.chunk import Alternative, Chunk
from mlxgen.terminal import markdown
from mlxgen.terminal.branches import Branches
from mlxgen.terminal.markdown import MarkdownScreen
from mlxgen.terminal.odds import Painter, least_sure, legend, paint, percent, wants_colour
from mlxgen.terminal.screens import Wrapper

from ..effort import tries
from ..tables import table

pytestmark = pytest.mark.whole

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


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
        elif piece.endswith("D") and piece.startswith("\x1b"):
            lines[row] = lines[row][: -int(piece[2:-1])]
        elif not piece.startswith(("\x1b", "\r")):
            lines[row] += piece
    while lines and not lines[-1]:
        lines.pop()
    return lines


def rendered(*texts: str) -> str:
    """What is written for an answer that comes in these pieces."""
    out = io.StringIO()
    screen = MarkdownScreen(out)
    for text in texts:
        screen.show(None, [Text(text)])
    screen.end()
    return out.getvalue()


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


# ---- Markdown ----


@pytest.mark.parametrize("every", [0.0, 1e9])
@pytest.mark.parametrize("case", table("markdown"), ids=lambda case: case["written"][:20])
def test_every_block_is_on_the_screen_once_however_it_came(
    case: dict[str, str], every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formulas stay as they are, and the addresses of links are shown."""
    monkeypatch.setattr(markdown, "EVERY", every)
    for size in (1, 7, 1000):
        written = rendered(*pieces(case["written"], size))
        assert "\n".join(screen_of(written)) == case["shown"]
        assert written.endswith("\n") and "\x1b]8" not in written


def test_a_block_that_grows_beyond_the_terminal_is_whole_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markdown, "EVERY", 0.0)
    monkeypatch.setattr(markdown, "LEAVES", 0)
    monkeypatch.setenv("LINES", "6")
    out = io.StringIO()
    screen = MarkdownScreen(out)
    for number in range(1, 31):
        screen.show(None, [Text(f"{number}. item\n")])
        assert len(screen_of(out.getvalue())) <= 5
    screen.end()
    assert [line.split()[0] for line in screen_of(out.getvalue())] == [str(n) for n in range(1, 31)]


def test_a_long_block_leaves_the_time_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "EVERY", 0.0)
    monkeypatch.setattr(markdown, "LEAVES", 1e9)  # times as long as a drawing takes
    out = io.StringIO()
    screen = MarkdownScreen(out)
    for _ in range(20):
        screen.show(None, [Text("- item\n")])
    assert screen_of(out.getvalue()) == [" • item"]


def test_reasoning_is_dimmed_and_marks_are_not_shown() -> None:
    out = io.StringIO()
    screen = MarkdownScreen(out)
    screen.show(None, [Mark("<think>\n"), Reasoning("hm **"), Reasoning("not** bold"), Mark("x")])
    screen.show(None, [Text("\n\nSo **it** is.")])
    screen.end()
    assert out.getvalue().startswith("\x1b[2mhm **not** bold\x1b[0m\n\n")
    assert screen_of(out.getvalue()) == ["hm **not** bold", "", "So it is."]
    assert "\x1b[1mit\x1b[0m" in out.getvalue()


# ---- lines ----


@given(st.lists(st.text(alphabet="ab \n", max_size=5)), st.integers(3, 12))
def test_lines_break_between_words_for_any_pieces(pieces: list[str], columns: int) -> None:
    screen = screen_of("".join(map(Wrapper(lambda: columns).push, pieces)))
    text = "".join(pieces)
    assert "\n".join(screen).split() == text.split()
    for line in screen:
        if not line.startswith(" ") and all(len(word) <= columns for word in line.split()):
            assert len(line.rstrip()) <= columns


@pytest.mark.parametrize("letter", ["a", "好"])
def test_lines_of_the_tree_and_of_the_odds_fit_the_terminal(letter: str) -> None:
    branches = Branches().shows([Chunk("", 0, i) for i in range(200)])
    for at in (60, 120):
        branches = branches.leaves([Chunk("", int(i >= at), i) for i in range(200)])
    tree = branches.tree(lambda version: [letter for _ in version], columns=60)
    assert len(tree) == 5 and any(line.endswith("<- here") for line in tree)
    assert all(55 < cell_len(line) <= 60 for line in tree)
    likely = Chunk("", 0, 0, logprob=-0.5, top=(Alternative(0, -0.5), Alternative(1, -1.0)))
    put = Branches().shows([likely]).leaves([Chunk("", 1, 0)])  # its odds are known beside it
    assert put.tree(lambda version: [letter])[2] == f"└─  36.79%  [2] {letter}  <- here"
    names = (letter, "ab", "cd", "ef")
    top = tuple(Alternative(token, -1.0 - token / 8) for token in range(4))
    chunk = Chunk("", 0, 0, logprob=-1.0, top=top)
    listed = list(least_sure([chunk], names.__getitem__, columns=40))
    assert listed[1] == f'  @1     "{letter}"  36.79%   "ab" 32.47%'


# ---- colours ----


@settings(max_examples=tries(100))
@given(
    st.lists(st.tuples(st.text("ab\n\té中"), st.floats(-50, 0) | st.none()), max_size=20),
)
def test_painted_text_is_the_text_and_no_line_ends_in_colour(
    pieces: list[tuple[str, float | None]],
) -> None:
    painter = Painter()
    painted = "".join(painter.push(text, logprob) for text, logprob in pieces)
    assert ESCAPES.sub("", painted) == "".join(text for text, _ in pieces)
    for line in painted.split("\n"):
        codes = ESCAPES.findall(line)
        assert not codes or codes[-1] == "\x1b[0m"


def test_each_probability_has_a_shade_and_the_legend_shows_all() -> None:
    steps = (1.0, 0.95, 0.7, 0.2, 0.05, 0.001)
    found = [re.match(r"\x1b\[48;5;(\d+);38;5;(\d+)mx", paint("x", step)) for step in steps]
    shades = [(int(each[1]), int(each[2])) for each in found if each is not None]
    assert len(set(shades)) == len(steps)
    assert paint("x", 0.99) == paint("x", 1.0) != paint("x", math.nextafter(0.99, 0.0))
    assert paint("x", math.nan) == paint("x", 0.0)
    assert all(legend().count(f"48;5;{shade[0]};") == 1 for shade in shades)
    assert len(f"mlxgen.generate: probability: {ESCAPES.sub('', legend())}") < 80


def test_late_text_takes_the_colour_of_its_least_likely_token() -> None:
    painter = Painter()
    assert painter.push("", math.log(0.2)) == ""
    assert painter.push("é", math.log(0.95)) == paint("é", 0.2)
    assert painter.push("x", math.log(0.95)) == paint("x", 0.95)


def test_unlikely_tokens_are_marked_where_there_are_no_colours() -> None:
    marker = Painter(colours=False)
    pushed = [("a", -0.1), (" b ", -1.0), ("", -4.0), (" c", -0.1), ("d", None), ("\n", -9.0)]
    assert "".join(marker.push(*each) for each in pushed) == "a ‹b›  «c»d\n"
    assert percent(None) == "  typed"
    assert percent(-1e-9) == "> 99.9%" and percent(-20.0) == "< 0.01%"


@pytest.mark.parametrize("case", table("colours"), ids=repr)
def test_colours_are_for_terminals_and_the_environment_decides(case: dict[str, Any]) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: case["terminal"]  # type: ignore[method-assign]
    assert wants_colour(stream, case["environment"]) is case["colours"]
