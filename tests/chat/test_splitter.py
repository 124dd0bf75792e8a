"""The model's text is cut into its parts, whatever the pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.calls.reader import ToolReader
from mlxgen.chat.splitter import Kind, Marks, Reading, Splitter, Thinking

from .kit import SIZES, STYLES, pieces_of, tool
from .test_golden import GOLDEN

MARKS = Marks(think_start="<think>", think_end="</think>")
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'


def reader(style: str = "json_tools", most: int | None = None) -> ToolReader:
    return ToolReader(FORMATS[style], [tool()], most=most)


def split(
    pieces: Sequence[str], *, cut: bool = False, **options: Any
) -> tuple[list[tuple[Kind, str]], list[list[str]]]:
    """Kinds and texts, neighbours of a kind made one; and the calls with their arguments."""
    splitter = Splitter(Reading(**{"marks": MARKS, "thinking": "possible", **options}))
    spans = [span for piece in pieces for span in splitter.push(piece)]
    spans += splitter.flush(cut=cut)
    calls: list[list[str]] = []
    at = 0
    for span in spans:
        assert span.start == at and (span.text or span.more)
        at += len(span.text)
        calls += [[call.name, ""] for call in span.calls]
        if span.more:
            calls[-1][1] += span.more
    assert "".join(span.text for span in spans) == "".join(pieces)
    kinds = groupby(spans, attrgetter("kind"))
    return [(kind, "".join(span.text for span in same)) for kind, same in kinds], calls


def parts(text: str, **options: Any) -> list[tuple[Kind, str]]:
    """Kinds and texts, the marks left out; the same in any pieces."""
    whole = split([text], **options)
    assert split(list(text), **options) == whole
    return [part for part in whole[0] if part[0] != "mark"]


def test_models_with_headers_start_in_them() -> None:
    marks = Marks(
        think_start="<t>",
        think_end="</t>",
        initial="header",
        transitions={
            "header": [("to=self<m>", "reasoning"), ("to=user<m>", "normal"), ("<c>", "tool")],
            "reasoning": [("<eom>", "header")],
            "normal": [("<eom>", "header")],
        },
    )
    assert parts("to=self<m>hm<eom>to=user<m>Yes.", marks=marks) == [
        ("reasoning", "hm"),
        ("content", "Yes."),
    ]


def pieces_in(style: str) -> list[str]:
    """Marks, words and signs of what models write in a format."""
    texts = [case["text"] for case in GOLDEN if case["style"] == style]
    found = re.findall(r"<[^<>\n]*>|\[[A-Z_]+\]|\w+|\s|[^\w\s]", "".join(texts))
    own = FORMATS[style].write([("get_weather", {"city": "Oslo"})]) if style else CALL
    more = ["<think>", "</think>", "</", "\\u00", "b c", "😊", "{name: get_weather", own, own[3:-3]]
    return [*dict.fromkeys(found), *more * 3]


PIECES = {style: pieces_in(style) for style in ("", *STYLES)}


@given(
    st.sampled_from(sorted(PIECES)).flatmap(
        lambda style: st.tuples(
            st.just(style), st.lists(st.sampled_from(PIECES[style]), max_size=12).map("".join)
        )
    ),
    SIZES,
    st.sampled_from(["open", "possible", "closed"]),
    st.booleans(),
    st.booleans(),
)
@example(("json_tools", f"{CALL} "), [1], "closed", False, True)
def test_spans_do_not_depend_on_the_pieces(
    written: tuple[str, str], sizes: list[int], thinking: Thinking, cut: bool, trim: bool
) -> None:
    style, text = written
    tools = reader(style) if style else None
    whole = split([text], thinking=thinking, tools=tools, cut=cut, trim=trim)
    pieces = pieces_of(text, sizes)
    assert split(pieces, thinking=thinking, tools=tools, cut=cut, trim=trim) == whole


@pytest.mark.parametrize("tools", [None, reader()])
def test_of_endless_white_space_only_the_end_waits_for_a_mark(tools: ToolReader | None) -> None:
    for space in (" ", "\n", " \n"):
        text = f"Hm.{space * 500}"
        splitter = Splitter(Reading(marks=MARKS, thinking="possible", tools=tools))
        come = 0
        for i, character in enumerate(text, 1):
            come += sum(len(span.text) for span in splitter.push(character))
            assert come >= i - 65
        for rest in ("", "So", "</think>\n\nSo", "<think>Hm.</think>So", CALL):
            parts(text + rest, tools=tools)
            parts(text[3:] + rest, tools=tools)


def test_without_tools_no_space_waits_for_what_follows() -> None:
    splitter = Splitter(Reading(marks=MARKS, thinking="possible"))
    for piece in ("It ", "is ", " 3 "):
        assert "".join(span.text for span in splitter.push(piece)) == piece
    assert parts("It is \n<think>Hm.</think> so.") == [
        ("content", "It is "),
        ("reasoning", "Hm."),
        ("content", "so."),
    ]
