"""What came before in a conversation, as this server takes it, whatever server it came from.

A history was accepted once, and the person in front of an agent cannot edit it: so it is never a
reason to refuse a request. Bytes that are no text become U+FFFD; nulls become what they mean;
pieces of kinds that mean nothing here are told as their text or as a note, or are left out, and
named. What the newest message of the user asks for is not history: there, pieces stay as they are,
and what cannot be shown to the model is an error.

Works on bodies as they come, before they are validated, and leaves to that what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
"""A line of instructions that differs from request to request, and says nothing."""
_DEEPEST = 64


class History(NamedTuple):
    """A body whose conversation can be read, and what of it was left out or is only noted."""

    body: Json
    left_out: list[str]


Mend: TypeAlias = Callable[[Mapping[str, Any]], History]


# ---- every API -----------------------------------------------------------------------------------


def _as_text(value: Any, depth: int = 0) -> Any:
    """A value in which everything that is no text became U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() and "\0" not in value else _NO_TEXT.sub("\ufffd", value)
    if depth > _DEEPEST:  # refused later
        return value
    if isinstance(value, list):
        return [_as_text(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        return {_as_text(key): _as_text(inner, depth + 1) for key, inner in value.items()}
    return value


def _without_billing(value: Any) -> Any:
    """Instructions without the lines of a bill; blocks with nothing else are dropped."""
    if isinstance(value, str):
        return _BILLING.sub("", value)
    if not isinstance(value, list):
        return value
    kept = []
    for block in value:
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str) or _BILLING.search(text) is None:
            kept.append(block)
        elif _BILLING.sub("", text).strip():
            kept.append({**block, "text": _BILLING.sub("", text)})
    return kept


def _without_bills(content: Any) -> Any:
    """What anybody says without the blocks that are nothing but a bill."""
    if not isinstance(content, list):
        return content
    return [block for block in content if not isinstance(block, dict) or not _is_bill(block)]


def _is_bill(block: Mapping[str, Any]) -> bool:
    text = block.get("text")
    if not isinstance(text, str) or _BILLING.search(text) is None:
        return False
    return not _BILLING.sub("", text).strip()


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


def _kind(piece: Any) -> str:
    kind = piece.get("type") if isinstance(piece, dict) else None
    return kind if isinstance(kind, str) else ""


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
    return f"[{': '.join([_kind(piece), *about[:1]])}]"


def _parts(
    content: Any, at: str, known: frozenset[str], asks: bool, left_out: list[str], text: str
) -> Any:
    """Content whose parts of unknown kinds are told as parts of the kind ``text``; what a message
    ``asks`` stays as it is if it has no text."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    told = []
    for j, part in enumerate(content):
        if isinstance(part, str):
            part = {"type": text, "text": part}
        elif isinstance(part, dict) and _kind(part) and _kind(part) not in known:
            said = _text_in(part)
            if said is None and not asks:
                said = _note(part)
                left_out.append(f"{at}[{j}]")
            if said is not None:
                part = {"type": text, "text": said}
        told.append(part)
    return told


def _newest(pieces: list[Any]) -> int:
    """The index of the newest message if the user says it, or -1."""
    last = pieces[-1] if pieces else None
    is_user = isinstance(last, dict) and last.get("role") == "user"
    return len(pieces) - 1 if is_user else -1


# ---- chat completions ----------------------------------------------------------------------------

_CHAT_PARTS = frozenset({"text", "refusal", "image_url"})


def chat_history(body: Mapping[str, Any]) -> History:
    """That of ``messages`` of chat completions."""
    messages, left_out = _as_text(body.get("messages")), list[str]()
    if not isinstance(messages, list):
        return History(dict(body), left_out)
    newest, told = _newest(messages), []
    waiting: list[tuple[str, str]] = []  # the ids and names of calls without a result
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            told.append(message)
            continue
        role = message.get("role")
        at = f"messages[{i}]"
        if i != newest or "content" in message:  # a question without one may be misspelt
            known = _CHAT_PARTS - ({"image_url"} if role == "assistant" else set())
            content = _parts(
                message.get("content"), f"{at}.content", known, i == newest, left_out, "text"
            )
            message = {**message, "content": content}
        if role in ("system", "developer"):
            message["content"] = _without_billing(message["content"])
        elif role == "user" and "content" in message:
            message = {**message, "content": _without_bills(message["content"])}
        elif role == "assistant":
            calls = _chat_calls(message, i)
            message.pop("function_call", None)
            if calls is not None:
                message["tool_calls"] = calls
                waiting = [
                    (str(call.get("id")), str(call["function"].get("name")))
                    for call in calls
                    if isinstance(call, dict) and isinstance(call.get("function"), dict)
                ]
        elif role in ("tool", "function"):
            message["role"] = "tool"
            if not isinstance(message.get("tool_call_id"), str):
                mine = [id for id, name in waiting if name == message.get("name")]
                message["tool_call_id"] = next(iter(mine or [id for id, _ in waiting]), "")
            waiting = [each for each in waiting if each[0] != message["tool_call_id"]]
        told.append(message)
    return History({**body, "messages": told}, left_out)


def _chat_calls(message: Json, i: int) -> list[Any] | None:
    """The calls of an answer, also those with OpenAI's old name or of its other kind."""
    old, calls = message.get("function_call"), message.get("tool_calls")
    if isinstance(old, dict) and not calls:
        calls = [{"function": old}]
    if not isinstance(calls, list):
        return None
    told = []
    for j, call in enumerate(calls):
        if isinstance(call, dict):
            custom = call.get("custom")
            if isinstance(custom, dict) and "function" not in call:
                given = {"input": custom.get("input")}
                call = {**call, "function": {"name": custom.get("name"), "arguments": given}}
            call = {**call, "type": "function", "id": call.get("id") or f"call_{i}_{j}"}
            function = call.get("function")
            if isinstance(function, dict) and function.get("arguments") is None:
                call["function"] = {**function, "arguments": "{}"}
        told.append(call)
    return told


# ---- Messages ------------------------------------------------------------------------------------

_RESULT_BLOCKS = frozenset({"text", "image"})
_SAID = {"user": {"text", "image", "tool_result"}}
_ANSWERED = {"text", "tool_use", "thinking", "redacted_thinking"}
_WITHOUT_WORDS = ("server_tool_use", "mcp_tool_use", "container_upload", "thinking", "tool_use")


def messages_history(body: Mapping[str, Any]) -> History:
    """That of ``messages`` and ``system`` of Anthropic's Messages API."""
    left_out: list[str] = []
    changed = dict(body)
    if "system" in body:
        changed["system"] = _without_billing(_as_text(body["system"]))
        if isinstance(changed["system"], list):
            known = frozenset({"text"})
            changed["system"] = _parts(changed["system"], "system", known, False, left_out, "text")
    messages = _as_text(body.get("messages"))
    if not isinstance(messages, list):
        return History(changed, left_out)
    newest = _newest(messages)
    changed["messages"] = [
        {**each, "content": _blocks(each, f"messages[{i}].content", i == newest, left_out)}
        if isinstance(each, dict)
        else each
        for i, each in enumerate(messages)
    ]
    return History(changed, left_out)


def _blocks(message: Json, at: str, asks: bool, left_out: list[str]) -> Any:
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    answers = message.get("role") == "assistant"
    known = _ANSWERED if answers else {"text", "image", "tool_result"}
    told = []
    for j, block in enumerate(content):
        place = f"{at}[{j}]"
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        kind = _kind(block)
        if not kind:
            told.append(block)
            continue
        if kind == "text" and (block.get("text") == "" or _is_bill(block)):
            continue
        if kind == "tool_use":
            block = {**block, "input": {} if block.get("input") is None else block["input"]}
        elif kind == "thinking":
            block = {**block, "thinking": block.get("thinking") or ""}
        elif kind == "tool_result":
            given = _parts(
                block.get("content"), f"{place}.content", _RESULT_BLOCKS, False, left_out, "text"
            )
            block = {**block, "content": _without_files(given, f"{place}.content", left_out)}
        if kind == "image" and (answers or not asks):
            block = _without_files([block], place, left_out, none=answers)[0]
            kind = _kind(block)
        if kind in known:
            told.append(block)
            continue
        said = _text_in(block)
        if said is None and asks and kind not in _WITHOUT_WORDS:
            told.append(block)
            continue
        if said is None:
            left_out.append(place)
        if said is None and kind not in _WITHOUT_WORDS and not kind.endswith("_result"):
            said = _note(block)
        if said is not None:
            told.append({"type": "text", "text": said})
    return told


def _without_files(blocks: Any, at: str, left_out: list[str], *, none: bool = False) -> Any:
    """Blocks in which images that only another service can read, or all of them, are a note."""
    if not isinstance(blocks, list):
        return blocks
    told = []
    for j, block in enumerate(blocks):
        source = block.get("source") if isinstance(block, dict) else None
        kind = source.get("type") if isinstance(source, dict) else None
        if _kind(block) == "image" and (none or kind not in ("base64", "url")):
            left_out.append(f"{at}[{j}]")
            block = {"type": "text", "text": "[image]"}
        told.append(block)
    return told


# ---- Responses -----------------------------------------------------------------------------------

_ITEMS = ("message", "reasoning", "function_call", "function_call_output", "item_reference")
_ITEM_PARTS = frozenset(
    (
        *("input_text", "output_text", "text", "summary_text", "reasoning_text"),
        *("refusal", "input_image"),
    )
)


def responses_history(body: Mapping[str, Any]) -> History:
    """That of ``input`` and ``instructions`` of the Responses API."""
    left_out: list[str] = []
    changed = dict(body)
    if isinstance(body.get("instructions"), str):
        changed["instructions"] = _without_billing(_as_text(body["instructions"]))
    given = _as_text(body.get("input"))
    if given in ("", []):
        given = [{"type": "message", "role": "user", "content": ""}]
    if not isinstance(given, list):
        return History({**changed, "input": given} if "input" in body else changed, left_out)
    newest, told = _newest(given), []
    for i, item in enumerate(given):
        at = f"input[{i}]"
        kind = _kind(item) or "message"
        if not isinstance(item, dict):
            told.append(item)
        elif kind == "message":
            known = _ITEM_PARTS - ({"input_image"} if item.get("role") == "assistant" else set())
            content = _parts(
                item.get("content"), f"{at}.content", known, i == newest, left_out, "text"
            )
            if item.get("role") in ("system", "developer"):
                content = _without_billing(content)
            elif item.get("role") == "user":
                content = _without_bills(content)
            told.append({**item, "type": "message", "content": content})
        elif kind in _ITEMS:
            told.append(_item(item, kind, at, left_out))
        else:
            others = list(_foreign(item, kind))
            if not others:
                left_out.append(at)
            told += [_item(other, other["type"], at, left_out) for other in others]
    if not told:
        told = [{"type": "message", "role": "user", "content": ""}]
    return History({**changed, "input": told}, left_out)


def _item(item: Json, kind: str, at: str, left_out: list[str]) -> Json:
    item = dict(item)
    if kind == "function_call":
        given = item.get("arguments")
        item["arguments"] = (
            given
            if isinstance(given, str)
            else json.dumps({} if given is None else given, ensure_ascii=False)
        )
        item["call_id"] = item.get("call_id") or item.get("id") or at
    elif kind == "function_call_output":
        output = item.get("output")
        if isinstance(output, dict):
            output = [output]
        item["output"] = _parts(output, f"{at}.output", _ITEM_PARTS, False, left_out, "text")
        item["output"] = (
            [
                {"type": "text", "text": "[image]"}
                if _kind(part) == "input_image" and not part.get("image_url")
                else part
                for part in item["output"]
            ]
            if isinstance(item["output"], list)
            else item["output"]
        )
        item["call_id"] = item.get("call_id") or ""
    return item


def _foreign(item: Json, kind: str) -> Iterator[Json]:
    """An item of another kind as those that this server knows: a call of another kind as a call,
    its result as a result, and what has text as a message. Nothing if it is neither."""
    id = item.get("call_id") or item.get("id")
    if kind.endswith("_output") and item.get("call_id"):
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
    elif item.get("role") in ("user", "assistant", "system", "developer"):
        text = _text_in(item)
        if text is not None:
            yield {"type": "message", "role": item["role"], "content": text}
