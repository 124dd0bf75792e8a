"""Other ways to tell a conversation, and whether a template told all of it.

Many templates take instructions only as the first message, some take none, some know no tools or
only one call per message, and some want user and assistant to alternate. A few raise an error; most
leave out what they do not expect. So every text gets a mark, and the marks in the rendering tell
which texts the model reads. Texts keep their order, so that a growing prompt keeps its beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from operator import gt
from typing import Any, NamedTuple, TypeAlias

from .pictures import is_image
from .values import REASONING, calls_of

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Content: TypeAlias = str | Sequence[Any]
Step: TypeAlias = Callable[[Messages], Messages]
WriteCalls: TypeAlias = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
"""Writes calls as the model itself does, given the name and the arguments of each."""

LETTERS = range(0x20000, 0x2A6DF)
"""Letters that hardly anybody writes, and that survive every way of printing a text."""
_INSTRUCTIONS = ("system", "developer")
_RESULTS = ("tool", "function")


# ---- marks -----------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What is wrong with a rendering: the places ``lost``, and how many texts are ``misplaced``."""

    lost: tuple[str, ...]
    misplaced: int


@dataclass(slots=True)
class Marked:
    """Messages and tools with a unique letter in every text, by which ``judge`` finds the text
    again; ``places`` says which text each letter is in."""

    messages: list[Any]
    tools: list[Any] | None
    places: dict[str, str]

    @classmethod
    def of(cls, messages: Messages, tools: Sequence[Any] | None, free: Iterator[str]) -> Marked:
        """``free`` yields letters that occur nowhere in the chat."""
        places: dict[str, str] = {}

        def put(text: Any, place: str) -> Any:
            """The text with a mark inside its first word, where no template would notice it."""
            if not isinstance(text, str) or not text.strip() or (char := next(free, "")) == "":
                return text
            places[char] = place
            word = _WORD.search(text)
            at = word.start() + 1 if word else len(text) - len(text.lstrip()) + 1
            return text[:at] + char + text[at:]

        told = []
        for i, message in enumerate(messages):
            copy, content = dict(message), message.get("content")
            if isinstance(content, list):
                copy["content"] = [
                    {**part, "text": put(part["text"], f"messages[{i}].content[{j}]")}
                    if isinstance(part, Mapping) and "text" in part
                    else part
                    for j, part in enumerate(content)
                ]
            elif content is not None:
                copy["content"] = put(content, f"messages[{i}].content")
            if calls := calls_of(message):
                copy["tool_calls"] = [
                    _with_marks(call, partial(put, place=f"messages[{i}].tool_calls[{j}]"))
                    for j, call in enumerate(calls)
                ]
            told.append(copy)
        if tools is not None:
            tools = [_with_marks(tool, partial(put, place="tools")) for tool in tools]
        return cls(told, tools, places)

    def judge(self, text: str, told: Messages) -> Verdict:
        """What is wrong with the rendered ``text`` of the messages, as ``told`` in some way."""
        if "\\u" in text or "\\U" in text:  # as JSON or Python spell them
            text = _ESCAPED.sub(_unescaped, text)
        found: dict[str, list[int]] = {}
        for letter in _LETTER.finditer(text):
            found.setdefault(letter[0], []).append(letter.start())
        lost, misplaced, last = dict(self.places), 0, -1
        for char in found:
            lost.pop(char, None)
        names: dict[Any, str] = {}  # id of a call -> the mark in its name
        results: list[tuple[int, str]] = []  # where each is, and the mark in its call's name
        starts = []
        waiting: list[Any] = []  # the ids of calls without a result
        ahead: list[Any] = []  # of calls whose result comes before that of an earlier call
        for message in told:
            called = ""
            for i, call in enumerate(calls_of(message)):
                waiting = [*(waiting if i else ()), call.get("id")]
                name = "".join(_LETTER.findall(str(call.get("function", call).get("name"))))
                called, names[call.get("id")] = called + name, name
            parts = []
            for chars in ("".join(_LETTER.findall(str(message.get("content")))), called):
                parts.append([found[char][0] for char in chars if char in found])
            if not any(parts) or message.get("role") in _INSTRUCTIONS:
                continue
            starts += parts[0] + parts[1]
            for part in parts:
                misplaced += sum(map(gt, part, part[1:]))
            first = min(parts[0] + parts[1])
            misplaced += first < last
            last = first
            if message.get("role") in _RESULTS:
                id = message.get("tool_call_id")
                results.append((first, names.get(id, "")))
                if id in waiting:
                    ahead += [id] if waiting[0] != id else []
                    waiting = waiting[waiting.index(id) + 1 :]
        again = []
        for name in names.values():  # a name that is repeated belongs to the result after it
            again += [(at, name) for at in found.get(name, ())[1:]]
        for place, name in results if again else ():
            before = max((start for start in starts if start < place), default=-1)
            nearest = [other for at, other in again if before < at < place]
            misplaced += bool(nearest and name) and name not in nearest
        for id in () if again else ahead:  # without names, only the order or the ids tell
            misplaced += str(id) not in text
        return Verdict(tuple(dict.fromkeys(lost.values())), misplaced)


