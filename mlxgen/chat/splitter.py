"""A model's text, cut into reasoning, content and tool calls while it grows.

The splitter looks for marks (``<think>``, ``<tool_call>`` and their ends), however they are cut
into pieces, and holds back what may become one. Invariant: the spans' texts, joined, are the text
that was pushed; and if neighbours of the same kind are joined, they do not depend on how it was
cut into pieces.

The rules, for the whole text:

- Thinking starts at once (the prompt opened it), or if ``<think>`` is the first thing in the text,
  and lasts until ``</think>``.
- A call begins when its name and the beginning of its arguments can be read after a start mark, and
  its arguments grow with the text. Whatever follows, it stays a call.
- If a format, or what the model made of it, cannot be read that way, a call lasts from its start
  mark to the first end mark at which it can be read as a whole. An end mark inside a JSON string
  does not count. What cannot be read is text, including its marks.
- A mark that may as well be text begins a call only if a name and arguments follow; so does a
  format's first character at the beginning of a line, if its calls have no mark.
- If the text is cut off, a call whose name can be read is a call with what there is of it. What
  comes before the name of a call is a mark, not text.
- White space around marks belongs to the marks; so does the rest of it after a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from regex import Match

from ..text import first_mark
from .calls.arguments import Arguments, JsonArguments
from .calls.reader import ToolCall, ToolReader
from .calls.shapes import Head

Kind: TypeAlias = Literal["content", "reasoning", "call", "mark"]
Thinking: TypeAlias = Literal["open", "possible", "closed"]

_KINDS: Mapping[str, Kind] = {"reasoning": "reasoning", "content": "content"}
_NAMES = {"normal": "content", "reasoning": "reasoning", "tool": "call"}


class Span(NamedTuple):
    """A piece of the text: its kind, where it starts, the calls that it begins, and ``more`` of
    the arguments of the call begun last, which may have ``ended`` with it."""

    kind: Kind
    text: str
    start: int
    calls: tuple[ToolCall, ...] = ()
    more: str = ""
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a model puts between the parts of its text.

    ``markers`` are dropped from content. ``transitions`` and ``initial`` are those of mlx-lm's
    ``TokenizerWrapper`` for models that write a header before each part; the last part of an
    answer comes after all of ``answer``, one after the other, if that is known.
    """

    think_start: str | None = None
    think_end: str | None = None
    markers: tuple[str, ...] = ()
    transitions: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    initial: str | None = None
    answer: tuple[str, ...] = ()

    def edges(self, tool_starts: Sequence[str] | None) -> dict[str, dict[str, str]]:
        """The marks that end each state, and the states to which they lead; None: to no call."""
        edges: dict[str, dict[str, str]] = {"content": {}, "reasoning": {}}
        if self.think_end:
            edges["reasoning"][self.think_end] = "content"
        for start in tool_starts or ():
            for known in edges.values():
                known.setdefault(start, "call")
        for marker in self.markers:
            edges["content"].setdefault(marker, "content")
        for state, leads in self.transitions.items():
            known = edges.setdefault(_NAMES.get(state, state), {})
            for mark, to in leads:
                to = _NAMES.get(to, to)
                if to != "call" or tool_starts is not None:
                    known.setdefault(mark, to)
        return edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read the text of an answer.

    - ``thinking``: whether the text begins inside the reasoning.
    - ``tools``: reads calls; None: calls stay text.
    - ``trim``: white space after the thinking is part of its end mark.
    - ``given``: the beginning of the text, which the client gave and does not get back.
    """

    marks: Marks = field(default_factory=Marks)
    thinking: Thinking = "closed"
    tools: ToolReader | None = None
    trim: bool = True
    given: str = ""


class Splitter:
    """Text in, spans out, by the rules above."""

    def __init__(self, reading: Reading) -> None:
        self._tools = tools = reading.tools
        marks = reading.marks
        self._shape = tools.shape if tools is not None else None
        self._edges = marks.edges(tools.format.starts if tools is not None else None)
        self._lines = tools.format.lines if tools is not None else ()
        self._edges["content"].update(dict.fromkeys(self._lines, "call"))
        self._firsts = {
            state: frozenset(mark[:1] for mark in edges) for state, edges in self._edges.items()
        }
        self._think_start = marks.think_start or ""
        self._trim = reading.trim
        self._state = first_part(marks, reading.thinking)
        self._origin = self._state  # the state in which a call began
        self._skips = self._state == "reasoning"  # whether white space starts this part
        self._is_new = True  # whether there was nothing but white space in this part
        self._held = ""
        self._at = 0  # where the held text starts
        self._inner = 0  # where in the held text a call starts, after its mark
        self._is_sure = True  # whether its mark can mean nothing else
        self._searched = 0  # where to look for the end of a call
        self._json: Arguments | None = None  # of a call that is one JSON text, until it ends
        self._arguments: Arguments | None = None  # of the growing call
        self._passed_on = True  # whether the client gets the growing call
        self.calls = 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        state = self._origin if self._state in ("call", "unread") else self._state
        return state == "reasoning"

    @property
    def is_in_call(self) -> bool:
        """Whether the text so far ends inside a call, before the end of its arguments."""
        return self._state in ("call", "unread", "arguments")

    @property
    def is_unfinished(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        return self._state == "arguments"

    @property
    def is_plain(self) -> bool:
        """Whether only content can follow."""
        return not (self._state != "content" or self._edges["content"] or self._held or self._skips)

    def push(self, text: str) -> list[Span]:
        """Takes more text; returns what is certain."""
        if self._is_certain(text):
            return [self._span(_KINDS[self._state], text)]
        self._held += text
        return list(self._certain(final=False))

    def _is_certain(self, text: str) -> bool:
        """Whether a text is all of one part: no mark can begin with any of its characters."""
        if not text or self._held or self._skips or self._state not in _KINDS:
            return False
        firsts = self._firsts[self._state]
        return not firsts or (not text[-1].isspace() and firsts.isdisjoint(text))

    def flush(self, *, cut: bool = False) -> list[Span]:
        """The rest, because the text ends here; ``cut``: it was cut off."""
        spans = list(self._certain(final=True))
        if self._state == "call":
            spans.extend(self._end_head(cut=cut))
        if self._state == "unread":
            spans.extend(self._call(len(self._held), len(self._held), cut=cut))
            spans.extend(self._certain(final=True))
        if self._state == "arguments" and not cut:
            spans.extend(self._end_arguments())
        if self._state in ("arguments", "after arguments") and self._held:
            spans.append(self._cut_tail(cut=cut))
        if self._held:
            kind = "mark" if self.calls and not self._held.strip() else self._kind()
            spans.append(self._release(kind, len(self._held)))
        return spans

    # ---- one certain span after the other ------------------------------------------------------

    def _certain(self, *, final: bool) -> Iterator[Span]:
        while self._held:
            if self._skips:
                space = len(self._held) - len(self._held.lstrip())
                if space:
                    yield self._release("mark", space)
                self._skips = not self._held
                continue
            before = self._state, self._at, self._searched
            if self._state == "opening":
                yield from self._open(final=final)
            elif self._state == "call":
                yield from self._search_head()
            elif self._state == "arguments":
                yield from self._grow()
            elif self._state == "after arguments":
                yield from self._search_next()
            elif self._state == "unread":
                yield from self._search_end()
            else:
                yield from self._search_mark()
            if (self._state, self._at, self._searched) == before:
                break

    def _open(self, *, final: bool) -> Iterator[Span]:
        """The start of the text, where the model may begin to think."""
        begun = self._held.lstrip()
        if begun.startswith(self._think_start):
            yield self._release("mark", len(self._held) - len(begun) + len(self._think_start))
            self._state, self._skips = "reasoning", True
        elif final or not self._think_start.startswith(begun):
            self._state = "content"

    def _search_mark(self) -> Iterator[Span]:
        """Everything up to a mark or its possible start; white space before it belongs to it."""
        held, edges = self._held, self._edges.get(self._state, {})
        start, mark = first_mark(held, edges)
        text = len(held[:start].rstrip()) if edges else start
        if mark in self._lines and not ("\n" in held[text:start] or (self._is_new and not text)):
            text, mark = start + len(mark), ""
        if text:
            yield self._release(self._kind(), text)
        if not mark:
            return
        to, end = edges[mark], start + len(mark) - text
        if to == "call":
            inner = end - len(mark) if mark in self._lines else end
            self._origin, self._inner, self._searched = self._state, inner, end
            self._is_sure = self._tools is not None and mark == self._tools.format.start
        else:
            yield self._release("mark", end)
            left_reasoning = self._state == "reasoning" and to != "reasoning"
            self._skips = to == "reasoning" or (left_reasoning and self._trim)
        self._state = to

    def _search_head(self) -> Iterator[Span]:
        """After the start mark of a call."""
        assert self._tools is not None
        head = self._head(self._held, self._inner)
        if head.begins:
            yield from self._begin(head, head.end)
        elif head.is_open:
            return
        elif not self._is_sure:
            self._state = self._origin
            yield self._release(self._kind(), self._searched)
        else:
            self._state = "unread"
            format = self._tools.format
            is_json = format.style == "json_tools"
            self._json = JsonArguments({}, format.parse, format.end) if is_json else None

    def _begin(self, head: Head, end: int) -> Iterator[Span]:
        """A call whose name is known, with the held text up to ``end`` as its head."""
        assert self._tools is not None and head.name is not None
        yield from self._release_calls((ToolCall(head.name, "", head.id),), end, ended=False)
        self._arguments = self._tools.arguments(head)
        self._state = "arguments"

    def _grow(self) -> Iterator[Span]:
        assert self._arguments is not None
        taken, more, ended = self._arguments.take(self._held)
        if taken or more or ended:
            yield self._grown(taken, more, ended)
        if ended:
            self._state, self._searched = "after arguments", 0

    def _grown(self, taken: int, more: str, ended: bool) -> Span:
        span = self._release("call", taken)
        return span._replace(more=more, ended=ended) if self._passed_on else span

    def _search_next(self) -> Iterator[Span]:
        """After the arguments of a call: another one, or the end mark."""
        assert self._tools is not None
        end, tail = self._tools.format.end, self._tail()
        head = self._head(self._held, 0, again=True)
        if head.begins:
            yield from self._begin(head, head.end)
        elif head.is_open:
            return
        elif end:
            found = self._find_end(end)
            if found >= 0:
                self._state = "content"
                yield self._release("call", found + len(end))
        elif tail is None or not tail.partial:
            self._state = "content"
            if tail is not None and tail.end():
                yield self._release("call", tail.end())

    def _end_head(self, *, cut: bool) -> Iterator[Span]:
        """The text ends after a call has begun, but before its arguments."""
        assert self._tools is not None
        end = "" if cut else self._tools.format.end  # the end mark may have been a stop
        head = self._head(self._held + end, self._inner)
        if head.begins or (cut and head.name is not None):
            yield from self._begin(head, min(head.end, len(self._held)))
        elif cut:
            self._state = self._origin
            yield self._release("mark", len(self._held))
        else:
            self._state = "unread"  # it may be whole in another form

    def _end_arguments(self) -> Iterator[Span]:
        """The text ends in arguments that only the end mark would have ended."""
        assert self._tools is not None and self._arguments is not None
        taken, more, ended = self._arguments.take(self._held + self._tools.format.end)
        if ended and more and taken <= len(self._held):
            self._state = "after arguments"
            yield self._grown(taken, more, ended)

    def _cut_tail(self, *, cut: bool) -> Span:
        """The rest of a text that ends inside a call, or after its arguments."""
        if self._state == "after arguments":
            tail = self._tail()
            is_open = cut and self._head(self._held, 0, again=True).is_open
            if not is_open and (tail is None or tail.end() < len(self._held)):
                self._state = "content"
                return self._release("content", len(self._held))
        return self._release("call", len(self._held))

    def _head(self, text: str, at: int, *, again: bool = False) -> Head:
        return self._shape.head(text, at, again=again) if self._shape is not None else Head()

    def _tail(self) -> Match[str] | None:
        return self._shape.tail.match(self._held, partial=True) if self._shape is not None else None

    def _search_end(self) -> Iterator[Span]:
        assert self._tools is not None
        end = self._tools.format.end
        if self._json is not None:  # which may quote the mark
            taken, _, ended = self._json.take(self._held[self._searched :])
            self._searched += taken
            if not ended:
                return
            self._json = None
        found = self._find_end(end) if end else -1
        if found >= 0:
            yield from self._call(found, found + len(end), cut=False)

    def _find_end(self, end: str) -> int:
        """Where the end mark is, if it is there; text that was searched before is left out."""
        found = self._held.find(end, self._searched)
        if found < 0:
            self._searched = max(self._searched, len(self._held) - len(end) + 1)
        return found

    def _call(self, inner_end: int, end: int, *, cut: bool) -> Iterator[Span]:
        """A call, or what looked like a call, up to ``end`` of the held text."""
        assert self._tools is not None
        calls: tuple[ToolCall, ...] = ()
        if not cut or not self._tools.format.end:
            calls = self._tools.read(self._held[self._inner : inner_end])
        self._state = self._origin
        head = self._head(self._held, self._inner) if cut else Head()
        if not calls and head.name is not None:
            yield from self._begin(head, end)
            return
        if not calls:
            yield self._release(self._kind(), end)
            return
        yield from self._release_calls(calls, end, ended=True)
        self._state = "content"

    def _release_calls(self, calls: Sequence[ToolCall], end: int, *, ended: bool) -> Iterator[Span]:
        """The held text up to ``end``, with which calls begin, and white space before it."""
        assert self._tools is not None
        space = len(self._held) - len(self._held.lstrip())
        if space:
            yield self._release("mark", space)
        kept = self._tools.kept(calls, self.calls)
        self._passed_on = bool(kept)
        self.calls += len(calls)
        span = self._release("call", end - space)
        yield span._replace(calls=kept, ended=ended and self._passed_on)

    def _kind(self) -> Kind:
        return _KINDS.get(self._state, "mark" if self._state != "opening" else "content")

    def _release(self, kind: Kind, length: int) -> Span:
        text, self._held = self._held[:length], self._held[length:]
        return self._span(kind, text)

    def _span(self, kind: Kind, text: str) -> Span:
        if self._lines:
            self._is_new = kind != "content" or (self._is_new and text.isspace())
        start = self._at
        self._at += len(text)
        return Span(kind, text, start)


def first_part(marks: Marks, thinking: Thinking) -> str:
    """The part with which a text begins."""
    if marks.initial is not None:
        return _NAMES.get(marks.initial, marks.initial)
    if marks.think_start is None or thinking == "closed":
        return "content"
    return "reasoning" if thinking == "open" else "opening"
