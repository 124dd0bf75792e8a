"""A conversation, whichever API it comes by, as messages for a chat template.

Every message gets to the template as plain JSON with its content as one string, or, if there are
images in it, as parts. The order of what was said is kept, so that a conversation that grows begins
with the tokens that it began with before.

A history was accepted once, and the person in front of an agent cannot edit it: so it is never a
reason to refuse a request. Nulls become what they mean; pieces of kinds that mean nothing here are
told as their text or as a note, or are left out, and named. What the newest message of the user
asks for is not history: there, what cannot be shown to the model is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import WithJsonSchema

from ..chat.calls.values import returned
from ..chat.template.telling import Content, joined
from ..images import Address
from .errors import RequestError
from .fields import need, of_type, one_of

Json: TypeAlias = dict[str, Any]
Pieces: TypeAlias = list[str | Json]
"""Texts and images, in their order."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
"""A line of instructions that differs from request to request, and says nothing."""
_DEEPEST = 64
_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_IMAGES = ("image_url", "input_image", "image")
_SYSTEM = ("system", "developer")  # templates are written for the first; few know the other


class Conversation(NamedTuple):
    """Messages for a chat template, and the places of what was left out or is only noted."""

    messages: list[Json]
    left_out: list[str]


def as_text(value: Any, depth: int = 0) -> Any:
    """A value in which everything that is no text became U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() and "\0" not in value else _NO_TEXT.sub("\ufffd", value)
    if depth > _DEEPEST:  # refused later
        return value
    if isinstance(value, list):
        return [as_text(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        return {as_text(key): as_text(inner, depth + 1) for key, inner in value.items()}
    return value


# ---- pieces of every API -------------------------------------------------------------------------


def content_of(pieces: Pieces) -> Content:
    """Text without images is one string, as every chat template takes it."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join([piece for piece in pieces if isinstance(piece, str)])
    return [{"type": "text", "text": each} if isinstance(each, str) else each for each in pieces]


def _called(id: str, name: str, arguments: str | Json) -> Json:
    """A call for a chat template."""
    given = returned(arguments) if isinstance(arguments, str) else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}


def _part(part: Json, at: str) -> str | Json:
    """The text or the image of a part of a kind that is known; raises ``RequestError``."""
    kind = part["type"]
    if kind in _TEXTS:
        return str(need(part, "text", str, at))
    if kind == "refusal":
        return str(need(part, "refusal", str, at))
    if kind == "image_url":
        place, address = f"{at}.image_url", need(part, "image_url", dict, at)
        return _image(need(address, "url", str, place), f"{place}.url")
    if kind == "input_image":
        if part.get("image_url") is None:
            name = "file_id" if part.get("file_id") is not None else "image_url"
            reason = "this server keeps no files; send the image as image_url"
            raise RequestError.at(f"{at}.{name}", reason, "unsupported_value")
        return _image(need(part, "image_url", str, at), f"{at}.image_url")
    place, source = f"{at}.source", need(part, "source", dict, at)
    if one_of(source, "type", ("base64", "url"), place) == "url":
        return _image(need(source, "url", str, place), f"{place}.url")
    media, data = need(source, "media_type", str, place), need(source, "data", str, place)
    return _image(f"data:{media};base64,{data}", f"{place}.data")


def _image(address: str, at: str) -> Json:
    return {"type": "image", "image": Address(address, at)}


def _text_in(piece: Mapping[str, Any]) -> str | None:
    """The text of a piece of any kind, with its title and source, if it has some."""
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
    """What stands for a piece that has no text."""
    source = piece.get("source")
    named = [piece, source] if isinstance(source, dict) else [piece]
    about = [
        str(each[name])[:200]
        for each in named
        for name in ("title", "filename", "tool_name", "name", "media_type", "url")
        if isinstance(each.get(name), str) and not each[name].startswith("data:")
    ]
    return f"[{': '.join([piece['type'], *about[:1]])}]"


def _is_bill(text: str) -> bool:
    return bool(_BILLING.search(text)) and not _BILLING.sub("", text).strip()


