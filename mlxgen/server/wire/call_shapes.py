"""How a tool call begins in each format that can be read while it grows.

Owns what stands between the mark of a call and its arguments, and the recognition of it. Must
never know where the text comes from. Invariant: a head that was recognised names a tool that may
be called, and nothing that comes after it changes that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from .call_arguments import Arguments, JsonArguments, TaggedArguments, Tags

Part: TypeAlias = str | re.Pattern[str]

_SPACE = re.compile(r"[ \t\r\n]*")
_DIGITS = re.compile(r"[0-9]+")


class Head(NamedTuple):
    """What a text begins with.

    ``name`` is the tool's, once it is certain; ``begins``: so are the arguments, at ``end``.
    ``id`` is the call's where the model gave one. ``is_open``: the text ended before anything
    spoke against a head.
    """

    name: str | None = None
    begins: bool = False
    end: int = 0
    id: str | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class CallShape:
    """A format of calls.

    ``head`` are the parts before the arguments of a tool; the name is certain when ``named`` of
    them were there. ``begins`` are parts that the arguments begin with, where the head alone says
    too little. ``tags`` are those of the arguments, None for JSON, which ends at one of ``stops``
    at the latest. ``close`` comes behind the arguments; ``repeats``: then another call may, before
    the mark that ends them all. ``id`` finds a call's id in its head.
    """

    head: Callable[[str], tuple[Part, ...]]
    named: int
    begins: tuple[Part, ...] = ()
    tags: Tags | None = None
    stops: tuple[str, ...] = ()
    close: tuple[Part, ...] = ()
    repeats: bool = False
    id: re.Pattern[str] | None = None

    def begin(self, text: str, at: int, name: str, *, again: bool) -> Head:
        """Whether a call of this tool begins at ``at``; ``again``: after another one."""
        close = self.close if again else ()
        head = (*close, *self.head(name))
        count, end = _follow(text, at, head)
        known = name if count >= self.named + len(close) else None
        if count < len(head):
            return Head(known, is_open=end < 0)
        count, after = _follow(text, end, self.begins)
        if count < len(self.begins):
            return Head(known, is_open=after < 0)
        found = self.id.search(text, at, end) if self.id is not None else None
        return Head(name, True, end, found[0] if found else None)

    def is_tail(self, text: str, end: str) -> bool:
        """Whether this is what comes behind the last call's arguments, or the beginning of it."""
        parts = (*self.close, _SPACE, end)
        return _follow(text, 0, parts)[1] in (-1, len(text))

    def arguments(
        self, tool: Mapping[str, Any], parse: Callable[[str, Any], Any], end: str
    ) -> Arguments:
        """What reads the arguments of a call of ``tool``; ``end`` is the mark that ends it."""
        if self.tags is not None:
            return TaggedArguments(self.tags, tool, parse, end)
        return JsonArguments((*self.stops, end) if end else self.stops)


def _follow(text: str, at: int, parts: Sequence[Part]) -> tuple[int, int]:
    """How many of the parts follow in a text, and where they end; -1 where the text ended first."""
    for count, part in enumerate(parts):
        if isinstance(part, str):
            if not text.startswith(part, at):
                return count, -1 if part.startswith(text[at : at + len(part)]) else at
            at += len(part)
            continue
        match = part.match(text, at)
        if match is None:
            return count, -1 if at == len(text) else at
        at = match.end()
    return len(parts), at


# ---- the formats ---------------------------------------------------------------------------------


def _quoted(*keys: str) -> tuple[Part, ...]:
    """Pieces of JSON, with white space where it may be."""
    return tuple(part for key in keys for part in (_SPACE, key))


_OBJECT: tuple[Part, ...] = ("{", _SPACE, re.compile(r'["}]'))
_GLM = CallShape(
    head=lambda name: (_SPACE, name, _SPACE),
    named=4,
    begins=("<arg_key>",),  # a name ends only here
    tags=Tags(
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
        call=lambda name, key, value: (
            f"{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
        ),
        nulls=False,
    ),
)

SHAPES: Mapping[str, CallShape] = {
    "json_tools": CallShape(
        head=lambda name: (
            *_quoted("{", '"name"', ":", f'"{name}"', ",", '"arguments"', ":"),
            _SPACE,
        ),
        named=8,
        begins=_OBJECT,
        close=_quoted("}"),
    ),
    "kimi_k2": CallShape(
        head=lambda name: (
            *_quoted("<|tool_call_begin|>", f"functions.{name}:"),
            _DIGITS,
            *_quoted("<|tool_call_argument_begin|>"),
            _SPACE,
        ),
        named=4,
        begins=_OBJECT,
        stops=("<|tool_call_end|>",),
        close=_quoted("<|tool_call_end|>"),
        repeats=True,
        id=re.compile(r"functions\.[^:]+:[0-9]+"),
    ),
    "mistral": CallShape(
        head=lambda name: (*_quoted(name, "[ARGS]"), _SPACE), named=4, begins=_OBJECT, repeats=True
    ),
    "qwen3_coder": CallShape(
        head=lambda name: _quoted(f"<function={name}>"),
        named=2,
        tags=Tags(
            key="<parameter=",
            key_end=">",
            value_end="</parameter>",
            close="</function>",
            call=lambda name, key, value: (
                f"<function={name}>\n<parameter={key}>{value}</parameter>\n</function>"
            ),
            strips=False,
        ),
    ),
    "glm47": _GLM,
    "laguna": _GLM,
    "minimax_m2": CallShape(
        head=lambda name: _quoted(f'<invoke name="{name}">'),
        named=2,
        tags=Tags(
            key='<parameter name="',
            key_end='">',
            value_end="</parameter>",
            close="</invoke>",
            call=lambda name, key, value: (
                f'<invoke name="{name}"><parameter name="{key}">{value}</parameter></invoke>'
            ),
        ),
        repeats=True,
    ),
}
"""The formats that can be read while they grow, by the names of mlx-lm's parsers."""
