"""Conversations that a template refuses, told in roles that every template knows.

Many templates take instructions only as the first message, some take none, and some want user and
assistant in turn. What was said stays in its place: a prompt that grows keeps its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

Messages: TypeAlias = Sequence[Mapping[str, Any]]

_INSTRUCTIONS = ("system", "developer")


def retold(messages: Messages) -> Iterator[Messages]:
    """Other ways to tell it, the closest first: instructions after the first message as the user's,
    then all of them."""
    later = [m.get("role") in _INSTRUCTIONS for m in messages[1:]]
    if any(later) or _repeats(messages):
        yield _told(messages, keep=1)
    if messages and messages[0].get("role") in _INSTRUCTIONS:
        yield _told(messages, keep=0)


def _told(messages: Messages, keep: int) -> Messages:
    """All but the first ``keep`` instructions as the user's; neighbours of the user are one."""
    told: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if role in _INSTRUCTIONS and i >= keep:
            role = "user"
        if role == "user" and told and told[-1]["role"] == "user":
            told[-1]["content"] = f"{told[-1]['content']}\n\n{message['content']}"
        else:
            told.append({**message, "role": role})
    return told


def _repeats(messages: Messages) -> bool:
    roles = [message.get("role") for message in messages]
    return any(a == b == "user" for a, b in pairwise(roles))