_WORD = re.compile(r"(?<![<|\[/\w])[^\W\d_]{2}")
_LETTER = re.compile(f"[{chr(LETTERS.start)}-{chr(LETTERS.stop - 1)}]")
_ESCAPED = re.compile(r"\\u(d8[46][0-9a-f])\\u(d[c-f][0-9a-f]{2})|\\U(000[2-3][0-9a-f]{4})", re.I)


def _with_marks(call: Any, put: Callable[[Any], Any]) -> Any:
    """A call or a tool with marks in its name, and in its first argument that is a text, or else in
    the name of its first argument."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    marked = {**function, "name": put(function.get("name"))}
    given = function.get("arguments")
    if isinstance(given, str):
        marked["arguments"] = put(given)
    elif isinstance(given, Mapping) and given:
        texts = [key for key, inner in given.items() if isinstance(inner, str) and inner.strip()]
        first = (texts or [*given])[0]
        marked["arguments"] = (
            {**given, first: put(given[first])}
            if texts
            else {put(key) if key == first else key: inner for key, inner in given.items()}
        )
    return {**call, "function": marked} if "function" in call else marked


def _unescaped(found: re.Match[str]) -> str:
    if found[3]:
        return chr(int(found[3], 16))
    high, low = int(found[1], 16) - 0xD800, int(found[2], 16) - 0xDC00
    return chr(0x10000 + (high << 10) + low)


# ---- ways ------------------------------------------------------------------------------------


def _grouped(
    messages: Messages,
) -> Iterator[tuple[Mapping[str, Any], list[list[Mapping[str, Any]]], list[Mapping[str, Any]]]]:
    """Each message with the results of each of its calls, and the other messages before the next
    answer. A result without the id of a call belongs to the first call without a result."""
    answer: Mapping[str, Any] | None = None
    results: dict[Any, list[Mapping[str, Any]]] = {}
    others: list[Mapping[str, Any]] = []
    for message in messages:
        id = message.get("tool_call_id")
        if (
            message.get("role") in _RESULTS
            and results
            and (id in results or not all(results.values()))
        ):
            waiting = [each for each, known in results.items() if not known]
            if id not in results:
                id = waiting[0]
            elif results[id]:  # there may be another call with this id
                id = next((each for each in waiting if isinstance(each, int)), id)
                message = {**message, "tool_call_id": id} if isinstance(id, str) else message
            results[id].append(message)
        elif message.get("role") != "assistant" and results:
            others.append(message)
        else:
            if answer is not None:
                yield answer, list(results.values()), others
            answer, others = message, []
            results = {}
            for i, call in enumerate(calls_of(message)):
                id = call.get("id", i)
                results[i if id in results else id] = []
    if answer is not None:
        yield answer, list(results.values()), others


def in_order(messages: Messages) -> Messages:
    """The messages, with the results of each answer's calls right after it, in the order of the
    calls: if a template shows no ids, only the order tells which is which."""
    told: list[Mapping[str, Any]] = []
    for message, results, others in _grouped(messages):
        told += [message, *chain.from_iterable(results), *others]
    return told


def ways(messages: Messages, write: WriteCalls | None) -> Iterator[Sequence[Step]]:
    """Ways to tell a conversation, each a sequence of steps, the closest first.

    For calls: one call per message, with the text before it as the last of its thoughts if it has
    any, or as a message of its own; or calls as text, as the model itself writes them, with results
    in their own role or as the user's. Each of these also with the parts of a text joined, or with
    a tool's images as the user's; with instructions as one message, or as the user's, except a
    first message or all of them; and then with user and assistant alternating.
    """
    calls: list[Sequence[Step]] = [()]
    shown: list[Sequence[Step]] = [()]
    instructions: list[Sequence[Step]] = [()]
    roles, kinds = set[Any](), set[type]()
    for message in messages:
        roles.add(message.get("role"))
        kinds.add(type(message.get("content")))
    if list in kinds:
        shown += [(_in_one_piece,), (_handed_on,)]
    if not roles.isdisjoint(_RESULTS) or any(map(calls_of, messages)):
        spelled = partial(_spelled, write=write)
        calls += [(_as_tools,), (_singly,), (_apart,), (_apart, _singly)]
        calls += [(spelled,), (spelled, partial(_by_user, roles=_RESULTS))]
    if not roles.isdisjoint(_INSTRUCTIONS):
        instructions += [(_gathered,)]
        instructions += [(partial(_by_user, roles=_INSTRUCTIONS, keep=keep),) for keep in (1, 0)]
    for steps in product(calls, shown, instructions, [(), (_in_turn,)]):
        yield [*chain.from_iterable(steps)]


def told_in(steps: Sequence[Step], messages: Messages) -> Messages:
    """The messages after these steps."""
    for step in steps:
        messages = step(messages)
    return messages


def _in_one_piece(messages: Messages) -> Messages:
    """Join the text parts of each content."""
    return [
        {**message, "content": "\n".join(part["text"] for part in parts)}
        if isinstance(parts := message.get("content"), list) and all("text" in p for p in parts)
        else message
        for message in messages
    ]


def _as_tools(messages: Messages) -> Messages:
    """Give results of functions the role of tools."""
    return [
        {**message, "role": "tool"} if message.get("role") in _RESULTS else message
        for message in messages
    ]


def _spelled(messages: Messages, write: WriteCalls | None) -> Messages:
    """Write calls into the text of their message."""
    told: list[Mapping[str, Any]] = []
    for message in messages:
        functions = [call.get("function", call) for call in calls_of(message)]
        if functions:
            if write is not None and all(
                isinstance(f.get("arguments"), Mapping) for f in functions
            ):
                text = write([(str(f.get("name")), f["arguments"]) for f in functions])
            else:
                text = "\n".join(json.dumps(each, ensure_ascii=False) for each in functions)
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            said = message.get("content")
            message = {**rest, "content": joined(said, text) if said else text}
        told.append(message)
    return told


def _by_user(messages: Messages, roles: Sequence[str], keep: int = 0) -> Messages:
    """Make messages of these ``roles`` the user's, except among the first ``keep`` messages of the
    conversation; join adjacent messages of the user."""
    told: list[Mapping[str, Any]] = []
    for i, message in enumerate(messages):
        if message.get("role") in roles and i >= keep:
            said = message.get("content") or ""
            said = joined("Result: ", said, "") if roles is _RESULTS else said
            message = {"role": "user", "content": said}
        told.append(message)
    return _joined(told, ("user",))


def _joined(messages: Messages, roles: Sequence[str]) -> Messages:
    """Join adjacent messages of the same one of these roles, unless calls stand between them."""
    told: list[Mapping[str, Any]] = []
    for message in messages:
        last = told[-1] if told else {}
        role = message.get("role")
        calls = calls_of(last) or (calls_of(message) and last.get("content"))
        if role in roles and last.get("role") == role and not calls:
            content = joined(last.get("content") or "", message.get("content") or "", "\n\n")
            told[-1] = {**last, **message, "content": content}
        else:
            told.append(message)
    return told


def _gathered(messages: Messages) -> Messages:
    """Join the instructions at the beginning of a conversation into one message."""
    first = next((i for i, m in enumerate(messages) if m.get("role") not in _INSTRUCTIONS), None)
    heads = [{**message, "role": "system"} for message in messages[:first]]
    return [*_joined(heads, ("system",)), *(() if first is None else messages[first:])]


def _in_turn(messages: Messages) -> Messages:
    """Let user and assistant alternate: join adjacent messages; a greeting gets a question."""
    told = [*_joined(messages, ("user", "assistant"))]
    first = next((i for i, m in enumerate(told) if m.get("role") not in _INSTRUCTIONS), 0)
    if told and told[first].get("role") == "assistant":
        told.insert(first, {"role": "user", "content": ""})
    return told


def _apart(messages: Messages) -> Messages:
    """Make the text before a call a message of its own."""
    told: list[Mapping[str, Any]] = []
    for message in messages:
        if calls_of(message) and message.get("content"):
            told.append({name: each for name, each in message.items() if name != "tool_calls"})
            message = {"role": "assistant", "tool_calls": message["tool_calls"]}
        told.append(message)
    return told


def _singly(messages: Messages) -> Messages:
    """Put each call into a message of its own, followed by its results; if the message has
    thoughts, its text becomes the last of them."""
    told: list[Mapping[str, Any]] = []
    for message, results, others in _grouped(messages):
        thoughts = next((message[name] for name in REASONING if message.get(name)), None)
        said = message
        if results and thoughts and message.get("content"):
            said = {key: value for key, value in message.items() if key not in REASONING}
            said |= {"content": "", REASONING[0]: f"{thoughts}\n\n{message['content']}"}
        for call, returned in zip(calls_of(message), results, strict=False):
            told += [{**said, "tool_calls": [call]}, *returned]
            said = {"role": message.get("role"), "content": ""}
        told += others if results else [message, *others]
    return told


def joined(one: Content, other: Content, between: str = "\n") -> Content:
    """Two contents joined into one: a string, or a list of parts if either is one."""
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}{between if one else ''}{other}"
    parts = [
        [{"type": "text", "text": each}] if isinstance(each, str) else list(each)
        for each in (one, other)
    ]
    return [*parts[0], *parts[1]]


def _handed_on(messages: Messages) -> Messages:
    """Move images that tools returned into a user message after the results."""
    told: list[Mapping[str, Any]] = []
    images: list[Any] = []
    for message in [*messages, {}]:
        role = message.get("role")
        if images and role not in _RESULTS:
            told.append({"role": "user", "content": images})
            images = []
        parts = message.get("content")
        if role in _RESULTS and isinstance(parts, list):
            images += [part for part in parts if is_image(part)]
            texts = [part.get("text", "") for part in parts if not is_image(part)]
            message = {**message, "content": "\n".join(texts)}
        if message:
            told.append(message)
    return told
