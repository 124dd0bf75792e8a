"""The tools of a request, and which of them may or must be called, whichever API it came by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..chat.calls.use import ToolUse
from .errors import RequestError

_EMPTY = {"type": "object", "properties": {}}


class Function(Protocol):
    """A function that the model may call."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def parameters(self) -> dict[str, Any] | None: ...
    @property
    def strict(self) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """What must happen with the tools; ``named`` are the only ones that may be called, by the place
    where each is named, or nothing for all."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    named: Mapping[str, str] = field(default_factory=dict)


def tool_use(functions: Mapping[str, Function], choice: Choice, *, many: bool) -> ToolUse | None:
    """How tools may be used; ``None`` if there are none, or none may be called.

    ``functions`` are the tools by the place of each in the request. Raises ``RequestError``.
    """
    names: list[str] = []
    for at, function in functions.items():
        if function.name in names:
            raise RequestError.at(f"{at}.name", f"{function.name} is defined twice")
        names.append(function.name)
    if choice.mode == "none" or (choice.mode == "auto" and not names and not choice.named):
        return None
    if not names:
        raise RequestError.at("tool_choice", "there are no tools to choose from; send tools")
    for at, name in choice.named.items():
        if name not in names:
            raise RequestError.at(at, f"{name!r} is not one of the tools")
    allowed = choice.named.values()
    return ToolUse(
        tools=tuple([_shown(function) for function in functions.values()]),
        mode=choice.mode,
        names=[name for name in names if name in allowed] if allowed else names,
        strict=frozenset([each.name for each in functions.values() if each.strict]),
        many=many,
    )


def strict_fields(functions: Iterable[str]) -> dict[str, str]:
    """The places of ``strict`` in a request, by those in the tools as the chat has them."""
    return {f"tools[{i}].function.strict": f"{at}.strict" for i, at in enumerate(functions)}


def _shown(function: Function) -> dict[str, Any]:
    """A tool as chat templates and parsers take it: with parameters, and without ``strict``."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = _EMPTY if function.parameters is None else function.parameters
    return {"type": "function", "function": shown}
