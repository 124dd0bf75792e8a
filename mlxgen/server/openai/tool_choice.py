"""The tools of a request, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from ...chat.calls.use import ToolUse
from ..errors import RequestError
from .schemas import AllowedToolChoice, ChatRequest, NamedTool, Tool

_Mode: TypeAlias = Literal["none", "auto", "required", "named"]
_EMPTY = {"type": "object", "properties": {}}


def tool_use_of(request: ChatRequest) -> ToolUse | None:
    """How tools may be used; ``None`` if there are none, or none may be called."""
    tools = request.tools or []
    mode, names = _choice(request, [tool.function.name for tool in tools])
    if mode == "none":
        return None
    return ToolUse(
        tools=tuple(_shown(tool) for tool in tools),
        mode=mode,
        names=names,
        strict=frozenset(tool.function.name for tool in tools if tool.function.strict),
        many=request.parallel_tool_calls is not False,
    )


def _choice(request: ChatRequest, names: Sequence[str]) -> tuple[_Mode, list[str]]:
    """What must happen, and with which functions."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RequestError.at(f"tools[{i}].function.name", f"{name} is defined twice")
    choice = request.tool_choice
    if choice is None:
        return ("auto" if names else "none"), list(names)
    if choice in ("none", "auto") and not names:
        return "none", []
    if not names:
        raise RequestError.at("tool_choice", "there are no tools to choose from; send tools")
    if isinstance(choice, str):
        return choice, list(names)
    if isinstance(choice, NamedTool):
        _check_name(choice.function.name, names, "tool_choice.function.name")
        return "named", [choice.function.name]
    assert isinstance(choice, AllowedToolChoice)
    at = "tool_choice.allowed_tools.tools"
    allowed = [tool.function.name for tool in choice.allowed_tools.tools]
    for i, name in enumerate(allowed):
        _check_name(name, names, f"{at}[{i}].function.name")
    return choice.allowed_tools.mode, [name for name in names if name in allowed]


def _check_name(name: str, names: Sequence[str], at: str) -> None:
    if name not in names:
        raise RequestError.at(at, f"{name!r} is not one of the tools")


def _shown(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates and parsers take it: with parameters, and without ``strict``."""
    function = tool.function
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = _EMPTY if function.parameters is None else function.parameters
    return {"type": "function", "function": shown}
