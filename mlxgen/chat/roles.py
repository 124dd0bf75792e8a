"""Conversations that a template refuses, told in roles that every template knows.

Many templates take instructions only as the first message, some take none, some know no tools, and
some want user and assistant in turn. What was said stays in its place: a prompt that grows keeps
its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TypeAlias

from .template.pictures import is_image
from .template.values import REASONING

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Content: TypeAlias = str | Sequence[Any]

_INSTRUCTIONS = ("system", "developer")


def retold(messages: Messages) -> Iterator[Messages]:
    """Other ways to tell it, the closest first: instructions after the first message as the user's,
    then all of them; the same with one call at a time, and with what was said before a call as a
    thought; and then calls and their results as text. Before all that, images that a tool returned
    as the user's."""
    if any(map(_shows, messages)):
        messages = _handed_on(messages)
        yield messages
    yield from _in_other_roles(messages)
    singly = _singly(messages)
    if singly != list(messages):
        yield singly
        yield from _in_other_roles(singly)
    spelled = without_calls(messages)
    if spelled is not messages:
        yield spelled
        yield from _in_other_roles(spelled)


def without_calls(messages: Messages) -> Messages:
    """The same with calls and their results as text, if there are any."""
    if not any(message.get("role") == "tool" or message.get("tool_calls") for message in messages):
        return messages
    spelled = [_spelled(message) for message in _handed_on(messages)]
    return _told(spelled, keep=len(spelled))


def _in_other_roles(messages: Messages) -> Iterator[Messages]:
    later = [m.get("role") in _INSTRUCTIONS for m in messages[1:]]
    if any(later) or _repeats(messages):
        yield _told(messages, keep=1)
    if messages and messages[0].get("role") in _INSTRUCTIONS:
        yield _told(messages, keep=0)


def _spelled(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without calls: what it called is its text, and a result is the user's."""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"Result: {message.get('content')}"}
    calls = message.get("tool_calls") or ()
    if not calls:
        return message
    said = [message["content"]] if message.get("content") else []
    lines = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join([*said, *lines])}


def _told(messages: Messages, keep: int) -> Messages:
    """All but the first ``keep`` instructions as the user's; neighbours of the user are one."""
    told: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if role in _INSTRUCTIONS and i >= keep:
            role = "user"
        if role == "user" and told and told[-1]["role"] == "user":
            told[-1]["content"] = joined(told[-1]["content"], message["content"], between="\n\n")
        else:
            told.append({**message, "role": role})
    return told


def _singly(messages: Messages) -> list[Mapping[str, Any]]:
    """Each call in a message of its own, and its results after it."""
    told: list[Mapping[str, Any]] = []
    waiting: dict[Any, list[Mapping[str, Any]]] = {}  # by its id, a call and its results so far
    for message in messages:
        if message.get("role") == "tool" and message.get("tool_call_id") in waiting:
            waiting[message["tool_call_id"]].append(message)
            continue
        told += chain.from_iterable(waiting.values())
        waiting = {}
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            told.append(message)
            continue
        said = _as_thoughts(message)
        for i, call in enumerate(calls):
            id = call.get("id") if isinstance(call, Mapping) else None
            one = {**said, "tool_calls": [call]}
            waiting[i if id is None or id in waiting else id] = [one]
            said = {"role": message.get("role"), "content": ""}
    return [*told, *chain.from_iterable(waiting.values())]


def _as_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with calls; if it has thoughts and text, the text is the last of the thoughts."""
    thoughts = next((message[name] for name in REASONING if message.get(name)), None)
    if not thoughts or not message.get("content"):
        return message
    rest = {key: value for key, value in message.items() if key not in REASONING}
    return {**rest, "content": "", REASONING[0]: f"{thoughts}\n\n{message['content']}"}


def joined(one: Content, other: Content, between: str = "\n") -> Content:
    """Two contents as one: a string, or parts if either has some."""
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}{between}{other}"
    parts = [
        [{"type": "text", "text": each}] if isinstance(each, str) else list(each)
        for each in (one, other)
    ]
    return [*parts[0], *parts[1]]


def _shows(message: Mapping[str, Any]) -> bool:
    """Whether a tool returned an image."""
    return message.get("role") == "tool" and not isinstance(message.get("content"), str)


def _handed_on(messages: Messages) -> Messages:
    """The images that tools returned in messages of the user, after the results of all tools."""
    told: list[Mapping[str, Any]] = []
    images: list[Any] = []
    for message in [*messages, {}]:
        role = message.get("role")
        if images and role != "tool":
            told.append({"role": "user", "content": images})
            images = []
        if _shows(message):
            parts = message.get("content") or ()
            images += [part for part in parts if is_image(part)]
            texts = [part.get("text", "") for part in parts if not is_image(part)]
            message = {**message, "content": "\n".join(texts)}
        if message:
            told.append(message)
    return told


def _repeats(messages: Messages) -> bool:
    roles = [message.get("role") for message in messages]
    return any(a == b == "user" for a, b in pairwise(roles))
