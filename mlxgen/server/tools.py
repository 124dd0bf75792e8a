"""The tools of a request of any API, and which of them may or must be called."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

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
    """A tool that a remote service would run, or that does not take JSON; it is left out."""

    type: str
    name: str | None = None


def functions_are(*kinds: str | None) -> Discriminator:
    """Distinguishes functions, whose type is one of ``kinds``, from other tools."""

    def kind_of(given: Any) -> str:
        kind = given.get("type") if isinstance(given, dict) else None
        return "<function>" if kind in kinds else "<other>"  # not the name of any field

    return Discriminator(kind_of)


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
"""Which tools may or must be called, in the form of any API."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether and which tools must be called. ``named`` has the only tools that may be called, by
    the place that names each; empty: all. ``alone``: an answer makes at most one call."""

    mode: Mode = "auto"
    named: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


def choice_of(given: str | Json) -> Choice:
    """What a ``ToolChoice`` means; raises ``RequestError``."""
    at = "tool_choice"
    if isinstance(given, str):
        return Choice(_WORDS[one_of({at: given}, at, _WORDS, "")])
    for key in given.keys() - {"type", *_FIELDS}:
        raise RequestError.at(f"{at}.{key[:64]}", "there is no such field", "unknown_parameter")
    kind = one_of(given, "type", _TYPES, at)
    alone = given.get(_ALONE) is not None and of_type(given[_ALONE], bool, f"{at}.{_ALONE}")
    if kind in _WORDS:
        return Choice(_WORDS[kind], alone=alone)
    if kind in ("function", "tool"):
        return Choice("named", dict([_named(given, at)]), alone)
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
    return Choice(_WORDS[mode] if named else "none", named, alone)  # the others are left out


def _named(tool: Json, at: str) -> tuple[str, str]:
    """The place of a tool's name, next to its type or in its function, and the name."""
    if "function" in tool:
        tool, at = need(tool, "function", dict, at), f"{at}.function"
    return f"{at}.name", need(tool, "name", str, at)


class Tools(NamedTuple):
    """How tools may be ``used``: None if there are none, or none may be called. ``names``: the
    places of the ``type`` of their schemas, by those in a chat completion. ``left_out``: the places
    of tools that are left out."""

    used: ToolUse | None
    names: Mapping[str, str]
    left_out: list[str]


def tools_of(
    given: Iterable[Function | OtherTool] | None,
    tool_choice: str | Json | None,
    *,
    at: str,
    parallel: bool | None = None,
    schema: str = "parameters",
) -> Tools:
    """The tools of a request; raises ``RequestError``. ``at``: the place of each, such as
    ``tools[{}]``; ``schema``: the tool's field with its schema."""
    choice = Choice() if tool_choice is None else choice_of(tool_choice)
    shown, strict, known = list[Json](), set[str](), list[str]()
    places, left_out, kinds = dict[str, str](), list[str](), set[str]()
    for i, tool in enumerate(given or ()):
        place = at.format(i)
        if not isinstance(tool, Function):
            left_out.append(place)
            kinds.add(tool.type[:32])
            continue
        if tool.name in known:
            raise RequestError.at(f"{place}.name", f"{tool.name} is defined twice")
        places[f"tools[{len(known)}].function.parameters.type"] = f"{place}.{schema}.type"
        known.append(tool.name)
        if tool.strict:
            strict.add(tool.name)
        function: Json = {"name": tool.name}  # as chat templates and parsers take it
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = _EMPTY if tool.parameters is None else tool.parameters
        shown.append({"type": "function", "function": function})
    if kinds:
        said = "left out tools that are not functions"
        log(logging.INFO, said, kinds=", ".join(sorted(kinds)))
    if choice.mode == "none" or (choice.mode == "auto" and not known and not choice.named):
        return Tools(None, places, left_out)
    if not known:
        raise RequestError.at("tool_choice", "there are no tools to choose from; send tools")
    for named, name in choice.named.items():
        if name not in known:
            raise RequestError.at(named, f"{name!r} is not one of the tools")
    allowed = frozenset(choice.named.values())
    used = ToolUse(
        tools=tuple(shown),
        mode=choice.mode,
        names=[name for name in known if name in allowed] if allowed else known,
        strict=frozenset(strict),
        many=not choice.alone and parallel is not False,
    )
    return Tools(used, places, left_out)
