"""Turns the conversation of any API into messages for a chat template.

The template gets every message as plain JSON, with its content as one string or, if there are
images in it, as parts. The order is kept, so that a conversation that grows begins with the same
tokens as before.

A history was accepted once, and the person in front of an agent cannot edit it: so it is never a
reason to refuse a request. Nulls become what they mean; pieces of unknown types are replaced by
their text or by a note, or left out, and reported. The user's newest message is not history: there,
anything that cannot be shown to the model is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, TypeAlias

from pydantic import WithJsonSchema

from ..chat.calls.values import returned
from ..chat.template.telling import Content, joined
from ..images import Address
from .errors import RequestError
from .fields import need, of_type, one_of

Json: TypeAlias = dict[str, Any]
Piece: TypeAlias = str | Json
"""A text, or an image."""

_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
"""A line of instructions that differs from request to request and means nothing to the model."""
_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_IMAGES = ("image_url", "input_image", "image")
_SYSTEM = ("system", "developer")  # templates know the first; few know the other
_SILENT = ("server_tool_use", "mcp_tool_use", "container_upload", "thinking", "tool_use")
"""Types of blocks that mean nothing to the model if they have no text."""


class Conversation:
    """Messages for a chat template, and the places of pieces that were ``left_out`` or replaced.

    ``name`` is the field of the request that has the ``pieces``.
    """

    def __init__(self, name: str, pieces: Sequence[Any]) -> None:
        self.messages: list[Json] = []
        self.left_out: list[str] = []
        asks = bool(pieces) and pieces[-1].get("role") == "user"
        self._newest = f"{name}[{len(pieces) - 1}]" if asks else "none"

    def say(self, role: str, content: Content, **more: Any) -> None:
        """Add a message that is neither the model's nor a tool's result."""
        if role in _SYSTEM:
            role = "system"
            content = _BILLING.sub("", content) if isinstance(content, str) else content
        self.messages.append({"role": role, "content": content, **more})

    def answer(
        self, content: str, thoughts: str | None = None, calls: Sequence[Json] = (), **more: Any
    ) -> None:
        """Add a message of the model."""
        message: Json = {"role": "assistant", "content": content, **more}
        message |= {} if thoughts is None else {"reasoning_content": thoughts}
        self.messages.append(message | ({"tool_calls": [*calls]} if calls else {}))

    def result(self, id: str, content: Content, **more: Any) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "content": content, **more, "tool_call_id": id})

    def content(self, given: Any, at: str, *, images: bool = True) -> Content:
        """A content as chat templates take it: one string unless it has images, else parts."""
        if given is None or isinstance(given, str):
            return given or ""
        pieces = self.pieces(given, at, images=images)
        if all(isinstance(piece, str) for piece in pieces):
            return "".join(map(str, pieces))
        return [
            {"type": "text", "text": each} if isinstance(each, str) else each for each in pieces
        ]

    def pieces(
        self, content: Any, at: str, *, images: bool = True, returned: bool = False
    ) -> list[Piece]:
        """The pieces of a content; ``images``: it may have some; ``returned``: by a tool."""
        if content is None or isinstance(content, str):
            return [content or ""]
        parts = enumerate(of_type(content, list, at))
        asks = self.asks(at) and not returned
        told = [self.piece(part, f"{at}[{j}]", images=images, asks=asks) for j, part in parts]
        return [piece for piece in told if piece is not None]

    def asks(self, at: str) -> bool:
        """Whether a place is in the user's newest message."""
        return at.startswith(f"{self._newest}.")

    def piece(self, part: Any, at: str, *, images: bool, asks: bool) -> Piece | None:
        """The text or the image of a part; None for a billing line. A part of what the user
        ``asks`` must be shown as it is; any other may be replaced by its text or a note."""
        if isinstance(part, str):
            return part
        if isinstance(part, dict) and "type" not in part and not asks:  # such as a shell's output
            text = _text_in(part)
            return json.dumps(part, ensure_ascii=False) if text is None else text
        kind = need(of_type(part, dict, at), "type", str, at)
        kinds = (*_TEXTS, "refusal", *(_IMAGES if images else ()))
        said: Piece | None = None if kind in kinds else _text_in(part)
        if said is None:
            try:
                one_of(part, "type", kinds, at)
                said = _shown(part, at)
            except RequestError:
                if asks:
                    raise
                said = "[image]" if kind in _IMAGES else _note(part)
                self.left_out.append(at)
        is_bill = isinstance(said, str) and bool(_BILLING.search(said))
        return None if is_bill and not _BILLING.sub("", str(said)).strip() else said


