"""The events of a chat answer, which every API and the terminal render.

    Reasoning Text Mark                   in any order and number
    CallStarted CallArguments* CallEnded  a call; without CallEnded it was cut off
    Retracted                             takes back the end of the preceding events
    Ended                                 once, as the last

Invariant: once adjacent events of a kind are joined, they do not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol, TypeAlias

EndReason: TypeAlias = Literal["stop", "length", "calls", "filter", "cancelled"]


class Usage(Protocol):
    """Token counts of an answer, like the engine's ``Usage``."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark between parts, with the white space around it: a terminal shows it, APIs do not."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool call begins; its ``id`` is unique."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More JSON text of the arguments of the call that started last."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments are complete."""


Shown: TypeAlias = Reasoning | Text | Mark | CallStarted | CallArguments | CallEnded
WITH_TEXT = (Reasoning, Text, Mark, CallArguments)


@dataclass(frozen=True, slots=True)
class Retracted:
    """Takes back ``event``: the last event not yet taken back, or the end of its text."""

    event: Shown


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over.

    The reason ``calls`` means that the model waits for the results of its calls. ``stop`` is the
    stop string, or the stop tokens, of the request that ended the answer. ``reasoning_tokens``
    counts the reasoning among the tokens of ``usage``.
    """

    reason: EndReason
    usage: Usage
    reasoning_tokens: int = 0
    stop: str | tuple[int, ...] | None = None


ChatEvent: TypeAlias = Shown | Retracted | Ended


def joined(events: Sequence[Shown]) -> Sequence[Shown]:
    """The events, with adjacent ones of the same kind joined."""
    if len(events) < 2:
        return events
    together: list[Shown] = []
    for kind, same in groupby(events, type):
        if issubclass(kind, WITH_TEXT):
            together.append(
                kind("".join([event.text for event in same if isinstance(event, kind)]))
            )
        else:
            together.extend(same)
    return together
