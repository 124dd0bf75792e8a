"""From the chunks of a generation to the events of a chat.

Each chunk goes through the splitter; then its events say what is new in each part of the answer and
what is taken back, without what the client itself gave. Invariant: apart from what is taken back,
the events do not depend on how chunks hold their text back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from .calls.call import ToolCall
from .events import (
    WITH_TEXT,
    CallArguments,
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
from .splitter import Reading, Span, Splitter

FinishReason: TypeAlias = Literal["stop", "length", "filter", "cancelled"]

_OF_KIND: dict[str, type[Reasoning | Text | Mark]] = {
    "reasoning": Reasoning,
    "content": Text,
    "mark": Mark,
}


class Chunk(Protocol):
    """A token of a generation and the text that became safe with it, as the engine's ``Chunk``."""

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
    """Chunks in, events out. ``name_call`` gives the id of a call by its number, from 0."""

    def __init__(
        self, reading: Reading, name_call: Callable[[int], str] = "call_{}".format
    ) -> None:
        self._reading = reading
        self._name_call = name_call
        self._splitter = Splitter(reading)
        self._calls = 0  # started so far
        self._texts: list[str] = []
        self._thoughts = bytearray()  # for each token, whether it was a thought
        self._first = 0  # the index of the first of these tokens
        self._begun = self._read_given() if reading.given else []

    def _read_given(self) -> list[Shown]:
        """The call that the client's beginning leaves open, as far as it goes: all of it if only
        its end mark is missing."""
        spans, tools = self._splitter.push(self._reading.given), self._reading.tools
        first = max((i for i, span in enumerate(spans) if span.calls), default=len(spans))
        if tools is None or first == len(spans):
            return []
        last = max(i for i, span in enumerate(spans) if span.kind == "call")
        ended = any(span.ended for span in spans[first:])
        rest = self._reading.given[spans[last].start + len(spans[last].text) :].strip()
        end = tools.format.end
        if ended and (rest == end or not end.startswith(rest)):
            return []
        more = "".join(span.more for span in spans[first:])
        begun: list[Shown] = [self._started(spans[first].calls[-1]), CallArguments(more)]
        return [*begun, CallEnded()] if ended else begun

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens were thoughts."""
        return sum(self._thoughts)

    def push(
        self, chunk: Chunk, usage: Usage | None = None
    ) -> tuple[Sequence[ChatEvent], Sequence[Span]]:
        """Takes a chunk; the last one comes with the ``usage`` of all of them.

        Returns the events, and the spans of the text from which they were made.
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
            ended = Ended(self._reason(finish), usage, self.reasoning_tokens, chunk.stop)
            events = [*events, ended]
        return events, spans

    def cancel(self, usage: Usage) -> Sequence[ChatEvent]:
        """Ends the answer here, although the generation has not ended."""
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
            if span.kind != "call":
                known = given - span.start
                if known <= 0:
                    events.append(_OF_KIND[span.kind](span.text))
                elif known < len(span.text):
                    events.append(_OF_KIND[span.kind](span.text[known:]))
                continue
            events += map(self._started, span.calls)
            if span.more:
                events.append(CallArguments(span.more))
            if span.ended:
                events.append(CallEnded())
        return events, spans

    def _started(self, call: ToolCall) -> CallStarted:
        number, self._calls = self._calls, self._calls + 1
        return CallStarted(call.id or self._name_call(number), call.name)

    def _reason(self, reason: FinishReason) -> EndReason:
        calls = self._calls and not self._splitter.is_unfinished
        return "calls" if calls and reason != "length" else reason

    def _take_back(self, count: int) -> list[Retracted]:
        """Reads what is kept again, and takes back the events that it no longer gives.

        What is certain about a text stays certain whatever follows: the events of its beginning
        are the beginning of its events.
        """
        text = "".join(self._texts)
        old, new = (AnswerReader(self._reading, self._name_call) for _ in range(2))
        before = joined(old._read(text)[0])
        after = joined(new._read(text[: len(text) - count])[0])
        self._splitter, self._calls, self._texts = new._splitter, new._calls, new._texts
        gone: list[Retracted] = []
        for i in reversed(range(len(before))):
            kept = after[i] if i < len(after) else None
            if kept == before[i]:
                break
            gone.append(Retracted(_end_of(before[i], kept)))
        return gone


def _end_of(event: Shown, kept: Shown | None) -> Shown:
    """The rest of an event, after the part that is kept."""
    if kept is None:
        return event
    assert isinstance(event, WITH_TEXT) and isinstance(kept, WITH_TEXT)
    return type(event)(event.text[len(kept.text) :])
