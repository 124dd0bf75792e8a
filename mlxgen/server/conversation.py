"""What the chats of all APIs have in common: contents, calls of earlier answers, and the tools of a
request, with which of them may or must be called."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field

from ..chat.calls.use import ToolUse
from ..chat.calls.values import returned
from ..images import Address
from .errors import RequestError
from .fields import MAX_NAME, Json, Piece
from .logs import log

Content: TypeAlias = str | list[dict[str, Any]]


def content_of(pieces: Iterable[str | dict[str, Any]]) -> Content:
    """Texts and images, in their order; text without images is one string, as every chat template
    takes it."""
    found = list(pieces)
    if all(isinstance(piece, str) for piece in found):
        return "".join([piece for piece in found if isinstance(piece, str)])
    return [{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in found]


def image_part(address: str, at: str) -> dict[str, Any]:
    """An image at an address, which ``at`` has in the request."""
    return {"type": "image", "image": Address(address, at)}


def role_of(role: str) -> str:
    """Templates are written for "system"; only OpenAI's own models know "developer"."""
    return "system" if role == "developer" else role


def called(id: str, name: str, arguments: str | Json) -> dict[str, Any]:
    """A call for a chat template."""
    given = returned(arguments) if isinstance(arguments, str) else arguments
    function = {"name": name, "arguments": given}
    return {"id": id, "type": "function", "function": function}


# ---- tools ------------------------------------------------------------------------------------

MAX_TOOLS = 2048
_EMPTY = {"type": "object", "properties": {}}


class Function(Piece):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME}}}$")]
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


F = TypeVar("F", bound=Function)


@dataclass(frozen=True, slots=True)
class Choice:
    """What must happen with the tools; ``named`` are the only ones that may be called, by the place
    where each is named, or nothing for all."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    named: Mapping[str, str] = field(default_factory=dict)


def functions_in(tools: Sequence[Any] | None, kind: type[F]) -> dict[str, F]:
    """The functions among the tools, by their places in a request."""
    return {f"tools[{i}]": tool for i, tool in enumerate(tools or ()) if isinstance(tool, kind)}


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
