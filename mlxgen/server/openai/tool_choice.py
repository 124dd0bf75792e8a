"""The tools of a chat request, and which of them may or must be called."""

from __future__ import annotations

from ...chat.calls.use import ToolUse
from ..tool_use import Choice, tool_use
from .schemas import ChatRequest, NamedTool


def tool_use_of(request: ChatRequest) -> ToolUse | None:
    """How tools may be used; ``None`` if there are none, or none may be called."""
    tools = {f"tools[{i}].function": tool.function for i, tool in enumerate(request.tools or ())}
    return tool_use(tools, _choice(request), many=request.parallel_tool_calls is not False)


def _choice(request: ChatRequest) -> Choice:
    choice = request.tool_choice
    if choice is None:
        return Choice()
    if isinstance(choice, str):
        return Choice(choice)
    if isinstance(choice, NamedTool):
        return Choice("named", {"tool_choice.function.name": choice.function.name})
    allowed = choice.allowed_tools
    at = "tool_choice.allowed_tools.tools"
    named = {f"{at}[{i}].function.name": tool.function.name for i, tool in enumerate(allowed.tools)}
    return Choice(allowed.mode, named)
