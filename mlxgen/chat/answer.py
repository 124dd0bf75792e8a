"""Turns the chunks of a generation into the events of a chat.

The splitter cuts each chunk into spans. From these come events for what is new in each part of the
answer and for what is taken back, without the beginning that the client supplied. Invariant: apart
from retractions, the events do not depend on how long chunks hold their text back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from .events import (
    WITH_TEXT,
    CallEnded,
    CallStarted,
    ChatEvent,
    Ended,
    EndReason,
    Mark,
    Reasoning,
    Retracted,
    Shown,
    Text,
    Usage,
    joined,
)
from .marks import Reading
from .splitter import Span, Splitter

FinishReason: TypeAlias = Literal["stop", "length", "filter", "cancelled"]

_OF_KIND: dict[str, type[Reasoning | Text | Mark]] = {
    "reasoning": Reasoning,
    "content": Text,
    "mark": Mark,
}


class Chunk(Protocol):
    """A generated token and the text that became safe with it, like the engine's ``Chunk``."""

    @property
    def text(self) -> str: ...
    @property
    def token(self) -> int | None: ...
    @property
    def index(self) -> int: ...
    @property
    def retract(self) -> int: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def stop(self) -> str | tuple[int, ...] | None: ...


class AnswerReader:
    """Chunks in, events out. ``name_call`` makes the id of a call from its number, from 0."""

    def __init__(
        self, reading: Reading, name_call: Callable[[int], str] = "call_{}".format
    ) -> None:
        self._reading = reading
        self._name_call = name_call
        self._splitter = Splitter(reading, name_call)
        self._texts: list[str] = []
        self._thoughts = bytearray()  # for each token, whether it is reasoning
        self._first = 0  # index of the first token in _thoughts
        self._begun: list[Shown] = self._read_given() if reading.given else []
        self._given = self._splitter.calls - bool(self._begun)  # calls that the client completed

    def _read_given(self) -> list[Shown]:
        """The events of the call that the client's beginning leaves open, as far as it goes: all of
        the call if only its end mark is missing."""
        given, tools = self._reading.given, self._reading.tools
        events: list[Shown] = []  # of the last call
        end = 0
        for span in self._splitter.push(given):
            for event in span.events:
                events = [event] if isinstance(event, CallStarted) else [*events, event]
            end = span.start + len(span.text) if span.kind == "call" else end
        if tools is None or not events:
            return []
        rest, mark = given[end:].strip(), tools.format.end
        if isinstance(events[-1], CallEnded) and (rest == mark or not mark.startswith(rest)):
            return []
        return [*joined(events)]

    @property
    def reasoning_tokens(self) -> int:
        """The number of reasoning tokens."""
        return sum(self._thoughts)

    def push(
        self, chunk: Chunk, usage: Usage | None = None
    ) -> tuple[Sequence[ChatEvent], Sequence[Span]]:
        """Take a chunk; the last one comes with the ``usage`` of the whole generation.

        Returns the events, and the spans of text from which they were made.
        """
        finish, text = chunk.finish_reason, chunk.text
        if chunk.retract:
            back = self._take_back(chunk.retract)
            del self._thoughts[max(0, chunk.index - self._first) :]
        thought = self._splitter.thinking
        shown, spans = self._read(text, finish)
        if chunk.token is not None:
            if not self._thoughts:
                self._first = chunk.index
            self._thoughts.append(thought or self._splitter.thinking)
        events: Sequence[ChatEvent] = shown
        if chunk.retract:
            events = [*back, *events]
        if finish is not None:
            assert usage is not None
            called = self._splitter.calls > self._given and not self._splitter.is_unfinished
            reason: EndReason = "calls" if called and finish != "length" else finish
            events = [*events, Ended(reason, usage, self.reasoning_tokens, chunk.stop)]
        return events, spans

    def cancel(self, usage: Usage) -> Sequence[ChatEvent]:
        """End the answer here, although the generation has not ended."""
        shown, _ = self._read("", "cancelled")
        return [*shown, Ended("cancelled", usage, self.reasoning_tokens)]

    def _read(
        self, text: str, finish: FinishReason | None = None
    ) -> tuple[list[Shown], list[Span]]:
        self._texts.append(text)
        spans = self._splitter.push(text)
        if finish is not None:
            spans += self._splitter.flush(cut=finish in ("length", "cancelled"))
        events, self._begun = self._begun, []
        given = len(self._reading.given)
        for span in spans:
            text = span.text[max(0, given - span.start) :]
            if span.kind == "call":
                events += span.events
            elif text:
                events.append(_OF_KIND[span.kind](text))
        return events, spans

    def _take_back(self, count: int) -> list[Retracted]:
        """Read the kept text again, and take back the events that it no longer yields.

        What is certain about a text stays certain whatever follows: the events of a prefix are a
        prefix of the events.
        """
        text = "".join(self._texts)
        old, new = (AnswerReader(self._reading, self._name_call) for _ in range(2))
        before = joined(old._read(text)[0])
        after = joined(new._read(text[: len(text) - count])[0])
        self._splitter, self._texts, self._given = new._splitter, new._texts, new._given
        gone: list[Retracted] = []
        for i in reversed(range(len(before))):
            event, kept = before[i], after[i] if i < len(after) else None
            if kept == event:
                break
            if kept is not None:  # only its end is gone
                assert isinstance(event, WITH_TEXT) and isinstance(kept, WITH_TEXT)
                event = type(event)(event.text[len(kept.text) :])
            gone.append(Retracted(event))
        return gone
