"""An answer is cut into events once, however its text comes, and whatever is taken back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.chat.answer import AnswerReader
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.calls.reader import ToolReader
from mlxgen.chat.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ChatEvent,
    Ended,
    Mark,
    Reasoning,
    Retracted,
    Shown,
    Text,
    joined,
)
from mlxgen.chat.splitter import Marks, Reading
from mlxgen.engine import Chunk, FinishReason, Usage

from ..effort import tries
from .kit import SIZES, pieces_of, tool

FORMAT = FORMATS["json_tools"]
TOOLS = [tool("look"), tool("leave")]
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "leave", "arguments": {"city": "R\\u00f8st"}}</tool_call>'


def reading(
    given: str = "", *, most: int | None = None, thinks: bool = True, tools: bool = True
) -> Reading:
    return Reading(
        marks=Marks(think_start="<think>", think_end="</think>") if thinks else Marks(),
        thinking="possible" if thinks else "closed",
        tools=ToolReader(FORMAT, TOOLS, most=most) if tools else None,
        given=given,
    )


def chunks(pieces: Sequence[str], finish: FinishReason | None = "stop") -> list[Chunk]:
    """A token for each piece, and the last one with the reason."""
    made = [Chunk(piece, 7, index) for index, piece in enumerate(pieces)]
    return made if finish is None else [*made, Chunk("", 7, len(made), finish_reason=finish)]


def events_of(chunks: Iterable[Chunk], reading: Reading) -> list[ChatEvent]:
    reader = AnswerReader(reading, "call-{}".format)
    return [event for chunk in chunks for event in reader.push(chunk, Usage())[0]]


def standing(events: Iterable[ChatEvent]) -> list[ChatEvent]:
    """What is left once all was taken back that was, and the end; neighbours of a kind as one."""
    left: list[Shown] = []
    *events, ended = events
    for event in events:
        if not isinstance(event, Retracted):
            assert not isinstance(event, Ended)
            left = [*joined([*left, event])]
        elif (last := left.pop()) != (back := event.event):
            assert isinstance(last, Reasoning | Text | Mark | CallArguments)
            assert type(back) is type(last) and last.text.endswith(back.text)
            left.append(type(last)(last.text[: len(last.text) - len(back.text)]))
    return [*left, ended]


def shown(text: str, reading: Reading, finish: FinishReason = "stop") -> list[ChatEvent]:
    """The events of a text that comes at once, without the end."""
    *events, ended = standing(events_of(chunks([text], finish), reading))
    assert isinstance(ended, Ended)
    return events


def test_thoughts_text_and_calls_are_events() -> None:
    text = f"<think>\nWell. </think>\n\nI look.\n{CALL}{OTHER}"
    events = standing(events_of(chunks(list(text)), reading()))
    ended = events.pop()
    assert [event for event in events if not isinstance(event, Mark)] == [
        Reasoning("Well."),
        Text("I look."),
        CallStarted("call-0", "look"),
        CallArguments('{"city": "Oslo"}'),
        CallEnded(),
        CallStarted("call-1", "leave"),
        CallArguments('{"city": "Røst"}'),
        CallEnded(),
    ]
    assert isinstance(ended, Ended) and ended.reason == "calls"
    assert ended.reasoning_tokens == len(">\nWell. </think>")  # with the last of the mark it is one


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("Hi", "stop", "stop"),
        ("Hi", "length", "length"),
        ("Hi", "filter", "filter"),
        (CALL, "stop", "calls"),
        (CALL, "length", "length"),
        (CALL[:-25], "length", "length"),
    ],
)
def test_the_end_says_why(text: str, finish: FinishReason, reason: str) -> None:
    ended = events_of(chunks([text], finish), reading())[-1]
    assert isinstance(ended, Ended) and ended.reason == reason


def test_the_end_has_the_usage_and_what_stopped_it() -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=1)
    chunk = Chunk("Hi", 7, 0, finish_reason="stop", stop="\n")
    ended = AnswerReader(reading()).push(chunk, usage)[0][-1]
    assert ended == Ended("stop", usage, 0, "\n")


def test_a_call_that_is_cut_off_does_not_end() -> None:
    events = shown(CALL[: CALL.index('lo"}')], reading(), "length")
    assert events[-1] == CallArguments('{"city": "Os')
    assert CallEnded() not in events


def test_calls_beyond_the_limit_give_no_events_and_end_no_other_call() -> None:
    for pieces in ([CALL + OTHER], list(CALL + OTHER)):
        events = standing(events_of(chunks(pieces), reading(most=1)))
        assert [event for event in events if not isinstance(event, Mark)][:-1] == [
            CallStarted("call-0", "look"),
            CallArguments('{"city": "Oslo"}'),
            CallEnded(),
        ]


def test_what_the_client_gave_is_not_an_event() -> None:
    events = shown("Oslo is cold.", reading("I say: ", thinks=False))
    assert events == [Text("Oslo is cold.")]


@pytest.mark.parametrize("end", range(CALL.index('{"city'), len(CALL)))
def test_a_call_that_the_client_began_starts_again_with_all_its_arguments(end: int) -> None:
    whole = shown(CALL, reading())
    assert shown(CALL[end:], reading(CALL[:end])) == [e for e in whole if not isinstance(e, Mark)]


@pytest.mark.parametrize("text", [CALL, f"{CALL}\n", f"I look. {CALL}"])
def test_a_call_that_the_client_gave_whole_is_no_call_of_the_answer(text: str) -> None:
    *events, ended = standing(events_of(chunks(["Well."]), reading(text, thinks=False)))
    assert isinstance(ended, Ended) and ended.reason == "stop"
    assert [event for event in events if not isinstance(event, Mark)] == [Text("Well.")]


def test_an_answer_may_be_cancelled() -> None:
    reader = AnswerReader(reading())
    reader.push(Chunk("Hi <too", 7, 0))
    *events, ended = reader.cancel(Usage())
    assert events == [Text(" <too")] and isinstance(ended, Ended) and ended.reason == "cancelled"


WORDS = st.sampled_from(
    ["<think>", "</think>", CALL, OTHER, CALL[:40], " ", "\n", "so", "<", "</", "{", "<tool_call>"]
)
TEXTS = st.lists(WORDS, max_size=7).map("".join)


@settings(max_examples=tries(200))
@given(TEXTS, SIZES, st.sampled_from(["stop", "length"]))
def test_events_do_not_depend_on_how_the_text_comes(
    text: str, sizes: list[int], finish: FinishReason
) -> None:
    *events, ended = standing(events_of(chunks(pieces_of(text, sizes), finish), reading()))
    assert isinstance(ended, Ended)
    assert events == shown(text, reading(), finish)


@settings(max_examples=tries(200))
@given(TEXTS, st.lists(st.tuples(st.integers(0, 60), TEXTS), max_size=4), SIZES)
def test_what_is_taken_back_leaves_the_events_of_what_is_kept(
    text: str, changes: list[tuple[int, str]], sizes: list[int]
) -> None:
    made, kept = chunks(pieces_of(text, sizes), None), text
    for count, more in changes:
        count = min(count, len(kept))
        kept = kept[: len(kept) - count] + more
        made.append(Chunk(more, 7, len(made), retract=count))
    made += chunks([])
    *events, ended = standing(events_of(made, reading()))
    assert isinstance(ended, Ended)
    assert events == shown(kept, reading())


def test_thoughts_that_are_taken_back_are_not_counted() -> None:
    reader = AnswerReader(reading())
    for index, piece in enumerate(("<think>", "a", "b")):
        reader.push(Chunk(piece, 7, index))
    assert reader.reasoning_tokens == 3
    assert reader.push(Chunk("c", 7, 1, retract=2))[0] == [
        Retracted(Reasoning("ab")),
        Reasoning("c"),
    ]
    assert reader.reasoning_tokens == 2


def test_events_without_marks_and_calls_are_the_text() -> None:
    events: list[Shown] = [Text("a <think> b")]
    assert shown("a <think> b", reading(thinks=False, tools=False)) == events