def _piece(
    part: Any, at: str, kinds: Iterable[str], left_out: list[str], *, asks: bool
) -> str | Json | None:
    """The text or the image of a part, which may be of these kinds; nothing of a bill. What a
    message ``asks`` must be shown; other parts may be told otherwise."""
    if isinstance(part, str):
        return part
    kind = need(of_type(part, dict, at), "type", str, at)
    said: str | Json | None = None if kind in kinds else _text_in(part)
    if said is None:
        try:
            one_of(part, "type", kinds, at)
            said = _part(part, at)
        except RequestError:
            if asks:
                raise
            said = "[image]" if kind in _IMAGES else _note(part)
            left_out.append(at)
    return None if isinstance(said, str) and _is_bill(said) else said


def _pieces(
    content: Any, at: str, kinds: Iterable[str], left_out: list[str], *, asks: bool = False
) -> Pieces:
    """Those of a content."""
    if content is None or isinstance(content, str):
        return [content or ""]
    parts = enumerate(of_type(content, list, at))
    told = [_piece(part, f"{at}[{j}]", kinds, left_out, asks=asks) for j, part in parts]
    return [piece for piece in told if piece is not None]


def message_schema(
    roles: Sequence[str], parts: Mapping[str, str], *others: str, required: Sequence[str] = ()
) -> WithJsonSchema:
    """What a client is told of the form of a message: its ``parts`` by their kind, with the field
    that each of them has, and the names of its ``others`` fields. What they hold is read here."""
    kinds: list[Json] = [
        {"type": "object", "properties": {"type": {"const": kind}}, "required": ["type", field]}
        for kind, field in parts.items()
    ]
    listed = {"type": "array", "items": {"anyOf": kinds}}
    content = {"anyOf": [{"type": "string"}, {"type": "null"}, listed]}
    fields: Json = {"role": {"enum": list(roles)}, "content": content}
    fields |= {name: {} for name in others}
    return WithJsonSchema({"type": "object", "properties": fields, "required": list(required)})


def _newest(pieces: Sequence[Any]) -> int:
    """The index of the newest message if the user says it, or -1."""
    return len(pieces) - 1 if pieces and pieces[-1].get("role") == "user" else -1


# ---- chat completions ----------------------------------------------------------------------------

CHAT_ROLES = (*_SYSTEM, "user", "assistant", "tool", "function")
_CHAT_PARTS = {"text": "text", "refusal": "refusal", "image_url": "image_url"}
_CHAT_FIELDS = ("name", "reasoning_content", "tool_calls", "tool_call_id")
ChatMessage: TypeAlias = Annotated[
    Json, message_schema(CHAT_ROLES, _CHAT_PARTS, *_CHAT_FIELDS, required=("role",))
]


def of_chat(messages: Sequence[Json]) -> Conversation:
    """That of ``messages`` of chat completions; raises ``RequestError``."""
    told: list[Json] = []
    left_out: list[str] = []
    waiting: list[tuple[str, str]] = []  # the ids and names of calls without a result
    newest = _newest(messages)
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        role = one_of(message, "role", CHAT_ROLES, at)
        if i == newest and "content" not in message:  # it may be misspelt
            need(message, "content", str, at)
        kinds = ("text", "refusal") if role == "assistant" else ("text", "refusal", "image_url")
        place, asks = f"{at}.content", i == newest
        content = content_of(_pieces(message.get("content"), place, kinds, left_out, asks=asks))
        if role in _SYSTEM:
            role = "system"
            content = _BILLING.sub("", content) if isinstance(content, str) else content
        plain: Json = {"role": "tool" if role == "function" else role, "content": content}
        if message.get("name") is not None:
            plain["name"] = need(message, "name", str, at)
        if role == "assistant":
            if not content and message.get("refusal") is not None:
                plain["content"] = need(message, "refusal", str, at)
            thoughts = message.get("reasoning_content")
            if thoughts is None and isinstance(message.get("reasoning"), str):
                thoughts = message["reasoning"]
            if thoughts is not None:
                plain["reasoning_content"] = of_type(thoughts, str, f"{at}.reasoning_content")
            if calls := _chat_calls(message, i):
                plain["tool_calls"] = calls
                waiting = [(call["id"], call["function"]["name"]) for call in calls]
        elif plain["role"] == "tool":
            id = message.get("tool_call_id")
            if not isinstance(id, str):
                mine = [other for other, name in waiting if name == message.get("name")]
                id = next(iter(mine or [other for other, _ in waiting]), "")
            plain["tool_call_id"] = id
            waiting = [each for each in waiting if each[0] != id]
        told.append(plain)
    return Conversation(told, left_out)


