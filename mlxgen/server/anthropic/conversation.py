"""Messages of blocks as chat templates take them: calls, results and thoughts each in their place.

Invariant: the order of what was said is kept, so that a conversation that grows begins with the
tokens that it began with before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import RequestError
from .schemas import (
    Block,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

_BILLING = "x-anthropic-billing-header:"
"""How a block of instructions begins that differs from request to request, and says nothing."""


def rendered(
    system: str | Sequence[TextBlock] | None, messages: Sequence[Message]
) -> list[dict[str, Any]]:
    """The messages for a chat template, instructions first; raises ``RequestError``."""
    plain: list[dict[str, Any]] = []
    blocks = [TextBlock(type="text", text=system)] if isinstance(system, str) else system or ()
    told = [block.text for block in blocks if not block.text.startswith(_BILLING)]
    if any(told):
        plain.append({"role": "system", "content": "\n\n".join(told)})
    for i, message in enumerate(messages):
        given = message.content
        said = [TextBlock(type="text", text=given)] if isinstance(given, str) else given
        if message.role == "assistant":
            plain.append(_answer(said, f"messages[{i}].content"))
        else:
            plain += _said(message.role, said, f"messages[{i}].content")
    return plain


def _answer(blocks: Sequence[Block], at: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif isinstance(block, ToolResultBlock):
            raise _misplaced(f"{at}[{i}]", "a tool_result belongs to a message of the user")
    answer: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        answer["reasoning_content"] = "".join(thoughts)
    if calls:
        answer["tool_calls"] = calls
    return answer


def _said(role: str, blocks: Sequence[Block], at: str) -> list[dict[str, Any]]:
    """A message for each result of a tool, and one for the texts between them."""
    messages: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            result = {"role": "tool", "tool_call_id": block.tool_use_id}
            messages.append({**result, "content": _result(block)})
        elif not isinstance(block, TextBlock):
            raise _misplaced(f"{at}[{i}]", f"a {block.type} belongs to a message of the assistant")
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{block.text}"
        else:
            messages.append({"role": role, "content": block.text})
    return messages or [{"role": role, "content": ""}]


def _result(block: ToolResultBlock) -> str:
    content = block.content
    if not isinstance(content, str):
        content = "\n".join([part.text for part in content or ()])
    return f"Error: {content}" if block.is_error else content


def _misplaced(at: str, reason: str) -> RequestError:
    return RequestError.at(f"{at}.type", reason)
