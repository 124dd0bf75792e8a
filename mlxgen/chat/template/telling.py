"""Other ways to tell a conversation, and whether a template told all of it.

Many templates take instructions only as the first message, some take none, some know no tools or
only one call a message, and some want user and assistant in turn. A few say so; most leave out what
they do not expect. So every text gets a mark, and what of the marks the rendering has is what the
model reads. What was said stays in its place: a prompt that grows keeps its beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise, product
from typing import Any, NamedTuple, TypeAlias

from .pictures import is_image
from .values import REASONING, calls_of

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Content: TypeAlias = str | Sequence[Any]
Way: TypeAlias = Callable[[Messages], Messages]
WriteCalls: TypeAlias = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
"""The text that a model itself writes for calls: of the name and the arguments of each."""

LETTERS = range(0x20000, 0x2A6DF)
"""Letters that hardly anybody writes, and that every way of printing a text prints as they are."""
_INSTRUCTIONS = ("system", "developer")
_RESULTS = ("tool", "function")


# ---- marks -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Mark:
    """A character put into a text, and what it stands for: ``part`` of a message, in the ``order``
    of the conversation."""

    char: str
    at: str
    part: str  # instructions, text, name, arguments, result or tool
    order: tuple[int, int]
    name: str = ""  # of a result: the mark of the name of its call


class Verdict(NamedTuple):
    """What a rendering lacks: the places ``lost``, how many texts or results are ``misplaced``, and
    whether the ``tools`` are shown."""

    lost: tuple[str, ...]
    misplaced: int
    tools: bool = True


@dataclass(slots=True)
class Marked:
    """Messages and tools with a mark in every text, by which ``judge`` finds them again."""

    messages: list[Any]
    tools: list[Any] | None
    _marks: list[_Mark] = field(default_factory=list)

    @classmethod
    def of(cls, messages: Messages, tools: Sequence[Any] | None, free: Iterator[str]) -> Marked:
        """``free`` are letters that occur nowhere."""
        made = cls([], None)
        names: dict[Any, str] = {}  # the mark of the name that belongs to the id of a call
        waiting: list[Any] = []
        for i, message in enumerate(messages):
            at = f"messages[{i}]"
            role = message.get("role")
            result = role in _RESULTS
            part = "instructions" if role in _INSTRUCTIONS else "result" if result else "text"
            id = message.get("tool_call_id")
            if result and id not in names and waiting:
                id = waiting[0]
            if id in waiting:
                waiting.remove(id)
            name = names.get(id, "") if result else ""

            def put(
                text: Any,
                place: str,
                part: str = part,
                call: int = -1,
                i: int = i,
                name: str = name,
            ) -> Any:
                if not isinstance(text, str) or not text.strip():
                    return text
                char = next(free, None)
                if char is None:
                    return text
                made._marks.append(_Mark(char, place, part, (i, call), name))
                return _with_mark(text, char)

            copy = dict(message)
            content = copy.get("content")
            if isinstance(content, list):
                copy["content"] = [
                    {**each, "text": put(each["text"], f"{at}.content[{j}]")}
                    if isinstance(each, Mapping) and "text" in each
                    else each
                    for j, each in enumerate(content)
                ]
            else:
                copy["content"] = put(content, f"{at}.content")
            if content is None:
                del copy["content"]
            calls = []
            for j, call in enumerate(calls_of(message)):
                place = f"{at}.tool_calls[{j}]"
                function = dict(call.get("function", call))
                function["name"] = put(function.get("name"), place, "name", j)
                names[call.get("id", (i, j))] = made._marks[-1].char if made._marks else ""
                waiting.append(call.get("id", (i, j)))
                arguments = partial(put, place=place, part="arguments", call=j)
                function["arguments"] = _first_marked(function.get("arguments"), arguments)
                calls.append({**call, "function": function} if "function" in call else function)
            if calls:
                copy["tool_calls"] = calls
            made.messages.append(copy)
        if tools is not None:
            made.tools = [made._tool(tool, next(free, None)) for tool in tools]
        return made

    def _tool(self, tool: Any, char: str | None) -> Any:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not function.get("name") or char is None:
            return tool
        self._marks.append(_Mark(char, "tools", "tool", (-1, -1)))
        named = {**function, "name": _with_mark(str(function["name"]), char)}
        return {**tool, "function": named}

    def judge(self, text: str) -> Verdict:
        """What a rendering of these messages lacks."""
        if "\\u" in text or "\\U" in text:  # as JSON or Python spell them
            text = _ESCAPED.sub(_unescaped, text)
        found: dict[str, list[int]] = {mark.char: [] for mark in self._marks}
        for place in _LETTER.finditer(text):
            if place[0] in found:
                found[place[0]].append(place.start())
        lost: list[str] = []
        tools = True
        placed: list[tuple[int, _Mark]] = []
        for mark in self._marks:
            if mark.part == "tool":
                tools &= bool(found[mark.char])
            elif not found[mark.char]:
                lost.append(mark.at)
            elif mark.part != "instructions":
                placed.append((found[mark.char][0], mark))
        # Calls and texts are in order, so are results, each of them after its call, and texts after
        # earlier results.
        said = [(at, mark.order) for at, mark in placed if mark.part != "result"]
        misplaced = 0
        for (a, one), (b, other) in pairwise(said):
            misplaced += a > b and not (one[0] == other[0] and -1 in (one[1], other[1]))
        results = [at for at, mark in placed if mark.part == "result"]
        misplaced += sum(a > b for a, b in pairwise(results))
        behind = -1
        for at, mark in placed:
            if mark.part == "result":
                behind = max(behind, at)
                misplaced += bool(mark.name) and at < (found[mark.name] or [-1])[0]
            elif mark.part == "text":
                misplaced += at < behind
        # A name that is told again belongs to the result after it.
        starts = sorted(at for at, _ in placed)
        again = sorted(
            (at, mark.char)
            for mark in self._marks
            if mark.part == "name"
            for at in found[mark.char][1:]
        )
        for at, mark in placed:
            if mark.part != "result" or not again:
                continue
            before = max((start for start in starts if start < at), default=-1)
            names = [char for place, char in again if before < place < at]
            misplaced += bool(names) and bool(mark.name) and mark.name not in names
        return Verdict(tuple(dict.fromkeys(lost)), misplaced, tools)


_WORD = re.compile(r"(?<![<|\[/\w])[^\W\d_]{2}")
_LETTER = re.compile(f"[{chr(LETTERS.start)}-{chr(LETTERS.stop - 1)}]")
_ESCAPED = re.compile(r"\\u(d8[46][0-9a-f])\\u(d[c-f][0-9a-f]{2})|\\U(000[2-3][0-9a-f]{4})", re.I)


def _with_mark(text: str, char: str) -> str:
    """The text with a mark inside its first word, where no template looks at it."""
    word = _WORD.search(text)
    at = word.start() + 1 if word else len(text) - len(text.lstrip()) + 1
    return text[:at] + char + text[at:]


def _first_marked(value: Any, put: Callable[[str], str]) -> Any:
    """Arguments with a mark in the first text in them, or else in the first name."""
    if isinstance(value, str):
        return put(value)
    if not isinstance(value, Mapping) or not value:
        return value
    for key, inner in value.items():
        if isinstance(inner, str) and inner.strip():
            return {**value, key: put(inner)}
    first = next(iter(value))
    return {put(key) if key == first else key: inner for key, inner in value.items()}


def _unescaped(found: re.Match[str]) -> str:
    if found[3]:
        return chr(int(found[3], 16))
    high, low = int(found[1], 16) - 0xD800, int(found[2], 16) - 0xDC00
    return chr(0x10000 + (high << 10) + low)


# ---- ways ------------------------------------------------------------------------------------


def in_order(messages: Messages) -> Messages:
    """The same with the results of each answer's calls in the order of the calls, right after them:
    where a template shows no ids, only that tells which is which."""
    told: list[Mapping[str, Any]] = []
    places: dict[Any, int] = {}
    results: list[tuple[int, Mapping[str, Any]]] = []
    others: list[Mapping[str, Any]] = []

    def close() -> None:
        told.extend(result for _, result in sorted(results, key=lambda each: each[0]))
        told.extend(others)
        results.clear()
        others.clear()

    for message in messages:
        role = message.get("role")
        if role in _RESULTS and places:
            taken = [place for place, _ in results]
            free = next((p for p in range(len(places)) if p not in taken), len(places))
            id = message.get("tool_call_id")
            if id not in places and free < len(places):  # one without a name of its own
                id = next(each for each, place in places.items() if place == free)
                if isinstance(id, str):
                    message = {**message, "tool_call_id": id}
            results.append((places.get(id, len(places)), message))
        elif role == "assistant":
            close()
            told.append(message)
            calls = calls_of(message)
            places = {call.get("id", i): i for i, call in enumerate(calls)}
        elif places:
            others.append(message)
        else:
            told.append(message)
    close()
    return told


def ways(messages: Messages, write: WriteCalls | None) -> Iterator[Way]:
    """Ways to tell a conversation, the closest first.

    Images that a tool returned as the user's; what was said before a call as a thought, if there
    are others, or as a message of its own; one call a message; calls as text, as the model itself
    writes them, with results in their role, or as the user's. Each of these with instructions as
    one message, after the first message as the user's, or all of them so; and then with user and
    assistant in turn.
    """
    shown: list[Way] = [_as_it_is]
    if any(map(_shows, messages)):
        shown.append(_handed_on)
    calls: list[Way] = [_as_it_is]
    if any(message.get("role") in _RESULTS or calls_of(message) for message in messages):
        calls += [_thoughtful, _apart, _singly, lambda told: _singly(_apart(told))]
        spelled = partial(_spelled, write=write)
        calls += [partial(_taken, (show, spelled)) for show in shown]
        calls += [partial(_taken, (_handed_on, spelled, _results_as_users))]
    instructions: list[Way] = [_as_it_is]
    if any(message.get("role") in _INSTRUCTIONS for message in messages):
        instructions += [_gathered, lambda told: _told(told, keep=1), lambda told: _told(told, 0)]
    for steps in product(shown, calls, instructions, (_as_it_is, _in_turn)):
        yield partial(_taken, steps)


def _taken(steps: Sequence[Way], messages: Messages) -> Messages:
    for step in steps:
        messages = step(messages)
    return messages


def _as_it_is(messages: Messages) -> Messages:
    return messages


def _spelled(messages: Messages, write: WriteCalls | None) -> Messages:
    """Calls as the text of their message."""
    told: list[Mapping[str, Any]] = []
    for message in messages:
        calls = calls_of(message)
        if calls:
            said = message.get("content") or ""
            text = _written([call.get("function", call) for call in calls], write)
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            message = {**rest, "content": joined(said, text) if said else text}
        told.append(message)
    return told


def _results_as_users(messages: Messages) -> Messages:
    return _joined_users(
        [
            {"role": "user", "content": joined("Result: ", message.get("content") or "", "")}
            if message.get("role") in _RESULTS
            else message
            for message in messages
        ]
    )


def _written(functions: Sequence[Mapping[str, Any]], write: WriteCalls | None) -> str:
    if write is not None and all(isinstance(f.get("arguments"), Mapping) for f in functions):
        return write([(str(f.get("name")), f["arguments"]) for f in functions])
    return "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)


def _told(messages: Messages, keep: int) -> Messages:
    """All but the first ``keep`` instructions as the user's; neighbours of the user are one."""
    return _joined_users(
        [
            {**message, "role": "user"}
            if message.get("role") in _INSTRUCTIONS and i >= keep
            else message
            for i, message in enumerate(messages)
        ]
    )


