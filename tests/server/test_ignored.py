"""The header that names what had no effect is safe and short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.server.bodies import cache_marks, header_of


@given(st.lists(st.text(max_size=300), max_size=30))
def test_the_header_is_printable_ascii_and_bounded(names: list[str]) -> None:
    header = header_of(names)
    assert len(header) < 1100 and header.isascii() and (header.isprintable() or not header)
    assert header == header.strip() and header_of(["", *names])


def test_names_are_listed_once_and_what_is_too_much_is_left_out() -> None:
    assert header_of(["store", "user", "store"]) == "store, user"
    many = header_of(f"tools[{i}]" for i in range(2000))
    assert many.startswith("tools[0], tools[1], ") and many.endswith("], ...")


def test_marks_are_found_in_the_conversation_and_in_tools_and_not_in_schemas() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    schema = {"properties": {"cache_control": {"type": "string"}}}
    parts = [{"content": [{"type": "tool_result", "content": [{"text": "x", **mark}]}]}]
    for body in ({"messages": parts}, {"system": [mark]}, {"tools": [{"function": mark}]}):
        assert cache_marks(body) == ["cache_control"]
    assert cache_marks({"tools": [{"input_schema": schema}], "messages": "x", "input": [5]}) == []
