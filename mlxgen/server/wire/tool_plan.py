"""What a request's tools mean for its prompt, its grammar and the reading of its answer.

Owns ``tools``, ``tool_choice`` and ``parallel_tool_calls``. Must never know how calls are
written or read. Invariant: a choice that cannot be enforced is refused by name; tools that
the model may not call are never read out of its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...filters import After, Specification
from ...filters.any_of import AnyOf
from .constraints import TextConstraint
from .errors import RequestError
from .schemas import AllowedToolChoice, ChatRequest, NamedTool, Tool
from .served_model import ServedModel
from .tool_grammar import calls_grammar, is_known, rest_grammar
from .tools import ToolFormat, ToolReader

_EMPTY = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """What the tools of a request ask for.

    - ``shown``: the tools for the chat template, None for none.
    - ``reader``: makes calls of the text, None where none may be made.
    - ``spec`` and ``required``: what the text behind the thinking is held to, with the text's
      own constraint in it, and whether it must come.
    - ``stop``: where the text ends after one call, if nothing else sees to that.
    - ``field``: the field to blame for ``spec``.
    """

    shown: tuple[dict[str, Any], ...] | None = None
    reader: ToolReader | None = None
    spec: Specification | None = None
    required: bool = True
    stop: str | None = None
    field: str = "tools"


def plan_tools(
    request: ChatRequest, model: ServedModel, constraint: TextConstraint | None
) -> ToolPlan:
    """Understand the tools; ``RequestError`` for what this model's format cannot do."""
    tools = request.tools or []
    mode, names = _choice(request, [tool.function.name for tool in tools])
    if mode == "none":
        return _only(constraint)
    if model.tools is None:
        raise RequestError(
            "tools: this model's chat template has no tool calls; leave them out",
            param="tools",
            code="unsupported_parameter",
        )
    shown = tuple(_shown(tool) for tool in tools)
    strict = {tool.function.name for tool in tools if tool.function.strict}
    allowed = [_grammar_tool(tool, strict) for tool in shown if tool["function"]["name"] in names]
    many = request.parallel_tool_calls is not False
    reader = ToolReader(
        model.tools,
        [tool for tool in shown if tool["function"]["name"] in names],
        most=None if many else 1,
    )
    if mode in ("required", "named"):
        _check_known(model.tools, "tool_choice", f"{mode} calls cannot be enforced")
        spec: Specification = calls_grammar(
            model.tools, allowed, model.vocabulary, many=many and mode == "required"
        )
        return ToolPlan(shown=shown, reader=reader, spec=spec)
    if constraint is not None:
        spec = _either(model.tools, allowed, model, constraint, many=many)
        return ToolPlan(shown=shown, reader=reader, spec=spec, field=constraint.field)
    if strict:
        index = next(i for i, tool in enumerate(tools) if tool.function.strict)
        at = f"tools[{index}].function.strict"
        _check_known(model.tools, at, "schemas cannot be enforced")
    if len(allowed) < len(tools):
        _check_known(model.tools, "tool_choice", "a choice of tools cannot be enforced")
    elif many and not strict:
        return ToolPlan(shown=shown, reader=reader)
    elif not is_known(model.tools):
        return ToolPlan(shown=shown, reader=reader, stop=model.tools.end or None)
    rest = rest_grammar(model.tools, allowed, model.vocabulary, many=many)
    spec = After(model.tools.start, rest)
    return ToolPlan(shown=shown, reader=reader, spec=spec, required=False)


def _only(constraint: TextConstraint | None) -> ToolPlan:
    if constraint is None:
        return ToolPlan()
    return ToolPlan(spec=constraint.spec, field=constraint.field)


def _choice(request: ChatRequest, names: Sequence[str]) -> tuple[str, list[str]]:
    """What has to happen, and with which functions."""
    for i, name in enumerate(names):
        if name in names[:i]:
            at = f"tools[{i}].function.name"
            raise RequestError(f"{at}: {name} is defined twice", param=at, code="invalid_value")
    choice = request.tool_choice
    if choice is None:
        return ("auto" if names else "none"), list(names)
    if choice in ("none", "auto") and not names:
        return "none", []
    if not names:
        raise RequestError(
            "tool_choice: there are no tools to choose from; give tools",
            param="tool_choice",
            code="invalid_value",
        )
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
        raise RequestError(f"{at}: {name!r} is none of the tools", param=at, code="invalid_value")


def _check_known(format: ToolFormat, at: str, reason: str) -> None:
    if not is_known(format):
        raise RequestError(
            f"{at}: {reason} in this model's call format ({format.style}); use auto",
            param=at,
            code="unsupported_value",
        )


def _shown(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates and parsers take it: with parameters, and without ``strict``."""
    function = tool.function
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = _EMPTY if function.parameters is None else function.parameters
    return {"type": "function", "function": shown}


def _grammar_tool(shown: dict[str, Any], strict: set[str]) -> dict[str, Any]:
    function = shown["function"]
    return {"function": {**function, "strict": function["name"] in strict}}


def _either(
    format: ToolFormat,
    tools: Sequence[dict[str, Any]],
    model: ServedModel,
    constraint: TextConstraint,
    *,
    many: bool,
) -> Specification:
    """The text that was asked for, or calls."""
    if not is_known(format):
        raise RequestError(
            f"{constraint.field}: cannot be combined with tools in this model's call format "
            f"({format.style}); set tool_choice to none, or leave out {constraint.field}",
            param=constraint.field,
            code="unsupported_value",
        )
    calls = calls_grammar(format, tools, model.vocabulary, many=many)
    return AnyOf((constraint.spec, calls))