def _joined_users(messages: Messages) -> Messages:
    return _joined(messages, ("user",))


def _joined(messages: Messages, roles: Sequence[str]) -> Messages:
    """Neighbours of one of these roles as one message, unless one has calls."""
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
    """The instructions with which a conversation begins as one message."""
    first = next((i for i, m in enumerate(messages) if m.get("role") not in _INSTRUCTIONS), None)
    heads = [{**message, "role": "system"} for message in messages[:first]]
    return [*_joined(heads, ("system",)), *(() if first is None else messages[first:])]


def _in_turn(messages: Messages) -> Messages:
    """User and assistant in turn: neighbours are one, and a greeting answers an empty message."""
    told = [*_joined(messages, ("user", "assistant"))]
    first = next((i for i, m in enumerate(told) if m.get("role") not in _INSTRUCTIONS), 0)
    if told and told[first].get("role") == "assistant":
        told.insert(first, {"role": "user", "content": ""})
    return told


def _apart(messages: Messages) -> Messages:
    """What was said before a call as a message of its own."""
    told: list[Mapping[str, Any]] = []
    for message in messages:
        if calls_of(message) and message.get("content"):
            told.append({name: each for name, each in message.items() if name != "tool_calls"})
            message = {"role": "assistant", "tool_calls": message["tool_calls"]}
        told.append(message)
    return told


