"""The items of a conversation as clients send them, and as chat templates take them.

Invariant: the order of what was said is kept, so that a conversation that grows begins with the
tokens that it began with before. What the model said between two inputs is one message, with its
thoughts and its calls: that is how it was generated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from ..errors import RequestError
from ..fields import Piece
from ..openai.messages import called, role_of
from ..parts import image_part, text_part


class TextPart(Piece):
    """A piece of text, of whichever side."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(Piece):
    """A refusal that an earlier answer consisted of."""

    type: Literal["refusal"]
    refusal: str


class ImagePart(Piece):
    """An image: an address that begins with data:, or one to fetch."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None


class OtherPart(Piece):
    """What is neither text nor an image: a file or a sound."""

    type: str


def _kind_of_part(given: Any) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return "text"
    return "refusal" if kind == "refusal" else "image" if kind == "input_image" else "other"


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[RefusalPart, Tag("refusal")]
    | Annotated[ImagePart, Tag("image")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(_kind_of_part),
]
Content: TypeAlias = str | list[Part]
Shown: TypeAlias = str | list[dict[str, Any]]
"""The content of a message for a chat: one string, or, if there are images in it, parts."""


class MessageItem(Piece):
    """What somebody says, or the text of an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    status: str | None = None


class ReasoningItem(Piece):
    """What an earlier answer thought; encrypted thoughts of other services are left out."""

    type: Literal["reasoning"]
    summary: list[Part] | None = None
    content: list[Part] | None = None


class CallItem(Piece):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(Piece):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class OtherItem(Piece):
    """What only a service can read that keeps conversations or has tools of its own."""

    type: str


_ITEMS = ("message", "reasoning", "function_call", "function_call_output")


def _kind_of_item(given: Any) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    return "message" if kind is None else kind if kind in _ITEMS else "other"


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_kind_of_item),
]
Input: TypeAlias = Annotated[str, Field(min_length=1)] | Annotated[list[Item], Field(min_length=1)]


def goes_on(given: Input) -> bool:
    """Whether the answer is the rest of the last item: one of the model that is in progress."""
    last = given[-1] if isinstance(given, list) else None
    return (
        isinstance(last, MessageItem)
        and (last.role, last.status) == ("assistant", "in_progress")
        and bool(last.content)
    )


def rendered(instructions: str | None, given: Input) -> list[dict[str, Any]]:
    """The messages for a chat template, instructions first; raises ``RequestError``."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    said = _Messages(messages)
    for i, item in enumerate(given):
        at = f"input[{i}]"
        if isinstance(item, MessageItem):
            said.message(item.role, _content(item.content, f"{at}.content", item.role))
        elif isinstance(item, ReasoningItem):
            said.thoughts(_thoughts(item, at))
        elif isinstance(item, CallItem):
            said.call(called(item.call_id, item.name, item.arguments))
        elif isinstance(item, ResultItem):
            said.result(item.call_id, _content(item.output, f"{at}.output"))
        else:
            raise _foreign(item, f"{at}.type")
    return messages


class _Messages:
    """Items in, messages out, into the given list."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._answer: dict[str, Any] | None = None  # that of the model, if it is not over

    def message(self, role: str, content: Shown) -> None:
        if role == "assistant":
            answer = self._open()
            answer["content"] += f"\n{content}" if answer["content"] else content
        else:
            self._close({"role": role_of(role), "content": content})

    def thoughts(self, text: str) -> None:
        if text:
            answer = self._open()
            before = answer.get("reasoning_content")
            answer["reasoning_content"] = f"{before}\n{text}" if before else text

    def call(self, call: dict[str, Any]) -> None:
        self._open().setdefault("tool_calls", []).append(call)

    def result(self, id: str, content: Shown) -> None:
        self._close({"role": "tool", "tool_call_id": id, "content": content})

    def _open(self) -> dict[str, Any]:
        if self._answer is None:
            self._answer = {"role": "assistant", "content": ""}
            self._messages.append(self._answer)
        return self._answer

    def _close(self, message: dict[str, Any]) -> None:
        self._answer = None
        self._messages.append(message)


def _thoughts(item: ReasoningItem, at: str) -> str:
    """All that is known of them: the summary only if there are no others."""
    for name, parts in (("content", item.content), ("summary", item.summary)):
        if parts:
            return "\n".join([_part(part, f"{at}.{name}[{i}]") for i, part in enumerate(parts)])
    return ""


def _content(content: Content, at: str, role: str = "tool") -> Shown:
    """One string, or, if there are images in it, parts."""
    if isinstance(content, str):
        return content
    images = role != "assistant" and any(isinstance(part, ImagePart) for part in content)
    if not images:
        return "".join([_part(part, f"{at}[{i}]") for i, part in enumerate(content)])
    return [
        _image(part, f"{at}[{i}]")
        if isinstance(part, ImagePart)
        else text_part(_part(part, f"{at}[{i}]"))
        for i, part in enumerate(content)
    ]


def _image(part: ImagePart, at: str) -> dict[str, Any]:
    if part.image_url is None:
        raise RequestError.at(
            f"{at}.file_id" if part.file_id is not None else f"{at}.image_url",
            "this server keeps no files; send the image as image_url",
            "unsupported_value",
        )
    return image_part(part.image_url, f"{at}.image_url")


def _part(part: TextPart | RefusalPart | ImagePart | OtherPart, at: str) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, RefusalPart):
        return part.refusal
    raise RequestError.at(
        f"{at}.type",
        f"expected input_text or output_text, got {part.type[:64]!a}; this server reads only text "
        "there",
        "unsupported_value",
    )


def _foreign(item: OtherItem, at: str) -> RequestError:
    if item.type == "item_reference":
        reason = "this server is stateless and keeps no items; send the item itself"
    else:
        *others, last = _ITEMS
        known = f"{', '.join(others)} or {last}"
        reason = f"expected {known}, got {item.type[:64]!a}; leave it out"
    return RequestError.at(at, reason, "unsupported_value")