# ---- pieces of every API -------------------------------------------------------------------------


def _called(id: str, name: str, arguments: Any) -> Json:
    """A call for a chat template."""
    given = returned(arguments) if isinstance(arguments, str) else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}


def _shown(part: Json, at: str) -> Piece:
    """The text or the image of a part of a known type; raises ``RequestError``."""
    kind = part["type"]
    if kind not in _IMAGES:
        return str(need(part, "refusal" if kind == "refusal" else "text", str, at))
    name = "source" if kind == "image" else "image_url"
    place = f"{at}.{name}"
    if kind == "input_image":
        if part.get(name) is None and part.get("file_id") is not None:
            reason = "this server keeps no files; send the image as image_url"
            raise RequestError.at(f"{at}.file_id", reason, "unsupported_value")
        address = need(part, name, str, at)
    else:
        source, key = need(part, name, dict, at), "url"
        if kind == "image" and one_of(source, "type", ("base64", "url"), place) == "base64":
            key, media = "data", need(source, "media_type", str, place)
        address, place = need(source, key, str, place), f"{place}.{key}"
        address = f"data:{media};base64,{address}" if key == "data" else address
    return {"type": "image", "image": Address(address, place)}


def _text_in(piece: Mapping[str, Any]) -> str | None:
    """The text of a piece of any type, after its title and source; None if it has no text."""
    source = piece.get("source")
    about = [piece[name] for name in ("title", "source") if isinstance(piece.get(name), str)]
    texts = [text for name in ("text", "content", "context") for text in _texts(piece.get(name))]
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        texts = [*_texts(source.get("data", source.get("content"))), *texts]
    return "\n".join([*about, *texts]) if texts else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            text = _text_in(each) if isinstance(each, dict) else None
            if text is None and isinstance(each, dict) and isinstance(each.get("title"), str):
                text = " ".join(str(each[name]) for name in ("title", "url") if each.get(name))
            if text is not None:
                yield text


def _note(piece: Mapping[str, Any]) -> str:
    """The note that replaces a piece without text."""
    source = piece.get("source")
    named = [piece, source] if isinstance(source, dict) else [piece]
    about = [
        str(each[name])[:200]
        for each in named
        for name in ("title", "filename", "tool_name", "name", "media_type", "url")
        if isinstance(each.get(name), str) and not each[name].startswith("data:")
    ]
    return f"[{': '.join([piece['type'], *about[:1]])}]"


def message_schema(
    roles: Sequence[str], parts: Mapping[str, str], *others: str, required: Sequence[str] = ()
) -> WithJsonSchema:
    """The schema of a message for clients: its ``parts`` by type, each with its required field, and
    the names of its ``others`` fields. This module reads their values itself."""
    kinds: list[Json] = [
        {"type": "object", "properties": {"type": {"const": kind}}, "required": ["type", field]}
        for kind, field in parts.items()
    ]
    listed = {"type": "array", "items": {"anyOf": kinds}}
    content = {"anyOf": [{"type": "string"}, {"type": "null"}, listed]}
    fields: Json = {"role": {"enum": list(roles)}, "content": content}
    fields |= {name: {} for name in others}
    return WithJsonSchema({"type": "object", "properties": fields, "required": list(required)})


# ---- chat completions ----------------------------------------------------------------------------

CHAT_ROLES = (*_SYSTEM, "user", "assistant", "tool", "function")
_CHAT_PARTS = {"text": "text", "refusal": "refusal", "image_url": "image_url"}
_CHAT_FIELDS = ("name", "reasoning_content", "tool_calls", "tool_call_id")
ChatMessage: TypeAlias = Annotated[
    Json, message_schema(CHAT_ROLES, _CHAT_PARTS, *_CHAT_FIELDS, required=("role",))
]


def of_chat(messages: Sequence[Json]) -> Conversation:
    """The conversation in ``messages`` of chat completions; raises ``RequestError``."""
    talk = Conversation("messages", messages)
    waiting: dict[str, str] = {}  # id of a call without a result -> its name
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        role = one_of(message, "role", CHAT_ROLES, at)
        if role == "user" and i == len(messages) - 1 and "content" not in message:
            need(message, "content", str, at)  # it may be misspelt
        images = role != "assistant"
        content = talk.content(message.get("content"), f"{at}.content", images=images)
        more = {} if message.get("name") is None else {"name": need(message, "name", str, at)}
        if role == "assistant":
            if not content and message.get("refusal") is not None:
                content = need(message, "refusal", str, at)
            thoughts = message.get("reasoning_content")
            if thoughts is None and isinstance(message.get("reasoning"), str):
                thoughts = message["reasoning"]
            if thoughts is not None:
                of_type(thoughts, str, f"{at}.reasoning_content")
            calls = list(_chat_calls(message, i))
            talk.answer(str(content), thoughts, calls, **more)
            if calls:
                waiting = {call["id"]: call["function"]["name"] for call in calls}
        elif role in ("tool", "function"):
            id = message.get("tool_call_id")
            if not isinstance(id, str):
                mine = [other for other, name in waiting.items() if name == message.get("name")]
                id = next(iter(mine or waiting), "")
            waiting.pop(id, None)
            talk.result(id, content, **more)
        else:
            talk.say(role, content, **more)
    return talk


