"""Text coloured by probability."""

from __future__ import annotations

import io
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.terminal.painter import PALETTE, Painter, legend, paint, shade, wants_colour

from ..effort import tries

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def plain(text: str) -> str:
    return ESCAPES.sub("", text)


@settings(max_examples=tries(100))
@given(
    st.lists(st.tuples(st.text("ab\n\té中"), st.floats(-50, 0) | st.none()), max_size=20),
)
def test_painted_text_is_the_text_and_no_line_ends_in_colour(
    pieces: list[tuple[str, float | None]],
) -> None:
    painter = Painter()
    painted = "".join(painter.push(text, logprob) for text, logprob in pieces)
    assert plain(painted) == "".join(text for text, _ in pieces)
    for line in painted.split("\n"):
        codes = ESCAPES.findall(line)
        assert not codes or codes[-1] == "\x1b[0m"


def test_each_probability_has_a_shade_and_likelier_ones_come_first() -> None:
    assert [shade(p) for p in (1.0, 0.95, 0.7, 0.2, 0.05, 0.001)] == list(PALETTE)
    assert shade(0.99) == PALETTE[0]
    assert shade(math.nextafter(0.99, 0.0)) == PALETTE[1]
    assert shade(math.nan) == PALETTE[-1]


def test_text_and_background_differ_enough_to_be_read() -> None:
    def luminance(code: int) -> float:
        if code >= 232:
            levels = [8 + 10 * (code - 232)] * 3
        else:
            cube = [0, 95, 135, 175, 215, 255]
            levels = [cube[(code - 16) // n % 6] for n in (36, 6, 1)]
        linear = [
            (c / 255 / 12.92) if c < 11 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in levels
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for entry in PALETTE:
        low, high = sorted([luminance(entry.background), luminance(entry.foreground)])
        assert (high + 0.05) / (low + 0.05) >= 4.5  # the level AA of WCAG


def test_late_text_takes_the_colour_of_its_least_likely_token() -> None:
    painter = Painter()
    assert painter.push("", math.log(0.2)) == ""
    assert painter.push("é", math.log(0.95)) == paint("é", 0.2)
    assert painter.push("x", math.log(0.95)) == paint("x", 0.95)


def test_the_legend_shows_every_shade_once() -> None:
    assert all(legend().count(entry.code) == 1 for entry in PALETTE)
    assert "≥ 90%" in plain(legend())
    assert len(f"mlxgen.generate: probability: {plain(legend())}") < 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "0"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_and_the_environment_decides(
    stream: io.StringIO, environment: dict[str, str], expected: bool
) -> None:
    assert wants_colour(stream, environment) is expected
