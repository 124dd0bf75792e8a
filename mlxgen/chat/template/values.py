"""Plain copies of what callers pass to a chat: messages, tools and variables.

Invariant: a copy contains only strings, numbers, booleans, None, lists and dictionaries, whatever
it was made of.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any, TypeAlias

from ...errors import OptionError, PromptError

Values: TypeAlias = dict[str, Any]

ROLES = frozenset(
    (
        *("system", "developer", "user", "assistant", "tool", "function"),
        *("ipython", "environment", "observation", "model"),
    )
)
"""Roles that templates may write as part of a token, as in ``<|user|>``; any other is text."""

REASONING = ("reasoning_content", "thinking", "reasoning")  # three names of one part of a message


class Arguments(dict[str, Any]):
    """The arguments of a call: an object to a template that takes it apart, and JSON text to one
    that prints it or joins it with other text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


class Unsaid(str):
    """The content of a message that has only calls: "", but ``none`` to a template that asks."""

    __slots__ = ()


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Values]:
    """Copies of the messages as plain values, without nulls, as transformers does it. PromptError
    for what no template takes, since a template's own error would not explain it."""
    copies: list[Values] = []
    for i, message in enumerate(messages):
        at, role, content = f"messages[{i}]", message.get("role"), message.get("content")
        if not isinstance(role, str):
            got = "none" if role is None else type(role).__name__
            raise PromptError(f"{at}.role: expected a role such as 'user', got {got}")
        if content is None and role in ("user", "system"):
            raise PromptError(f"{at}.content: expected text, got none; add a 'content'")
        if isinstance(content, (bool, int, float)):
            raise PromptError(f"{at}.content: expected text, got {type(content).__name__}")
        copy: Values = {}
        for key, value in message.items():
            if value is not None:
                copy[str(key)] = _plain(value, f"{at}.{key}")
        copies.append(copy)
    return copies


def for_templates(messages: Sequence[Mapping[str, Any]]) -> list[Values]:
    """Plain messages as templates want them: reasoning under all of its names, arguments that can
    also serve as text, no content for a message of calls only, and the tools' names in results."""
    told, called = [], {}
    for message in messages:
        copy = dict(message)
        for name in REASONING:
            if (reasoning := message.get(name)) is not None:
                copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
                break
        if "tool_calls" in copy:
            calls = []
            for call in calls_of(copy):
                function = call.get("function", call)
                if isinstance(function, dict):
                    called[call.get("id")] = function.get("name")
                    if isinstance(function.get("arguments"), dict):
                        function = {**function, "arguments": Arguments(function["arguments"])}
                    call = {**call, "function": function} if "function" in call else function
                calls.append(call)
            copy["tool_calls"] = calls or copy["tool_calls"]
            copy["content"] = copy.get("content") or Unsaid()
        if copy.get("role") == "tool" and called.get(copy.get("tool_call_id")):
            copy.setdefault("name", called[copy["tool_call_id"]])
        told.append(copy)
    return told


def calls_of(message: Mapping[str, Any]) -> list[Values]:
    calls = message.get("tool_calls")
    return [c for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []


def plain_tools(tools: Sequence[Any] | None) -> list[Any] | None:
    if tools is None:
        return None
    described = []
    for i, tool in enumerate(tools):
        if inspect.isfunction(tool) or inspect.ismethod(tool):
            from transformers.utils import get_json_schema

            tool = get_json_schema(tool)
        elif not isinstance(tool, Mapping):
            kind = type(tool).__name__
            raise PromptError(f"tools[{i}]: expected a schema or a function, got {kind}")
        described.append(_plain(tool, f"tools[{i}]"))
    return described


def _plain(value: Any, at: str) -> Any:
    """A copy made of plain values. PromptError if that is impossible."""

    def inner(other: Any) -> Any:
        if isinstance(other, Mapping):
            return dict(other)
        if is_dataclass(other) and not isinstance(other, type):
            return asdict(other)
        if callable(getattr(other, "model_dump", None)):
            return other.model_dump()
        kind = type(other).__name__
        raise PromptError(f"{at}: expected text or plain JSON values, got {kind}")

    try:
        text = json.dumps(value, ensure_ascii=False, default=inner)
        text.encode()
        return json.loads(text)
    except UnicodeEncodeError:
        raise PromptError(f"{at}: contains a lone surrogate, which is not a character") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"{at}: expected plain JSON values: {error}") from error


def plain_variable(value: Any, name: str) -> Any:
    """A copy of the JSON value of a template's variable. OptionError for anything else."""
    try:
        return _plain(value, name)
    except PromptError as error:
        raise OptionError("template", str(error)) from error


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A plain value with ``change`` applied to every string, except to words that templates look
    for: keys, roles and types."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [*map(partial(mapped, change=change), value)]
    if not isinstance(value, Mapping):
        return value
    copy = {}
    for key, inner in value.items():
        is_word = isinstance(inner, str) and inner.isidentifier()
        stays = is_word and (key == "type" or (key == "role" and inner in ROLES))
        copy[key if key.isidentifier() else change(key)] = inner if stays else mapped(inner, change)
    return copy


def with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]
) -> Sequence[Mapping[str, Any]]:
    """Messages with the tools as JSON in the first one, which holds the instructions, for templates
    that look for them there."""
    described = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    told = list(messages)
    if told[0].get("role") != "system":
        told.insert(0, {"content": ""})
    told[0] = {**told[0], "role": "system", "tools": described}
    return told


def with_spelled_arguments(value: Any) -> Any:
    """A plain value in which the arguments of calls are JSON text."""
    if isinstance(value, Arguments):
        return str(value)
    if isinstance(value, Mapping):
        return {key: with_spelled_arguments(inner) for key, inner in value.items()}
    return [with_spelled_arguments(inner) for inner in value] if isinstance(value, list) else value
