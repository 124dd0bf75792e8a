"""An answer is cut into events once, however its text comes, and whatever is taken back."""

from __future__ import annotations

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
    Text,
)
from mlxgen.chat.marks import Marks, Reading
from mlxgen.engine import Chunk, FinishReason, Usage

from ..effort import tries
from .kit import SIZES, chunks, events_of, pieces_of, said_in, tool

TOOLS = [tool("look"), tool("leave")]
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "leave", "arguments": {"city": "R\\u00f8st"}}</tool_call>'
LOOKED = [CallStarted("call-0", "look"), CallArguments('{"city": "Oslo"}'), CallEnded()]
LEFT = [CallStarted("call-1", "leave"), CallArguments('{"city": "Røst"}'), CallEnded()]


def reading(given: str = "", *, most: int | None = None, thinks: bool = True) -> Reading:
    return Reading(
        marks=Marks(think_start="<think>", think_end="</think>") if thinks else Marks(),
        thinking="possible" if thinks else "closed",
        tools=ToolReader(FORMATS["json_tools"], TOOLS, most=most),
        given=given,
    )


def events(text: str, reading: Reading, finish: FinishReason = "stop") -> list[ChatEvent]:
    """The events of a text that comes at once."""
    return events_of(chunks([text], finish), reading)


def test_thoughts_text_and_calls_are_events() -> None:
    text = f"<think>\nWell. </think>\n\nI look.\n{CALL}{OTHER}"
    found = events_of(chunks(list(text)), reading())
    assert said_in(found) == [Reasoning("Well."), Text("I look."), *LOOKED, *LEFT]
    assert isinstance(ended := found[-1], Ended) and ended.reason == "calls"
    assert ended.reasoning_tokens == len(">\nWell. </think>")  # with the last of the mark it is one


def test_a_name_that_two_tools_could_mean_is_no_call() -> None:
    tools = ToolReader(FORMATS["json_tools"], [tool("look_up"), tool("look-up")])
    for name, known in (("look-up", True), ("look.up", False), ("functions.look_up", True)):
        found = events(CALL.replace('"look"', f'"{name}"'), Reading(tools=tools))
        assert any(isinstance(event, CallStarted) for event in found) == known, name


@pytest.mark.parametrize("pieces", [[CALL + OTHER], list(CALL + OTHER)])
def test_calls_beyond_the_limit_give_no_events_and_end_no_other_call(pieces: list[str]) -> None:
    assert said_in(events_of(chunks(pieces), reading(most=1))) == LOOKED


def test_the_end_says_why_and_has_the_usage() -> None:
    finish: FinishReason
    for text, finish, reason in (
        ("Hi", "stop", "stop"),
        ("Hi", "length", "length"),
        ("Hi", "filter", "filter"),
        (CALL, "stop", "calls"),
        (CALL, "length", "length"),
        (CALL[: CALL.index('lo"}')], "length", "length"),
    ):
        *before, ended = events(text, reading(), finish)
        assert isinstance(ended, Ended) and ended.reason == reason
        assert (CallEnded() in before) == (text == CALL)
    usage = Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=1)
    chunk = Chunk("Hi", 7, 0, finish_reason="stop", stop="\n")
    ended = AnswerReader(reading()).push(chunk, usage)[0][-1]
    assert ended == Ended("stop", usage, 0, "\n")


def test_an_answer_may_be_cancelled() -> None:
    reader = AnswerReader(reading())
    reader.push(Chunk("Hi <too", 7, 0))
    *before, ended = reader.cancel(Usage())
    assert before == [Text(" <too")] and isinstance(ended, Ended) and ended.reason == "cancelled"


def test_a_call_that_the_client_began_starts_again_with_all_its_arguments() -> None:
    for end in range(CALL.index('{"city'), len(CALL)):
        assert said_in(events(CALL[end:], reading(CALL[:end]))) == LOOKED, end


@pytest.mark.parametrize("text", ["I say: ", CALL, f"{CALL}\n", f"I look. {CALL}"])
def test_what_the_client_gave_whole_is_no_event_of_the_answer(text: str) -> None:
    found = events_of(chunks(["Well."]), reading(text, thinks=False))
    assert said_in(found) == [Text("Well.")]
    assert isinstance(ended := found[-1], Ended) and ended.reason == "stop"


def test_thoughts_that_are_taken_back_are_not_counted() -> None:
    reader = AnswerReader(reading())
    for index, piece in enumerate(("<think>", "a", "b")):
        reader.push(Chunk(piece, 7, index))
    assert reader.reasoning_tokens == 3
    taken = reader.push(Chunk("c", 7, 1, retract=2))[0]
    assert taken == [Retracted(Reasoning("ab")), Reasoning("c")]
    assert reader.reasoning_tokens == 2


WORDS = st.sampled_from(
    ["<think>", "</think>", CALL, OTHER, CALL[:40], " ", "\n", "so", "<", "</", "{", "<tool_call>"]
)
TEXTS = st.lists(WORDS, max_size=7).map("".join)


@settings(max_examples=tries(400))
@given(
    TEXTS,
    st.lists(st.tuples(st.integers(0, 60), TEXTS), max_size=4),
    SIZES,
    st.sampled_from(["stop", "length"]),
)
def test_what_is_taken_back_leaves_the_events_of_what_is_kept_however_it_came(
    text: str, changes: list[tuple[int, str]], sizes: list[int], finish: FinishReason
) -> None:
    made, kept = chunks(pieces_of(text, sizes), None), text
    for count, more in changes:
        count = min(count, len(kept))
        kept = kept[: len(kept) - count] + more
        made.append(Chunk(more, 7, len(made), retract=count))
    made += chunks([], finish)
    assert events_of(made, reading())[:-1] == events(kept, reading(), finish)[:-1]
    assert not any(isinstance(event, Mark) for event in said_in(events_of(made, reading())))