def _chat_calls(message: Json, i: int) -> list[Json]:
    """The calls of an answer, also those with OpenAI's old name or of its other kind."""
    old, calls, told = message.get("function_call"), message.get("tool_calls"), list[Json]()
    if isinstance(old, dict) and not calls:
        calls = [{"function": old}]
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
        id = str(call.get("id") or f"call_{i}_{j}")
        told.append(_called(id, need(function, "name", str, f"{at}.function"), given))
    return told


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
    """That of ``system`` and ``messages`` of Anthropic's Messages API; raises ``RequestError``."""
    told: list[Json] = []
    left_out: list[str] = []
    pieces = _pieces(system, "system", ("text",), left_out)
    texts = [_BILLING.sub("", each) for each in pieces if isinstance(each, str)]
    if any(texts):
        told.append({"role": "system", "content": "\n\n".join(texts)})
    newest = _newest(messages)
    for i, message in enumerate(messages):
        role = one_of(message, "role", MESSAGES_ROLES, f"messages[{i}]")
        blocks, at = message.get("content") or "", f"messages[{i}].content"
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}] if blocks else []
        told += _blocks(role, of_type(blocks, list, at), at, left_out, asks=i == newest)
    return Conversation(told, left_out)


def _blocks(
    role: str, blocks: Sequence[Any], at: str, left_out: list[str], *, asks: bool
) -> Iterator[Json]:
    """One message of an answer; of others, one for each result of a tool, and one for the texts
    between them."""
    answers, any_result = role == "assistant", False
    thoughts, calls, said = list[str](), list[Json](), list[Content]()
    for j, block in enumerate(blocks):
        place = f"{at}[{j}]"
        block = {"type": "text", "text": block} if isinstance(block, str) else block
        kind = need(of_type(block, dict, place), "type", str, place)
        if answers and kind == "tool_use":
            id, name = (str(need(block, each, str, place)) for each in ("id", "name"))
            given = {} if block.get("input") is None else need(block, "input", dict, place)
            calls.append(_called(id, name, given))
        elif answers and kind in ("thinking", "redacted_thinking"):
            thoughts.append(block.get("thinking") or "")
        elif kind == "tool_result" and not answers:
            yield from _told(role, said)
            said, any_result = [], True
            yield _result(block, place, left_out)
        elif _is_silent(kind) and _text_in(block) is None:
            left_out.append(place)
        else:
            kinds = ("text",) if answers else ("text", "image")
            piece = _piece(block, place, kinds, left_out, asks=asks)
            if piece:
                said.append([piece] if isinstance(piece, dict) else piece)
    if answers:
        answer: Json = {"role": role, "content": "".join(map(str, said))}
        answer |= {"reasoning_content": "".join(thoughts)} if any(thoughts) else {}
        yield answer | ({"tool_calls": calls} if calls else {})
    else:
        yield from _told(role, said or ([] if any_result else [""]))


def _is_silent(kind: str) -> bool:
    """Whether a block of this kind, if it has no text, says nothing to a model."""
    silent = ("server_tool_use", "mcp_tool_use", "container_upload", "thinking", "tool_use")
    return kind in silent or kind.endswith("_result")


def _told(role: str, said: Sequence[Content]) -> Iterator[Json]:
    if said:
        yield {"role": role, "content": reduce(lambda one, other: joined(one, other), said)}


def _result(block: Json, at: str, left_out: list[str]) -> Json:
    """What a tool answered."""
    content: Content = "Error: " if block.get("is_error") else ""
    pieces = _pieces(block.get("content"), f"{at}.content", ("text", "image"), left_out)
    for j, piece in enumerate(pieces):
        said = [piece] if isinstance(piece, dict) else piece
        content = joined(content, said, between="\n" if j else "") if content else said
    return {
        "role": "tool",
        "tool_call_id": need(block, "tool_use_id", str, at),
        "content": content,
    }


# ---- Responses -----------------------------------------------------------------------------------

