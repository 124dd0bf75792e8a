"""Cuts a model's text into reasoning, content and tool calls while it grows.

The splitter looks for marks (``<think>``, ``<tool_call>`` and their ends), however the text is
split into pieces, and holds back text that may become one. Invariant: the spans' texts, joined, are
the pushed text; and once adjacent spans of the same kind are joined, they do not depend on how the
text was split.

The rules, for the whole text:

- Thinking starts at once if the prompt opened it, or at its mark if that comes first in the text,
  first in the answer, or at the beginning of a line. It lasts until its end mark. An end mark with
  no thinking before it is dropped. Marks in quotes, and pairs of them inside a sentence, are text.
- A call begins at a mark, or at text that is a call without its mark, and is held until it is
  whole. If it cannot be read, its mark becomes text, and what follows is read like any text.
- Only a long string in a call is passed on while it grows. From then on it is a call: if the rest
  cannot be read, the call ends with what has been read, and the rest is text.
- After a call, the part in which it began goes on. If one of several calls between two marks is
  not a call, it is text, and the calls next to it are still calls.
- If the text is cut off, a call whose name can be read is a call, as far as it goes. The beginning
  of a call, without its name, is a mark and not text.
- White space around marks belongs to the marks, up to a bound before them; so does white space at
  the end of the text after a call. Around thinking inside an answer, it belongs to the answer.
- Where a header is expected, any other text is passed on as reasoning or content.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import regex

from .calls.formats import CallFormat
from .calls.reader import Call
from .calls.styles import FENCES, Style
from .calls.values import LONGEST, BrokenError, Source, Waiting
from .events import CallArguments, CallEnded, CallStarted
from .marks import KINDS, Finder, Kind, Reading, first_part

Section: TypeAlias = Literal["none", "mark", "calls"]
"""When calls may come without their mark: after a mark that was read as text, or after calls."""
_QUOTES = "`\"'"  # before a mark that the text only mentions
_STRETCH = 4096  # characters read at a time
_PATIENCE, _NEAR = 8, 256
"""After ``_PATIENCE`` calls that proved unreadable only after a long text, a call is read only if
it ends, or a long string in it begins, within ``_NEAR`` characters. So the time to read a text is
linear in its length."""
_HEADER = 120  # characters of a header, at most
_BLANKS = 64  # characters of white space that may belong to a mark


class Span(NamedTuple):
    """A piece of the text: its kind, where it starts, and the events of a call in it."""

    kind: Kind
    text: str
    start: int
    events: tuple[CallStarted | CallArguments | CallEnded, ...] = ()


class Splitter:
    """Text in, spans out, by the rules above. ``name_call`` makes the id of a call from its number,
    from 0, if the model gives none."""

    def __init__(
        self, reading: Reading, name_call: Callable[[int], str] = "call_{}".format
    ) -> None:
        self._reading = reading
        self._name_call = name_call
        self._tools = reading.tools
        self._marks = reading.marks
        self._part = first_part(reading.marks, reading.thinking)
        self._section: Section = "none"
        self._skips = self._part == "reasoning"  # whether white space here is a mark
        self._is_new = True  # whether this part has only white space so far
        self._said = False  # whether there was any content
        self._last = ""  # the last character of the text
        self._named_only = 0  # start marks of thinking that were read as text
        self._source = Source()
        self._rest = ""  # pushed text that the source does not have yet
        self._at = 0  # where the source's text starts in the whole text
        self._far = 0  # calls that proved unreadable after a long text
        self._spans: list[Span] = []
        self._finders: dict[tuple[str, bool], Finder] = {}
        self._call: Call | None = None  # the call being read
        self._reads: Literal["", "calls", "alone"] = ""  # alone: only if just the end follows
        self._shows = True  # whether the client gets the call
        self._ids: set[str | None] = set()
        self._parts = self._read()
        self.is_in_call = False  # or in a possible call, before its arguments end
        self.is_unfinished = False
        self.calls = 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._part == "reasoning"

    @property
    def calling(self) -> str | None:
        """The tool of the call that the text so far ends in, if its name is known."""
        return None if self._call is None else self._call.name

    def push(self, text: str) -> list[Span]:
        """Take more text; return the spans that are certain."""
        source = self._source
        if text and not (source.text or self._skips or self._reads) and self._part in KINDS:
            firsts = self._finder.firsts
            if not firsts or (not text[-1].isspace() and firsts.isdisjoint(text)):
                return [self._span(KINDS[self._part], text)]
        self._feed(text, final=False)
        return self._taken()

    def flush(self, *, cut: bool = False) -> list[Span]:
        """Return the remaining spans, because the text ends here; ``cut``: it was cut off."""
        if not cut:
            self._feed("", final=True)
            return self._taken()
        call, held = self._call, len(self._source.text)
        if call is not None and call.name is not None and self._reads != "alone":
            self.is_unfinished = True
            self._tell(call, held, ended=False)
        elif held and self._marks.header and self._part not in KINDS and not self._reads:
            self._release_header(self._finder.find(self._source.text, final=False)[0])
            if self._source.text:  # half a mark
                self._release("mark", len(self._source.text))
        elif held:
            blank = self.calls and not self._source.text.strip()
            self._release("mark" if blank or self._reads == "calls" else self._kind, held)
        return self._taken()

    def _feed(self, text: str, *, final: bool) -> None:
        """Read more text, a stretch at a time."""
        source, self._rest = self._source, self._rest + text
        while True:
            more, self._rest = self._rest[:_STRETCH], self._rest[_STRETCH:]
            source.text += more
            source.final = final and not self._rest
            next(self._parts, None)
            if not self._rest:
                return

    def _taken(self) -> list[Span]:
        spans, self._spans = self._spans, []
        return spans

    # ---- reading, one span after the other -----------------------------------------------------

    def _read(self) -> Waiting[None]:
        source = self._source
        while True:
            if not source.text:
                if source.final:
                    return
                yield
            elif self._skips:
                space = len(source.text) - len(source.text.lstrip())
                if space:
                    self._release("mark", space)
                self._skips = not source.text
            elif self._part == "opening":
                yield from self._open()
            else:
                yield from self._search()

    def _open(self) -> Waiting[None]:
        """The start of the text, where the model may begin to think."""
        source, start = self._source, self._marks.think_start or ""
        begun = source.text.lstrip()
        space = len(source.text) - len(begun)
        if space <= _BLANKS and begun.startswith(start):
            self._release("mark", space + len(start))
            self._enter("reasoning")
        elif source.final or space > _BLANKS or not start.startswith(begun):
            self._part = "content"
        else:
            yield

    def _search(self) -> Waiting[None]:
        """Read up to a mark, or to where one may begin; white space before a mark belongs to it."""
        source, finder = self._source, self._finder
        start, mark = finder.find(source.text, final=source.final)
        is_no_part = start > _HEADER or finder.edges.get(mark) not in (*KINDS, "call")
        if self._marks.header and self._part not in KINDS and is_no_part:
            yield from self._pass_header(start, mark)
            return
        text = start
        if finder.edges:
            text = max(len(source.text[:start].rstrip()), start - _BLANKS)
        if not mark:
            if source.final:
                blank = self.calls and not source.text.strip()
                self._release("mark" if blank else self._kind, len(source.text))
                return
            if text:
                self._release(self._kind, text)
            yield
            return
        to, before = finder.edges[mark], source.text[start - 1] if start else self._last
        is_first = self._is_new and not source.text[:text].strip()
        on_line = is_first or "\n" in source.text[text:start]
        if to == "end" and self._section == "mark":  # the end mark of what was not a call
            self._section = "none"
            self._release(self._kind, start + len(mark))
            return
        if not self._counts(mark, to, before, is_first, on_line):
            if mark == self._marks.think_start and self._part == "content":
                self._named_only += 1
            self._release(self._kind, start + len(mark))
            return
        if self._part == "content" and to in KINDS and not is_first:
            text = start  # the white space is the answer's
        if text and self._marks.header and self._part not in KINDS and to == "call":
            self._release_header(text)
        elif text:
            self._release(self._kind, text)
        start, end = start - text, start - text + len(mark)
        if to in ("call", "bare", "line"):
            format = self._format
            self._reads = "alone" if to == "line" and format.alone else "calls"
            holds = mark != format.start and bool(self._tools and self._tools.strict)
            are_calls = yield from self._read_calls(end if to == "call" else start, holds=holds)
            self._reads = ""
            if not are_calls:
                if len(source.text) > 2 * _STRETCH:  # it is read again, a stretch at a time
                    self._rest = source.text[_STRETCH:] + self._rest
                    source.text, source.final = source.text[:_STRETCH], False
                if to == "call" and self.calls and source.final and not source.text[end:].strip():
                    self._release("mark", len(source.text))  # it ends the calls before it
                    return
                self._release(self._kind, end if to != "line" else start + 1)
                is_list = mark == "[" and not format.alone  # whose first item is not a call
                if (to == "call" or is_list) and self._section == "none" and self._part in KINDS:
                    self._section = "mark"
            return
        self._release("mark", end)
        if to == "end":
            self._section = "none"
        else:
            self._enter(to)

    def _pass_header(self, place: int, mark: str) -> Waiting[None]:
        """Read a header up to a mark at ``place`` that begins no message; "": no mark so far."""
        if place > _HEADER:  # no header is this long
            self._release_words(place)
            self._enter("reasoning" if self._part == "thoughts" else "content")
        elif mark or self._source.final:
            self._release_header(place)
            if mark:
                self._release("mark", len(mark))
                self._enter(self._finder.edges[mark])
        else:
            yield

    def _release_header(self, length: int) -> None:
        """Release the words of a header as a mark, and the rest as reasoning or content."""
        if rest := length - self._release_words(length):
            self._release("reasoning" if self._part == "thoughts" else "content", rest)

    def _release_words(self, length: int) -> int:
        """Release the words of a header as a mark; return their length."""
        header = regex.compile(self._marks.header)
        words = header.match(self._source.text, endpos=length)
        is_all = header.fullmatch(self._source.text, endpos=length, partial=True)
        end = length if words is None or is_all else words.end()
        if end:
            self._release("mark", end)
        return end

    def _counts(self, mark: str, to: str, before: str, is_first: bool, on_line: bool) -> bool:
        """Whether a mark counts here, or the text only mentions it."""
        is_quoted = before in _QUOTES and before != ""
        if to == "line":
            return on_line
        if to == "bare":
            goes_on = before.isalnum() and mark[0].isalnum()
            return not (is_quoted or goes_on or (before == "_" and mark[0] != "["))
        if self._part == "reasoning" and mark == self._marks.think_start:
            return is_first
        if self._part == "content" and mark == self._marks.think_start:
            return on_line or "|" in mark
        if self._part == "content" and to == "content":
            if mark == self._marks.think_end and self._named_only and not is_quoted:
                self._named_only -= 1
                return False
            return not is_quoted or "|" in mark
        return True

    def _enter(self, part: str) -> None:
        """Enter the part after a mark."""
        left = self._part == "reasoning" and part != "reasoning"
        again = part == "content" and self._part == "content" and self._is_new
        skips = again or (left and not self._said)  # the white space inside an answer is its own
        self._skips = part == "reasoning" or (skips and self._reading.trim)
        self._part, self._section = part, "none"

    # ---- calls ---------------------------------------------------------------------------------

    def _read_calls(self, place: int, *, holds: bool) -> Waiting[bool]:
        """Read the calls at ``place`` of the held text; return True if there are any. ``holds``:
        pass on nothing of a call before it is whole."""
        source, ends, alone = self._source, self._format.all_ends, self._reads == "alone"
        calls: list[Call] = []
        style, fenced = self._format.body, False
        self.is_in_call = True
        while True:
            read = yield from self._read_call(place, again=bool(calls), holds=holds or alone)
            if read is None:
                break
            call, style, begin = read
            fenced = fenced or "```" in source.text[place:begin]
            calls.append(call)
            self.is_in_call, place = alone, call.place
            if not alone:
                self._tell(call, place)
                place = 0
        self.is_in_call = alone and bool(calls)
        if not calls:
            return False
        tail = yield from source.passed(place, style.tail)
        end = yield from source.passed(tail, ends, often=True)
        if fenced:
            end = yield from source.passed(end, ("```",))
        rest = source.text[tail:].strip()
        if source.final and rest and any(mark.startswith(rest) for mark in ends):
            end = len(source.text)  # half a mark
        self.is_in_call = False
        is_open, whole = end == tail, len(source.text)
        if alone and is_open and not (source.final and not source.text[end:].strip()):
            return False
        for call in calls if alone else ():
            self._tell(call, call.place - (whole - len(source.text)))
        end -= whole - len(source.text)
        if self._part not in KINDS:
            self._part = "content"
        if end:
            self._release("call", end)
        self._section = "calls" if is_open and self._format.end else "none"
        return True

    def _read_call(
        self, place: int, *, again: bool, holds: bool
    ) -> Waiting[tuple[Call, Style, int] | None]:
        """The call at ``place``, its style, and where it begins after the marks; None: no call."""
        tools, source = self._tools, self._source
        assert tools is not None
        for style in tools.format.styles:
            pieces = style.again if again else (*style.first, *FENCES, *tools.format.starts)
            begin = yield from source.passed(place, pieces, often=True)
            begin = yield from source.space(begin)
            self.is_in_call, self._call = True, (call := Call(source, tools))
            source.kept, source.reached = 0, begin
            source.limit = begin + _NEAR if self._far >= _PATIENCE else math.inf
            try:
                for _ in call.read(style, begin):
                    if call.is_long and not holds:
                        self._tell(call)
                    yield
                if not holds or tools.accepts(call):
                    return call, style, begin
            except BrokenError:
                self._far += source.reached - begin > LONGEST
            finally:
                self._call = None
        return None

    def _tell(self, call: Call, length: int | None = None, *, ended: bool = True) -> None:
        """Pass on what is new of a call, and the first ``length`` characters of the text, where the
        call ends or is cut off; None: it goes on."""
        events: list[CallStarted | CallArguments | CallEnded] = []
        if not call.is_begun:
            call.is_begun = True
            space = len(self._source.text) - len(self._source.text.lstrip())
            if space and not call.is_long:
                self._release("mark", space)
                length = None if length is None else length - space
            most = None if self._tools is None else self._tools.most
            self._shows = most is None or self.calls < most
            id = call.id if call.id not in self._ids else None
            self._ids.add(id)
            events.append(CallStarted(id or self._name_call(self.calls), call.name or ""))
            self.calls += 1
        if more := "".join(call.parts):
            events.append(CallArguments(more))
        call.parts.clear()
        if length is None:
            if events and self._shows:
                self._spans.append(Span("call", "", self._at, tuple(events)))
            return
        if ended:
            events.append(CallEnded())
        self._release("call", length)
        if self._shows:
            self._spans[-1] = self._spans[-1]._replace(events=tuple(events))
        self.is_unfinished = self.is_unfinished or call.is_broken

    @property
    def _format(self) -> CallFormat:
        assert self._tools is not None
        return self._tools.format

    @property
    def _finder(self) -> Finder:
        part, section = key = self._part, self._section != "none"
        if key not in self._finders:
            self._finders[key] = Finder(self._reading, part, section=section)
        return self._finders[key]

    @property
    def _kind(self) -> Kind:
        return KINDS.get(self._part, "mark" if self._part != "opening" else "content")

    def _release(self, kind: Kind, length: int) -> None:
        text, self._source.text = self._source.text[:length], self._source.text[length:]
        self._spans.append(self._span(kind, text))

    def _span(self, kind: Kind, text: str) -> Span:
        self._is_new = kind not in KINDS or (self._is_new and text.isspace())
        self._said = self._said or (kind == "content" and bool(text.strip()))
        self._last = text[-1:] or self._last
        start = self._at
        self._at += len(text)
        return Span(kind, text, start)