def _chat_calls(message: Json, i: int) -> Iterator[Json]:
    """The calls of an answer, including OpenAI's old ``function_call`` and its custom calls."""
    calls = message.get("tool_calls")
    if isinstance(message.get("function_call"), dict) and not calls:
        calls = [{"function": message["function_call"]}]
    for j, call in enumerate(of_type(calls or [], list, f"messages[{i}].tool_calls")):
        at = f"messages[{i}].tool_calls[{j}]"
        custom = of_type(call, dict, at).get("custom")
        if isinstance(custom, dict) and "function" not in call:
            function = {**custom, "arguments": {"input": custom.get("input")}}
        else:
            function = need(call, "function", dict, at)
        given = "{}" if function.get("arguments") is None else function["arguments"]
        if not isinstance(given, dict):
            of_type(given, str, f"{at}.function.arguments")
        name = need(function, "name", str, f"{at}.function")
        yield _called(str(call.get("id") or f"call_{i}_{j}"), name, given)


# ---- Messages ------------------------------------------------------------------------------------

MESSAGES_ROLES = ("user", "assistant", "system")
_BLOCKS = {
    "text": "text",
    "image": "source",
    "thinking": "thinking",
    "tool_use": "input",
    "tool_result": "tool_use_id",
}
Message: TypeAlias = Annotated[Json, message_schema(MESSAGES_ROLES, _BLOCKS, required=("role",))]


def of_messages(system: Any, messages: Sequence[Json]) -> Conversation:
    """The conversation in Anthropic's ``system`` and ``messages``; raises ``RequestError``."""
    talk = Conversation("messages", messages)
    texts = [_BILLING.sub("", str(each)) for each in talk.pieces(system, "system", images=False)]
    if any(texts):
        talk.say("system", "\n\n".join(texts))
    for i, message in enumerate(messages):
        role = one_of(message, "role", MESSAGES_ROLES, f"messages[{i}]")
        _blocks(talk, role, message.get("content") or "", f"messages[{i}].content")
    return talk


def _blocks(talk: Conversation, role: str, content: Any, at: str) -> None:
    """Add one message for an answer; for other roles, one for each result of a tool, and one for
    the text between them."""
    answers, any_result = role == "assistant", False
    thoughts, calls, said = list[str](), list[Json](), list[Content]()

    def tell() -> None:
        if said:
            talk.say(role, reduce(joined, said))
            said.clear()

    blocks = [content] if isinstance(content, str) else of_type(content, list, at)
    for j, block in enumerate(blocks):
        place = f"{at}[{j}]"
        block = {"type": "text", "text": block} if isinstance(block, str) else block
        kind = str(of_type(block, dict, place).get("type"))
        if answers and kind == "tool_use":
            id, name = (str(need(block, each, str, place)) for each in ("id", "name"))
            given = {} if block.get("input") is None else need(block, "input", dict, place)
            calls.append(_called(id, name, given))
        elif answers and kind in ("thinking", "redacted_thinking"):
            texts = [*_texts(block.get("thinking"))]
            thoughts += texts
            if block.get("thinking") and not texts:
                talk.left_out.append(place)
        elif kind == "tool_result" and not answers:
            tell()
            any_result = True
            inside = talk.pieces(block.get("content"), f"{place}.content", returned=True)
            told: list[Content] = [[each] if isinstance(each, dict) else each for each in inside]
            content = reduce(joined, told) if told else ""
            if block.get("is_error"):
                content = joined("Error: ", content, between="")
            talk.result(need(block, "tool_use_id", str, place), content)
        elif (kind in _SILENT or kind.endswith("_result")) and _text_in(block) is None:
            talk.left_out.append(place)
        else:
            piece = talk.piece(block, place, images=not answers, asks=talk.asks(at))
            if piece:
                said.append([piece] if isinstance(piece, dict) else piece)
    if answers:
        talk.answer("".join(map(str, said)), "".join(thoughts) or None, calls)
    else:
        said += [] if said or any_result else [""]
        tell()


