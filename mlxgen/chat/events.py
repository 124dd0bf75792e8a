"""What a model writes in a chat: the events that every API and the terminal render.

    Reasoning Text Mark                   in any order and number
    CallStarted CallArguments* CallEnded  a call; without CallEnded it was cut off
    Retracted                             the end of what came before is taken back
    Ended                                 once, as the last

Invariant: if neighbours of the same kind are joined, events do not depend on how the text came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol, TypeAlias

EndReason: TypeAlias = Literal["stop", "length", "calls", "filter", "cancelled"]


class Usage(Protocol):
    """The tokens of an answer, as in the engine's ``Usage``."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark between the parts, with white space around it: no API shows it, a terminal does."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of a tool; no other call has its ``id``."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that started last, as JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments are complete."""


Shown: TypeAlias = Reasoning | Text | Mark | CallStarted | CallArguments | CallEnded
WITH_TEXT = (Reasoning, Text, Mark, CallArguments)


@dataclass(frozen=True, slots=True)
class Retracted:
    """The last event that stands, or the end of its text, is taken back: ``event``."""

    event: Shown


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over.

    The reason ``calls`` means that the model waits for the results of its calls. ``stop`` is the
    text or the tokens of the request that ended it. ``reasoning_tokens`` counts the thoughts
    among the tokens of ``usage``.
    """

    reason: EndReason
    usage: Usage
    reasoning_tokens: int = 0
    stop: str | tuple[int, ...] | None = None


ChatEvent: TypeAlias = Shown | Retracted | Ended


def joined(events: Sequence[Shown]) -> Sequence[Shown]:
    """The events, with neighbours of the same kind joined."""
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
