"""Golden answers: what families write, as published and with slips, and what it means.

Each line of ``tests/data/golden.jsonl`` has the name of a format, a ``text``, and what it is read
as. How the text came never matters, nothing of it is lost, arguments are JSON of the right types,
and the time is linear in the text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mlxgen.chat.calls import values
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.calls.reader import HELD, ToolReader
from mlxgen.chat.events import CallArguments, CallStarted
from mlxgen.chat.marks import HARMONY, Marks, Reading, marks_of
from mlxgen.chat.splitter import Splitter

from ..effort import ALL, table, tries
from ..fakes import byte_level_tokenizer
from .kit import SIZES, STYLES, pieces_of, tool

GOLDEN: list[dict[str, Any]] = table("golden")
CHANNELS: dict[Any, Marks] = {
    True: HARMONY,
    "muse": marks_of(
        TokenizerWrapper(byte_level_tokenizer()._tokenizer, response_format=RESPONSE_FORMAT), "", ()
    ),
}
"""The marks of families with headers."""
in_parts = pytest.mark.parametrize("part", range(4))
TOOLS: list[dict[str, Any]] = table("tools")


def reading_of(case: dict[str, Any]) -> Reading:
    """With all tools, or with one of its own or the ``only`` one."""
    tools = [t for t in TOOLS if t["function"]["name"] == case.get("only", t["function"]["name"])]
    if "parameters" in case:
        tools = [{"function": {"name": "own", "parameters": case["parameters"]}}]
    start, end = case.get("think", (None, None))
    marks = Marks(think_start=start, think_end=end, markers=tuple(case.get("markers", ())))
    return Reading(
        marks=CHANNELS.get(case.get("channels"), marks),
        thinking=case.get("thinking", "closed"),
        tools=ToolReader(FORMATS[case["style"]], tools) if case["style"] else None,
        trim=case.get("trim", True),
    )


def read(reading: Reading, pieces: list[str], *, cut: bool = False) -> dict[str, Any]:
    """What the pieces are read as; all of their text is in some span."""
    splitter, calls, ids = Splitter(reading), [], []
    spans = [span for piece in pieces for span in splitter.push(piece)]
    spans += splitter.flush(cut=cut)
    assert "".join(span.text for span in spans) == "".join(pieces)
    assert all(span.text or span.events for span in spans)
    for event in (event for span in spans for event in span.events):
        if isinstance(event, CallStarted):
            calls.append([event.name, ""])
            ids.append(event.id)
        elif isinstance(event, CallArguments):
            calls[-1][1] += event.text
    texts = {
        kind: "".join(span.text for span in spans if span.kind == kind)
        for kind in ("content", "reasoning")
    }
    return {**texts, "calls": calls, "ids": ids}


def meant(found: dict[str, Any]) -> dict[str, Any]:
    """The same with arguments as values, which keep their types, and blanks as one space."""
    calls = [[name, repr(json.loads(arguments))] for name, arguments in found["calls"]]
    return {
        "calls": calls,
        **{kind: " ".join(found[kind].split()) for kind in ("content", "reasoning")},
    }


def wanted(case: dict[str, Any]) -> dict[str, Any]:
    return meant({**case, "calls": [[name, json.dumps(a)] for name, a in case["calls"]]})


@in_parts
def test_golden_answers_are_read_however_they_come(part: int) -> None:
    for case in GOLDEN[part::4]:
        reading, text = reading_of(case), case["text"]
        whole = read(reading, [text])
        assert meant(whole) == wanted(case), (case, whole)
        assert whole["ids"] == case.get("ids", whole["ids"]), case
        if "exact" in case:  # the white space as well
            assert (whole["content"], whole["reasoning"]) == (case["content"], case["reasoning"])
        assert read(reading, list(text)) == whole, case
        for at in range(1, len(text), 1 if ALL else 50):
            assert read(reading, [text[:at], text[at:]]) == whole, (case, at)


def test_every_format_has_a_golden_answer_as_published() -> None:
    assert {*STYLES} <= {case["style"] for case in GOLDEN if "slip" not in case}


@in_parts
def test_a_call_that_is_cut_off_never_has_less_than_before_and_shows_no_mark(part: int) -> None:
    for case in GOLDEN[part::4]:
        text, start = case["text"], case["style"] and FORMATS[case["style"]].start
        if "slip" in case or not start or not text.startswith(start):
            continue
        reading, before = reading_of(case), ""
        whole = read(reading, [text])
        for end in range(len(start), len(text), 1 if ALL else 10):
            found = read(reading, [text[:end]], cut=True)
            arguments = "".join(arguments for _, arguments in found["calls"])
            assert start.startswith(found["content"].strip()), (case, end)  # of another call
            assert arguments.startswith(before), (case, end)
            assert "".join(a for _, a in whole["calls"]).startswith(arguments), (case, end)
            before = arguments


@pytest.mark.parametrize("style", STYLES)
def test_long_strings_grow_with_the_text(style: str) -> None:
    format, long = FORMATS[style], " ".join(["word"] * 60)
    case = {"style": style, "channels": style == "harmony"}
    splitter = Splitter(reading_of(case))
    text = format.write([("bash", {"command": long})])
    grown = [
        sum(len(e.text) for span in spans for e in span.events if isinstance(e, CallArguments))
        for spans in (*map(splitter.push, text), splitter.flush())
    ]
    assert max(grown) <= HELD + 20 and sum(grown) == len(json.dumps({"command": long}))


@settings(max_examples=tries(1600))
@given(st.sampled_from(STYLES), st.text(max_size=30), SIZES)
@example("json_tools", 'Oslo\n"by" the\\fjord é😊', [1])
def test_what_a_format_writes_is_read_as_what_was_written(
    style: str, text: str, sizes: list[int]
) -> None:
    text = text.strip() if FORMATS[style].body.key else text  # between tags, blanks mean nothing
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_weather", {"city": text, "days": 3}),
        ("get_time", {}),
        ("types", {"any": {"a": [1, {"b": "}"}]}, "o": None, "b": True, "f": -1.5}),
    ]
    pieces = pieces_of(FORMATS[style].write(calls), sizes)
    found = read(reading_of({"style": style, "channels": style == "harmony"}), pieces)
    assert [(name, json.loads(arguments)) for name, arguments in found["calls"]] == calls
    assert not found["content"].replace("assistant", "")


@pytest.mark.parametrize("style", STYLES)
def test_a_mark_that_is_only_named_swallows_nothing(style: str) -> None:
    format, call = FORMATS[style], ("get_weather", {"city": "Oslo", "days": 3})
    case = {"style": style, "think": ("<think>", "</think>"), "thinking": "possible"}
    for mark in (*format.starts, *format.ends, format.end, *format.bare):
        if not mark or style == "harmony":
            continue
        mark = mark.replace("{name}", "get_weather")
        named = f"I may write {mark} later."
        said = "The answer is yes."
        text = f"<think>{named}</think>{said} {named}\n{format.write([call])}"
        reading = reading_of(case)
        whole = read(reading, [text])
        assert read(reading, list(text)) == whole
        assert whole["reasoning"] == named, (mark, whole)
        assert whole["content"].startswith(said), (mark, whole)
        assert [(name, json.loads(given)) for name, given in whole["calls"]] == [call], (
            mark,
            whole,
        )
        shown = [len(read(reading, [text[:end]], cut=True)["content"]) for end in range(len(text))]
        assert shown[text.index(said) + len(said) + 2] >= len(said) - 1  # it came at once


def test_a_strict_call_without_the_published_mark_fits_its_schema_or_is_text() -> None:
    strict = tool("get_weather", city={"type": "string"}, days={"type": "integer", "maximum": 5})
    format = FORMATS["qwen3_coder"]
    reading = Reading(tools=ToolReader(format, [strict], strict={"get_weather"}))
    for days, fits in ((3, True), (9, False)):
        call = ("get_weather", {"city": "Oslo " * 30, "days": days})
        text = format.write([call]).removeprefix("<tool_call>\n")
        found = read(reading, list(text))
        assert bool(found["calls"]) == fits and bool(found["content"]) != fits


def test_text_that_might_have_been_a_call_is_not_lost_if_the_answer_is_cut_off() -> None:
    reading = reading_of({"style": "json_tools"})
    text = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    for end in range(1, len(text) + 1):
        assert read(reading, [text[:end]], cut=True)["content"] == text[:end]


def test_in_an_answer_with_a_form_nothing_is_a_slip() -> None:
    text = '{"a": "</think> <function=get_time></function>"}'
    case = {"style": "qwen3_coder", "think": ("<think>", "</think>"), "thinking": "closed"}
    found = read(replace(reading_of(case), exact=True), list(text))
    assert found == {"content": text, "reasoning": "", "calls": [], "ids": []}


def pieces_to_mutate(case: dict[str, Any]) -> list[str]:
    if not case["style"]:
        return []
    format = FORMATS[case["style"]]
    return [mark for mark in (*format.starts, format.end, *format.ends, *format.bare) if mark]


@pytest.mark.parametrize("seed", range(tries(64)))
def test_whatever_a_model_slips_nothing_is_lost_and_arguments_are_json(seed: int) -> None:
    random = Random(seed)
    for case in GOLDEN:
        text = case["text"]
        marks = [*pieces_to_mutate(case), *case.get("think", ())]
        for _ in range(random.randint(1, 2)):
            at, to = sorted(random.choices(range(len(text) + 1), k=2))
            mark = random.choice(marks or ["<"])
            text = random.choice(
                [
                    text[:at] + text[min(to, at + 3) :],
                    text[:at] + mark + text[at:],
                    text.replace(mark, "", 1),
                    text.replace(mark, mark * 2, 1),
                    text.replace("Oslo", f"a {mark}{'x' * random.choice((1, 90))} b", 1),
                    text[:to],
                    text + text[at:],
                ]
            )
        thinking: Any = random.choice(("open", "possible", "closed"))
        trim, cut = random.random() < 0.5, random.random() < 0.3
        reading = replace(reading_of(case), thinking=thinking, trim=trim)
        whole = read(reading, [text], cut=cut)
        sizes = [random.randint(1, 9) for _ in range(4)]
        assert read(reading, pieces_of(text, sizes), cut=cut) == whole, (case, text)
        if cut:
            continue  # the arguments may be cut, too
        for _, arguments in whole["calls"]:
            assert isinstance(json.loads(arguments), dict), (case, text)


@pytest.mark.parametrize("style", ["", "json_tools"])
def test_of_endless_white_space_only_the_end_waits_for_a_mark(style: str) -> None:
    case = {"style": style, "think": ("<think>", "</think>"), "thinking": "possible"}
    call = FORMATS["json_tools"].write([("get_time", {})])
    for space in (" ", "\n", " \n"):
        splitter, come, text = Splitter(reading_of(case)), 0, f"Hm.{space * 500}"
        for i, character in enumerate(text, 1):
            come += sum(len(span.text) for span in splitter.push(character))
            assert come >= i - 65
        for rest in ("", "So", "</think>\n\nSo", "<think>Hm.</think>So", call):
            for whole in (text + rest, text[3:] + rest):
                assert read(reading_of(case), list(whole)) == read(reading_of(case), [whole])


# ---- a time that is linear in the text, in operations and in characters -------------------------


MAKE = values.compiled.__wrapped__
TWO = ["json_tools", "qwen3_coder"]
"""By default, each with a sixth of the texts; with --all, all styles with half."""
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


def texts(style: str, size: int) -> dict[str, str]:
    """What a model that has lost its way may write for ever, and calls with a long value."""
    format = FORMATS[style]
    start = format.start or next(iter(format.also), "")
    whole = format.write([("bash", {"command": "ls"})])
    within = format.write([("types", {"any": {"a": ["ls"]}})])
    repeated = {
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
    values = {
        "words": "ab c\n",
        "quotes": "echo \"x\" 'y' \\ { [ ( } ] ), ",
        "tags": "</parameter> <arg_key>a</arg_key> </function> ",
        "marks": f"{format.start} {format.end} ",
        "blanks": "    ",
    }
    found = {name: text * (size // len(text)) for name, text in repeated.items()}
    for name, text in values.items():
        long = text * (size // len(text))
        found[f"{name} in a text"] = format.write([("bash", {"command": long})])
        if name == "quotes":
            found["quotes in a list"] = format.write([("types", {"any": [long]})])
    return found


@pytest.mark.parametrize("style", STYLES if ALL else TWO)
def test_twice_the_text_is_twice_the_work(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = texts(style, SIZE), texts(style, SIZE * 2)
    first, every = (list(STYLES).index(style) % 2, 2) if ALL else (TWO.index(style), 6)
    for name in list(once)[first::every]:
        one, two = (work(style, text[name], 64, monkeypatch) for text in (once, twice))
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
