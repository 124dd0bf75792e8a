"""Chat messages as clients send them, and as chat templates take them.

Invariant: ``rendered`` returns every message as plain JSON with its content as one string, or, if
there are images in it, as parts; parts of other kinds that are asked for are refused, and in the
history they are mended before (``history``). Other fields in messages are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ...chat.calls.returned import returned
from ..fields import Int, Json, Piece
from ..parts import image_part, text_part


class TextPart(Piece):
    """A piece of text."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Json | None = None  # prefixes are cached anyway


class RefusalPart(Piece):
    """A refusal that an earlier answer consisted of."""

    type: Literal["refusal"]
    refusal: str


class ImageAddress(Piece):
    """Where an image is: an address that begins with data:, or one to fetch."""

    url: str


class ImagePart(Piece):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageAddress


Part: TypeAlias = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Content: TypeAlias = str | list[Part]
Shown: TypeAlias = (
    str | list[Annotated[TextPart | RefusalPart | ImagePart, Field(discriminator="type")]]
)
"""Content that may have images in it."""


class FunctionOfCall(Piece):
    """The called function; some clients send its arguments as an object, not as JSON text."""

    name: str
    arguments: str | Json


class ToolCallOfMessage(Piece):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionOfCall
    index: Int | None = None  # clients that gather streams leave it in


class PlainMessage(Piece):
    """Instructions, or what the user says."""

    role: Literal["system", "developer", "user"]
    content: Shown
    name: str | None = None


class AssistantMessage(Piece):
    """An earlier answer, or the beginning of one."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None  # the same, if it is text
    tool_calls: list[ToolCallOfMessage] | None = None
    prefix: bool | None = None  # whether the answer goes on with it, if it is the last message
    annotations: list[Any] | None = None  # of clients that send an answer back as it came
    audio: Any = None
    function_call: Any = None  # the old name of calls, which are these by now


class ToolMessage(Piece):
    """What a tool answered."""

    role: Literal["tool"]
    content: Shown
    tool_call_id: str
    name: str | None = None


Message: TypeAlias = Annotated[
    PlainMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


CHAT_FIELDS = {"prompt": "messages", "template": "chat_template_kwargs"}
"""The fields that a chat comes from, for ``as_request_error``."""


def rendered(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages for a chat template."""
    return [_rendered(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _rendered(message: Message, at: str) -> dict[str, Any]:
    content = _content(message.content, f"{at}.content")
    plain: dict[str, Any] = {"role": role_of(message.role), "content": content}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if not isinstance(message, AssistantMessage):
        return plain
    if not message.content and message.refusal is not None:
        plain["content"] = message.refusal
    thoughts = _thoughts(message)
    if thoughts is not None:
        plain["reasoning_content"] = thoughts
    if message.tool_calls:
        plain["tool_calls"] = [
            called(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls
        ]
    plain["content"] = plain["content"] or ""
    return plain


def role_of(role: str) -> str:
    """Templates are written for "system"; only OpenAI's own models know "developer"."""
    return "system" if role == "developer" else role


def _thoughts(message: AssistantMessage) -> str | None:
    if message.reasoning_content is None and isinstance(message.reasoning, str):
        return message.reasoning
    return message.reasoning_content


def _content(content: Shown | Content | None, at: str) -> str | list[dict[str, Any]] | None:
    """One string, or, if there are images in it, parts."""
    if content is None or isinstance(content, str):
        return content
    if not any(isinstance(part, ImagePart) for part in content):
        return "".join([_text(part) for part in content if not isinstance(part, ImagePart)])
    return [
        image_part(part.image_url.url, f"{at}[{i}].image_url.url")
        if isinstance(part, ImagePart)
        else text_part(_text(part))
        for i, part in enumerate(content)
    ]


def _text(part: TextPart | RefusalPart) -> str:
    return part.text if isinstance(part, TextPart) else part.refusal


def called(id: str, name: str, arguments: str | Json) -> dict[str, Any]:
    """A call for a chat template."""
    given = returned(arguments) if isinstance(arguments, str) else arguments
    function = {"name": name, "arguments": given}
    return {"id": id, "type": "function", "function": function}