# ---- Responses -----------------------------------------------------------------------------------

_ITEM_ROLES = (*_SYSTEM, "user", "assistant")
_ITEMS = ("message", "reasoning", "function_call", "function_call_output")
_ITEM_PARTS = {**dict.fromkeys(_TEXTS, "text"), "refusal": "refusal", "input_image": "image_url"}
_ITEM_FIELDS = ("type", "call_id", "name", "arguments", "output", "summary")
Item: TypeAlias = Annotated[Json, message_schema(_ITEM_ROLES, _ITEM_PARTS, *_ITEM_FIELDS)]


def of_responses(instructions: str | None, given: str | Sequence[Json]) -> Conversation:
    """The conversation in Responses' ``instructions`` and ``input``; raises ``RequestError``.

    All items of the model between two inputs become one message, with reasoning and calls, as they
    were generated.
    """
    items = [{"role": "user", "content": given}] if isinstance(given, str) or not given else given
    talk = Conversation("input", items)
    if instructions := _BILLING.sub("", instructions or ""):
        talk.say("system", instructions)
    said: dict[str, list[Any]] = {}  # of the model's message so far, by kind

    def more(kind: str, value: Any) -> None:
        said.setdefault(kind, []).append(value)

    def tell() -> None:
        if said:
            content, thoughts = (
                "\n".join(filter(None, said.get(name, ()))) for name in ("text", "thought")
            )
            talk.answer(content, thoughts or None, said.get("call", ()))
            said.clear()

    for i, item in enumerate(items):
        at = f"input[{i}]"
        for known in _known(item, at, talk):
            kind = known["type"]
            if kind == "function_call":
                some = {} if known.get("arguments") is None else known["arguments"]
                some = some if isinstance(some, str) else json.dumps(some, ensure_ascii=False)
                id = str(known.get("call_id") or known.get("id") or at)
                more("call", _called(id, need(known, "name", str, at), some))
            elif kind == "reasoning":  # encrypted reasoning of other services is dropped
                name = "content" if known.get("content") else "summary"
                pieces = talk.pieces(known.get(name), f"{at}.{name}", images=False)
                if thought := "\n".join(map(str, pieces)):
                    more("thought", thought)
            elif kind == "message" and one_of(known, "role", _ITEM_ROLES, at) == "assistant":
                pieces = talk.pieces(known.get("content"), f"{at}.content", images=False)
                more("text", "".join(map(str, pieces)))
            else:
                tell()
                if kind == "message":
                    talk.say(known["role"], talk.content(known.get("content"), f"{at}.content"))
                else:
                    output = known.get("output")
                    output = [output] if isinstance(output, dict) else output
                    id = str(known.get("call_id") or "")
                    talk.result(id, talk.content(output, f"{at}.output"))
    tell()
    if not talk.messages:
        talk.say("user", "")
    return talk


def goes_on(given: str | Sequence[Json]) -> bool:
    """Whether the answer continues the last item: a message of the model that is in progress."""
    last = given[-1] if given and not isinstance(given, str) else {}
    is_message = last.get("type", "message") == "message" and last.get("role") == "assistant"
    return is_message and last.get("status") == "in_progress" and bool(last.get("content"))


def _known(item: Json, at: str, talk: Conversation) -> Iterator[Json]:
    """An item as items of known types: a call of another type as a function call, its result as a
    result, and any other item with text as a message. Nothing if it is none of these."""
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind == "item_reference":
        one_of(item, "type", _ITEMS, at)
    id = item.get("call_id") or item.get("id")
    if kind in _ITEMS:
        yield {**item, "type": kind}
    elif kind.endswith("_output") and item.get("call_id"):
        yield {"type": "function_call_output", "call_id": id, "output": item.get("output")}
    elif kind.endswith("_call") and (item.get("call_id") or item.get("name")):
        given = item.get("arguments")
        if given is None:
            names = ("input", "action", "operation")
            given = {name: item[name] for name in names if item.get(name) is not None}
        name = item.get("name") or kind.removesuffix("_call")
        yield {"type": "function_call", "call_id": id, "name": name, "arguments": given}
        if item.get("output") is not None and not item.get("call_id"):
            yield {"type": "function_call_output", "call_id": id, "output": item["output"]}
    elif item.get("role") in _ITEM_ROLES and (text := _text_in(item)) is not None:
        yield {"type": "message", "role": item["role"], "content": text}
    else:
        talk.left_out.append(at)