_ITEM_ROLES = (*_SYSTEM, "user", "assistant")
_ITEMS = ("message", "reasoning", "function_call", "function_call_output")
_ITEM_PARTS = {**dict.fromkeys(_TEXTS, "text"), "refusal": "refusal", "input_image": "image_url"}
_ITEM_FIELDS = ("type", "call_id", "name", "arguments", "output", "summary")
Item: TypeAlias = Annotated[Json, message_schema(_ITEM_ROLES, _ITEM_PARTS, *_ITEM_FIELDS)]


def of_responses(instructions: str | None, given: str | Sequence[Json]) -> Conversation:
    """That of ``instructions`` and ``input`` of the Responses API; raises ``RequestError``.

    What the model said between two inputs is one message, with its thoughts and its calls: that is
    how it was generated.
    """
    told: list[Json] = []
    left_out: list[str] = []
    instructions = _BILLING.sub("", instructions or "")
    if instructions:
        told.append({"role": "system", "content": instructions})
    items = [{"role": "user", "content": given}] if isinstance(given, str) or not given else given
    newest, answer = _newest(items), None  # the message of the model, if it is not over
    for i, item in enumerate(items):
        for known in _known(item, f"input[{i}]", left_out):
            message = _item(known, f"input[{i}]", left_out, asks=i == newest)
            if known["type"] == "reasoning" and not message["reasoning_content"]:
                continue  # encrypted thoughts of other services
            if message.get("role") != "assistant":
                answer = None
            if answer is None:
                answer = message if message.get("role") == "assistant" else None
                told.append(message)
                continue
            for name in ("content", "reasoning_content"):
                if message.get(name):
                    said = filter(None, (answer.get(name), message[name]))
                    answer[name] = "\n".join(said)
            answer["tool_calls"] = [*answer.get("tool_calls", ()), *message.get("tool_calls", ())]
    for message in told:
        if not message.get("tool_calls", True):
            del message["tool_calls"]
    return Conversation(told or [{"role": "user", "content": ""}], left_out)


def goes_on(given: str | Sequence[Json]) -> bool:
    """Whether the answer is the rest of the last item: one of the model that is in progress."""
    last = given[-1] if given and not isinstance(given, str) else {}
    is_message = last.get("type", "message") == "message" and last.get("role") == "assistant"
    return is_message and last.get("status") == "in_progress" and bool(last.get("content"))


def _item(item: Json, at: str, left_out: list[str], *, asks: bool) -> Json:
    """An item as a message, or as a part of one of the model."""
    kind, kinds = item["type"], (*_TEXTS, "refusal", "input_image")
    if kind == "function_call_output":
        output = [item["output"]] if isinstance(item.get("output"), dict) else item.get("output")
        content = content_of(_pieces(output, f"{at}.output", kinds, left_out))
        return {"role": "tool", "tool_call_id": item.get("call_id") or "", "content": content}
    if kind == "function_call":
        given = {} if item.get("arguments") is None else item["arguments"]
        given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        id = str(item.get("call_id") or item.get("id") or at)
        calls = [_called(id, need(item, "name", str, at), given)]
        return {"role": "assistant", "content": "", "tool_calls": calls}
    if kind == "reasoning":
        name = "content" if item.get("content") else "summary"
        pieces = _pieces(item.get(name), f"{at}.{name}", kinds[:-1], left_out)
        return {
            "role": "assistant",
            "content": "",
            "reasoning_content": "\n".join(map(str, pieces)),
        }
    role, place = one_of(item, "role", _ITEM_ROLES, at), f"{at}.content"
    if role == "assistant":
        pieces = _pieces(item.get("content"), place, kinds[:-1], left_out)
        return {"role": role, "content": "".join(map(str, pieces))}
    content = content_of(_pieces(item.get("content"), place, kinds, left_out, asks=asks))
    if role in _SYSTEM:
        role = "system"
        content = _BILLING.sub("", content) if isinstance(content, str) else content
    return {"role": role, "content": content}


def _known(item: Json, at: str, left_out: list[str]) -> Iterator[Json]:
    """An item as those that this server knows: a call of another kind as a call, its result as a
    result, and what has text as a message. Nothing if it is neither."""
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
        left_out.append(at)
