"""The tools of a request, and which of them may or must be called, whichever API it came by."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Discriminator, Field, WithJsonSchema

from ..chat.calls.use import ToolUse
from .errors import RequestError
from .fields import MAX_NAME, Json, Piece, need, of_type, one_of
from .logs import log

MAX_TOOLS = 2048
_EMPTY = {"type": "object", "properties": {}}


class Function(Piece):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME}}}$")]
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class OtherTool(Piece):
    """A tool that a remote service would run, or that is not called with JSON; it is left out."""

    type: str
    name: str | None = None


def functions_are(*kinds: str | None) -> Discriminator:
    """Tells functions, whose type is one of these, from other tools."""

    def kind_of(given: Any) -> str:
        kind = given.get("type") if isinstance(given, dict) else None
        return "function" if kind in kinds else "other"

    return Discriminator(kind_of)


F = TypeVar("F", bound=Function)

Mode: TypeAlias = Literal["none", "auto", "required", "named"]
_WORDS: Mapping[str, Mode] = {
    "none": "none",
    "auto": "auto",
    "required": "required",
    "any": "required",
}
_TYPES = (*_WORDS, "function", "tool", "allowed_tools")
_ALONE = "disable_parallel_tool_use"
_FIELDS = ("name", "function", "mode", "tools", "allowed_tools", _ALONE)
_OBJECT: Json = {
    "type": "object",
    "properties": {"type": {"enum": list(_TYPES)}, **{name: {} for name in _FIELDS}},
    "required": ["type"],
}
ToolChoice: TypeAlias = Annotated[
    str | Json, WithJsonSchema({"anyOf": [{"enum": list(_WORDS)}, _OBJECT]})
]
"""Which tools may or must be called, as any of the APIs says it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What must happen with the tools; ``named`` are the only ones that may be called, by the place
    where each is named, or nothing for all."""

    mode: Mode = "auto"
    named: Mapping[str, str] = field(default_factory=dict)


def choice_of(given: str | Json | None) -> Choice:
    """What a ``ToolChoice`` means; raises ``RequestError``."""
    at = "tool_choice"
    if given is None or isinstance(given, str):
        word = one_of({at: "auto" if given is None else given}, at, _WORDS, "")
        return Choice(_WORDS[word])
    for key in given.keys() - {"type", *_FIELDS}:
        raise RequestError.at(f"{at}.{key[:64]}", "there is no such field", "unknown_parameter")
    kind = one_of(given, "type", _TYPES, at)
    if kind in _WORDS:
        return Choice(_WORDS[kind])
    if kind in ("function", "tool"):
        return Choice("named", dict([_named(given, at)]))
    some: Json = given
    if "allowed_tools" in given:
        some, at = need(given, "allowed_tools", dict, at), f"{at}.allowed_tools"
    mode, tools = one_of(some, "mode", ("auto", "required"), at), need(some, "tools", list, at)
    named: dict[str, str] = {}
    for i, tool in enumerate(tools):
        place = f"{at}.tools[{i}]"
        if of_type(tool, dict, place).get("type") == "function":
            named |= dict([_named(tool, place)])
    if not tools or (not named and mode == "required"):
        raise RequestError.at(f"{at}.tools", "there is no function among them; add one")
    return Choice(_WORDS[mode], named) if named else Choice("none")  # the others are left out


def _named(tool: Json, at: str) -> tuple[str, str]:
    """The name of a tool, after its place: beside its type, or in its function."""
    if "function" in tool:
        tool, at = need(tool, "function", dict, at), f"{at}.function"
    return f"{at}.name", need(tool, "name", str, at)


def is_alone(given: str | Json | None) -> bool:
    """Whether a ``ToolChoice`` says that an answer makes one call at the most."""
    if not isinstance(given, dict) or given.get(_ALONE) is None:
        return False
    return bool(of_type(given[_ALONE], bool, f"tool_choice.{_ALONE}"))


def functions_in(tools: Sequence[Any] | None, kind: type[F]) -> dict[str, F]:
    """The functions among the tools, by their places in a request."""
    return {f"tools[{i}]": tool for i, tool in enumerate(tools or ()) if isinstance(tool, kind)}


def schemas_of(functions: Mapping[str, Function], field: str) -> dict[str, str]:
    """Where the types of their schemas are in a request, by their places in a chat completion."""
    chat = "tools[{}].function.parameters.type"
    return {chat.format(i): f"{at}.{field}.type" for i, at in enumerate(functions)}


def left_out(tools: Sequence[Any] | None, kind: type[Function]) -> list[str]:
    """The places of the others, which a remote service would run; a note is in the log."""
    others = {i: tool for i, tool in enumerate(tools or ()) if not isinstance(tool, kind)}
    if others:
        kinds = sorted({tool.type[:32] for tool in others.values()})
        log(logging.INFO, "left out tools that are not functions", kinds=", ".join(kinds))
    return [f"tools[{i}]" for i in others]


def tool_use(functions: Mapping[str, F], choice: Choice, *, many: bool) -> ToolUse | None:
    """How tools may be used; ``None`` if there are none, or none may be called.

    ``functions`` are the tools by the place of each in the request. Raises ``RequestError``.
    """
    names: dict[str, str] = {}
    for at, function in functions.items():
        if function.name in names:
            raise RequestError.at(f"{at}.name", f"{function.name} is defined twice")
        names[function.name] = at
    if choice.mode == "none" or (choice.mode == "auto" and not names and not choice.named):
        return None
    if not names:
        raise RequestError.at("tool_choice", "there are no tools to choose from; send tools")
    for at, name in choice.named.items():
        if name not in names:
            raise RequestError.at(at, f"{name!r} is not one of the tools")
    allowed = frozenset(choice.named.values() or names)
    return ToolUse(
        tools=tuple([_shown(function) for function in functions.values()]),
        mode=choice.mode,
        names=[name for name in names if name in allowed],
        strict=frozenset([each.name for each in functions.values() if each.strict]),
        many=many,
    )


def _shown(function: Function) -> dict[str, Any]:
    """A tool as chat templates and parsers take it: with parameters, and without ``strict``."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = _EMPTY if function.parameters is None else function.parameters
    return {"type": "function", "function": shown}
