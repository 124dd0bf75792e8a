"""Tool calls in a model's text, and what they say.

``ToolFormat`` has the marks around calls, and a parser of what is between them. A call is read
while it grows if it begins as the format's shape says, else as a whole. Invariant: reading never
raises; only a call of one of the given tools is a call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ...tokens import Token
from .arguments import Arguments, Parse, dumped
from .formats import Known, known_format, parser_of
from .shapes import SHAPES, BoundShape, Head


class ToolCall(NamedTuple):
    """A function and its arguments as JSON text; ``id`` if the model gave one."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls: ``start``, what ``parse`` understands, and ``end``.

    ``style`` is the name of mlx-lm's parser, or one of our own. If ``end`` is empty, a call
    reaches to the end of the text, unless its shape ends it. ``start_tokens`` and ``end_tokens``
    spell the marks. The others are as in ``Known``.
    """

    style: str
    start: str
    end: str
    parse: Parse
    start_tokens: tuple[Token, ...] = ()
    end_tokens: tuple[Token, ...] = ()
    also: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    keys: tuple[str, str] = ("name", "arguments")
    is_list: bool = False
    opening: str = ""

    @property
    def starts(self) -> tuple[str, ...]:
        """All marks with which calls begin."""
        return (self.start, *self.also) if self.start else self.also

    @classmethod
    def of(cls, tokenizer: Any, template: str, tokens: Collection[str]) -> ToolFormat | None:
        """The model's format as mlx-lm knows it, else as its ``template`` and added ``tokens`` tell
        it; None if nothing does."""
        if not tokenizer.has_tool_calling or tokenizer.tool_parser is None:
            known = known_format(template, tokens)
            return None if known is None else cls.known(known, tokenizer)
        return cls(
            style=tokenizer.tool_parser.__module__.rpartition(".")[2],
            start=tokenizer.tool_call_start,
            end=tokenizer.tool_call_end or "",
            parse=tokenizer.tool_parser,
            start_tokens=tuple(tokenizer.tool_call_start_tokens or ()),
            end_tokens=tuple(tokenizer.tool_call_end_tokens or ()),
        )

    @classmethod
    def known(cls, known: Known, tokenizer: Any) -> ToolFormat:
        """A format that is known here, with its marks spelled by a tokenizer."""

        def spelled(mark: str) -> tuple[Token, ...]:
            return tuple(map(int, tokenizer.encode(mark, add_special_tokens=False)))

        return cls(
            style=known.style,
            start=known.start,
            end=known.end,
            parse=parser_of(known.style),
            start_tokens=spelled(known.start),
            end_tokens=spelled(known.end),
            also=known.also,
            lines=known.lines,
            keys=known.keys,
            is_list=known.is_list,
            opening=known.opening,
        )


class ToolReader:
    """Reads what is between the marks of a format; for one request."""

    def __init__(
        self, format: ToolFormat, tools: Sequence[Mapping[str, Any]], *, most: int | None = None
    ) -> None:
        self.format = format
        self._tools = list(tools)
        self._tools_by_name = {tool["function"]["name"]: tool for tool in tools}
        self._most = most

    def read(self, text: str) -> tuple[ToolCall, ...]:
        """The calls in ``text``; none if anything about them is wrong."""
        try:
            parsed = self.format.parse(text, self._tools)
            found = parsed if isinstance(parsed, list) else [parsed]
            return tuple(self._call(item) for item in found)
        except Exception:  # the parsers may raise anything for what a model makes up
            return ()

    @cached_property
    def shape(self) -> BoundShape | None:
        """What recognises growing calls; None for a format that can only be read as a whole."""
        shape = SHAPES.get(self.format.style)
        return BoundShape(shape, [*self._tools_by_name], self.format.end) if shape else None

    def arguments(self, head: Head) -> Arguments:
        """Reads the arguments of a call whose head was recognised."""
        assert head.name is not None and head.arguments is not None
        tool = self._tools_by_name[head.name]
        return head.arguments(tool, self.format.parse, self.format.end)

    def kept(self, calls: Sequence[ToolCall], before: int) -> tuple[ToolCall, ...]:
        """The calls to pass on, after ``before`` of them were passed on already."""
        if self._most is None:
            return tuple(calls)
        return tuple(calls[: max(0, self._most - before)])

    def _call(self, item: Mapping[str, Any]) -> ToolCall:
        name, arguments, id = item["name"], item.get("arguments"), item.get("id")
        if name not in self._tools_by_name:
            raise ValueError(f"there is no tool {name!r}")
        return ToolCall(name, _json(arguments), id if isinstance(id, str) and id else None)


def _json(arguments: Any) -> str:
    """Arguments as JSON text of an object; some models give them as text already."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not an object")
    return dumped(arguments)
