"""Messages of blocks as chat templates take them: calls, results and thoughts each in their place.

Invariant: the order of what was said is kept, so that a conversation that grows begins with the
tokens that it began with before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...chat.template.telling import Content, joined
from ..errors import RequestError
from ..parts import image_part
from .schemas import (
    Block,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)


def rendered(
    system: str | Sequence[TextBlock] | None, messages: Sequence[Message]
) -> list[dict[str, Any]]:
    """The messages for a chat template, instructions first; raises ``RequestError``."""
    plain: list[dict[str, Any]] = []
    blocks = [TextBlock(type="text", text=system)] if isinstance(system, str) else system or ()
    told = [block.text for block in blocks]
    if any(told):
        plain.append({"role": "system", "content": "\n\n".join(told)})
    for i, message in enumerate(messages):
        given = message.content
        said = [TextBlock(type="text", text=given)] if isinstance(given, str) else given
        if message.role == "assistant":
            plain.append(_answer(said))
        else:
            plain += _said(message.role, said, f"messages[{i}].content")
    return plain


def _answer(blocks: Sequence[Block]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
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
            messages.append({**result, "content": _result(block, f"{at}[{i}].content")})
        elif not isinstance(block, (TextBlock, ImageBlock)):
            raise _misplaced(f"{at}[{i}]", f"a {block.type} belongs to a message of the assistant")
        elif messages and messages[-1]["role"] == role:
            said = _shown([(block, f"{at}[{i}]")])
            messages[-1]["content"] = joined(messages[-1]["content"], said)
        else:
            messages.append({"role": role, "content": _shown([(block, f"{at}[{i}]")])})
    return messages or [{"role": role, "content": ""}]


def _result(block: ToolResultBlock, at: str) -> Content:
    given = block.content
    if isinstance(given, str):
        content: Content = given
    else:
        content = _shown([(part, f"{at}[{i}]") for i, part in enumerate(given or ())])
    return joined("Error: ", content, between="") if block.is_error else content


def _shown(blocks: Sequence[tuple[TextBlock | ImageBlock, str]]) -> Content:
    """One string, or, if there are images, parts; the blocks come with their places."""
    content: Content = ""
    for block, at in blocks:
        said: Content
        if isinstance(block, TextBlock):
            said = block.text
        elif isinstance(block.source, UrlSource):
            said = [image_part(block.source.url, f"{at}.source.url")]
        else:
            source = block.source
            address = f"data:{source.media_type};base64,{source.data}"
            said = [image_part(address, f"{at}.source.data")]
        content = joined(content, said) if content else said
    return content


def _misplaced(at: str, reason: str) -> RequestError:
    return RequestError.at(f"{at}.type", reason)