def _singly(messages: Messages) -> Messages:
    """Each call in a message of its own, and its results after it."""
    told: list[Mapping[str, Any]] = []
    waiting: dict[Any, list[Mapping[str, Any]]] = {}  # by its id, a call and its results so far
    for message in messages:
        if message.get("role") in _RESULTS and message.get("tool_call_id") in waiting:
            waiting[message["tool_call_id"]].append(message)
            continue
        told += chain.from_iterable(waiting.values())
        waiting = {}
        calls = calls_of(message)
        if not calls:
            told.append(message)
            continue
        said = _as_thoughts(message)
        for i, call in enumerate(calls):
            id = call.get("id")
            waiting[i if id is None or id in waiting else id] = [{**said, "tool_calls": [call]}]
            said = {"role": message.get("role"), "content": ""}
    return [*told, *chain.from_iterable(waiting.values())]


def _thoughtful(messages: Messages) -> Messages:
    return [_as_thoughts(message) if calls_of(message) else message for message in messages]


def _as_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with calls; if it has thoughts and text, the text is the last of the thoughts."""
    thoughts = next((message[name] for name in REASONING if message.get(name)), None)
    if not thoughts or not message.get("content"):
        return message
    rest = {key: value for key, value in message.items() if key not in REASONING}
    return {**rest, "content": "", REASONING[0]: f"{thoughts}\n\n{message['content']}"}


def joined(one: Content, other: Content, between: str = "\n") -> Content:
    """Two contents as one: a string, or parts if either has some."""
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}{between if one else ''}{other}"
    parts = [
        [{"type": "text", "text": each}] if isinstance(each, str) else list(each)
        for each in (one, other)
    ]
    return [*parts[0], *parts[1]]


def _shows(message: Mapping[str, Any]) -> bool:
    """Whether a tool returned parts, of which some may be images."""
    return message.get("role") in _RESULTS and isinstance(message.get("content"), (list, tuple))


def _handed_on(messages: Messages) -> Messages:
    """The images that tools returned in messages of the user, after the results of all tools."""
    told: list[Mapping[str, Any]] = []
    images: list[Any] = []
    for message in [*messages, {}]:
        role = message.get("role")
        if images and role not in _RESULTS:
            told.append({"role": "user", "content": images})
            images = []
        if _shows(message):
            parts = message.get("content") or ()
            images += [part for part in parts if is_image(part)]
            texts = [part.get("text", "") for part in parts if not is_image(part)]
            message = {**message, "content": "\n".join(texts)}
        if message:
            told.append(message)
    return told
