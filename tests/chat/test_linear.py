"""Reading takes a time that is linear in the text, counted in operations and in characters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from mlxgen.chat.calls import values
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.splitter import Splitter
from tests.effort import ALL

from .kit import STYLES
from .test_golden import reading_of

MAKE = values.compiled.__wrapped__
TWO = [
    "json_tools",
    "qwen3_coder",
]  # by default, each with a sixth of the texts; with --all, all with half
SIZE = 6000  # characters; below, the windows in which marks are looked for count


class Counted:
    """A pattern that counts the characters at which it looks, as far as that can be told."""

    def __init__(self, pattern: Any, count: Callable[[int], None]) -> None:
        self._pattern = pattern
        self._count = count

    def match(self, text: str, place: int = 0, *end: int, partial: bool = False) -> Any:
        found = self._pattern.match(text, place, *end, partial=partial)
        self._count(1 if found is None else found.end() - place)
        return found

    def search(self, text: str, place: int = 0, partial: bool = False) -> Any:
        found = self._pattern.search(text, place, partial=partial)
        self._count((len(text) if found is None else found.end()) - place)
        return found


def work(style: str, text: str, step: int, patch: pytest.MonkeyPatch) -> int:
    """How much is done to read a text in pieces."""
    total = 0

    def count(more: int) -> None:
        nonlocal total
        total += more

    made = lru_cache(512)(lambda *a, **end: Counted(MAKE(*a, **end), count))
    patch.setattr(values, "compiled", made)
    splitter = Splitter(reading_of({"style": style, "channels": style == "harmony"}))
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: count(event in ("call", "c_call")))
    try:
        for at in range(0, len(text), step):
            splitter.push(text[at : at + step])
        splitter.flush()
    finally:
        sys.setprofile(before)
    return total


def repeated(style: str) -> dict[str, str]:
    """What a model that has lost its way may write for ever."""
    format = FORMATS[style]
    start = format.start or next(iter(format.also), "")
    whole = format.write([("bash", {"command": "ls"})])
    within = format.write([("types", {"any": {"a": ["ls"]}})])
    return {
        "marks": start or "{",
        "marks that are named": f"I may say {start} or {format.end} here.\n",
        "half a head": whole[: len(whole) // 3],
        "half a call": whole[: whole.index("ls") + 1],
        "half a value": within[: within.index("ls") + 1],
        "calls": whole,
        "calls without ends": whole.removesuffix(format.end),
        "quotes": "\"'\\",
        "lines": '{"a": 1}\n[{"name": "x"}]\n',
    }


def grown(style: str) -> dict[str, tuple[str, str, str]]:
    """A call with a long value: what is before, repeated in it, and after."""
    format, found = FORMATS[style], {}
    for name, text in (
        ("words", "ab c\n"),
        ("quotes", "echo \"x\" 'y' \\ { [ ( } ] ), "),
        ("tags", "</parameter> <arg_key>a</arg_key> </function> "),
        ("marks", f"{format.start} {format.end} "),
        ("blanks", "    "),
    ):
        for tool, arguments in (("bash", {"command": text}), ("types", {"any": [text]})):
            if tool == "types" and name != "quotes":
                continue
            one = format.write([(tool, arguments)])
            two = format.write([(tool, {key: _twice(v, text) for key, v in arguments.items()})])
            size = len(two) - len(one)
            at = next(
                i for i in range(len(one) + 1) if one[:i] + two[i : i + size] + one[i:] == two
            )
            found[f"{name} of {tool}"] = one[:at], two[at : at + size], one[at:]
    return found


def _twice(value: Any, text: str) -> Any:
    return [text * 2] if isinstance(value, list) else text * 2


@pytest.mark.parametrize("style", STYLES if ALL else TWO)
def test_twice_the_text_is_twice_the_work(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name: ("", text, "") for name, text in repeated(style).items()} | grown(style)
    first, every = (list(STYLES).index(style) % 2, 2) if ALL else (TWO.index(style), 6)
    for name, (before, text, after) in list(texts.items())[first::every]:
        one, two = (
            work(style, before + text * (size // len(text)) + after, 64, monkeypatch)
            for size in (SIZE, SIZE * 2)
        )
        assert two < 2.4 * one + 20_000, (name, one, two)


def test_a_mark_or_a_name_that_does_not_end_is_none() -> None:
    for style, text in (
        ("minimax_m2", '<minimax:tool_call><invoke name="'),
        ("qwen3_coder", "<tool_call><function="),
        ("kimi_k3", "<|open|>tools<|sep|><|open|>call "),
    ):
        splitter = Splitter(reading_of({"style": style}))
        shown = "".join(span.text for piece in [text, *"x" * 5000] for span in splitter.push(piece))
        assert len(shown) > len(text), style
