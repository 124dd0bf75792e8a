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


class TextPart(Piece):
    """A piece of text, of whichever side."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(Piece):
    """A refusal that an earlier answer consisted of."""

    type: Literal["refusal"]
    refusal: str


class OtherPart(Piece):
    """What is not text: an image, a file or a sound."""

    type: str


def _kind_of_part(given: Any) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return "text"
    return "refusal" if kind == "refusal" else "other"


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[RefusalPart, Tag("refusal")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(_kind_of_part),
]
Content: TypeAlias = str | list[Part]


class MessageItem(Piece):
    """What somebody says, or the text of an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


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
            said.message(item.role, _text(item.content, f"{at}.content"))
        elif isinstance(item, ReasoningItem):
            said.thoughts(_thoughts(item, at))
        elif isinstance(item, CallItem):
            said.call(called(item.call_id, item.name, item.arguments))
        elif isinstance(item, ResultItem):
            said.result(item.call_id, _text(item.output, f"{at}.output"))
        else:
            raise _foreign(item, f"{at}.type")
    return messages


class _Messages:
    """Items in, messages out, into the given list."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._answer: dict[str, Any] | None = None  # that of the model, if it is not over

    def message(self, role: str, text: str) -> None:
        if role == "assistant":
            answer = self._open()
            answer["content"] += f"\n{text}" if answer["content"] else text
        else:
            self._close({"role": role_of(role), "content": text})

    def thoughts(self, text: str) -> None:
        if text:
            answer = self._open()
            before = answer.get("reasoning_content")
            answer["reasoning_content"] = f"{before}\n{text}" if before else text

    def call(self, call: dict[str, Any]) -> None:
        self._open().setdefault("tool_calls", []).append(call)

    def result(self, id: str, text: str) -> None:
        self._close({"role": "tool", "tool_call_id": id, "content": text})

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


def _text(content: Content, at: str) -> str:
    if isinstance(content, str):
        return content
    return "".join([_part(part, f"{at}[{i}]") for i, part in enumerate(content)])


def _part(part: TextPart | RefusalPart | OtherPart, at: str) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, RefusalPart):
        return part.refusal
    raise RequestError.at(
        f"{at}.type",
        f"expected input_text or output_text, got {part.type[:64]!a}; this server reads text only",
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
