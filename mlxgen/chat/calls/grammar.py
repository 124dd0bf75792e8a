"""Grammars of tool calls, in the format that the model was trained on.

Owns how each known format is written in llguidance's Lark. Must never know requests or
how calls are read. Invariant: what a grammar made here derives, the format's parser reads
as calls of the given tools, with arguments that are valid against their schemas.

Marks are tokens where they are tokens of the vocabulary, so that no argument can end a call
by quoting its mark. Texts of arguments in the tagged formats stand between marks as they
are: there a schema's ``pattern``, ``format`` and lengths cannot be enforced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import GrammarError, OptionError
from ...filters import Lark
from ...filters.closed_objects import closed_objects
from ...filters.json_schema import WHITESPACE
from ...tokens import Vocabulary
from ..unsupported import UnsupportedError
from .reader import ToolFormat

_SPACE = "WS: /[ \\t\\r\\n]{1,8}/"
_TEXT = "TEXT: /(?s:.)+/"


@dataclass(frozen=True, slots=True)
class _Function:
    """A function to call: ``at`` is where it stands in the request."""

    name: str
    schema: dict[str, Any]
    strict: bool
    at: str


class _Writer:
    """Collects the rules of a grammar."""

    def __init__(self, vocabulary: Vocabulary, format: ToolFormat) -> None:
        self._added = {vocabulary.piece(token): token for token in vocabulary.added}
        self._vocabulary = vocabulary
        self.format = format
        self.rules: list[str] = []

    @property
    def start(self) -> str:
        """The mark before a call."""
        return self._spelled(self.format.start, self.format.start_tokens)

    @property
    def end(self) -> str:
        """The mark behind a call."""
        return self._spelled(self.format.end, self.format.end_tokens)

    def is_special(self, text: str) -> bool:
        """Whether this text is a token that is never a part of plain text."""
        return self._added.get(text.encode()) in self._vocabulary.special

    def has(self, text: str) -> bool:
        """Whether the vocabulary has an added token with this text."""
        return text.encode() in self._added

    def mark(self, text: str) -> str:
        """The token with this text, or the text where there is none."""
        token = self._added.get(text.encode())
        return f"<[{token}]>" if token is not None else literal(text)

    def add(self, rule: str) -> None:
        self.rules.append(rule)

    def arguments(self, function: _Function) -> str:
        """Arguments as one JSON text."""
        return json_value(function.schema, strict=function.strict, at=function.at)

    def _spelled(self, text: str, tokens: Sequence[int]) -> str:
        """Added tokens as such; a mark that the vocabulary has none for is text."""
        if tokens and all(token in self._vocabulary.added for token in tokens):
            return " ".join(f"<[{token}]>" for token in tokens)
        return self.mark(text)


def literal(text: str) -> str:
    """A quoted literal of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def json_value(schema: Mapping[str, Any] | bool, *, strict: bool, at: str) -> str:
    """JSON of a schema, its objects closed, as a part of a rule."""
    options = {
        "whitespace_flexible": True,
        "whitespace_pattern": WHITESPACE,
        "lenient": not strict,
        "coerce_one_of": not strict,
    }
    try:
        closed = closed_objects(schema)
    except GrammarError as error:
        error.field = at
        raise
    plain = closed if isinstance(closed, Mapping) else {} if closed else {"enum": []}
    return f"%json {json.dumps({**plain, 'x-guidance': options})}"


# ---- the formats: what stands between the marks of a call ----------------------------------------


def _json_tools(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """``{"name": ..., "arguments": {...}}``"""
    called = []
    for i, function in enumerate(functions):
        name = literal(json.dumps(function.name))
        writer.add(
            f'f{i}: {name} WS? "," WS? "\\"arguments\\"" WS? ":" WS? {writer.arguments(function)}'
        )
        called.append(f"f{i}")
    return f'WS? "{{" WS? "\\"name\\"" WS? ":" WS? ({" | ".join(called)}) WS? "}}" WS? {writer.end}'


def _kimi_k2(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """A section of ``functions.name:0`` and JSON arguments between marks of their own."""
    begin, end = writer.mark("<|tool_call_begin|>"), writer.mark("<|tool_call_end|>")
    between = writer.mark("<|tool_call_argument_begin|>")
    writer.add("INDEX: /[0-9]{1,3}/")
    for i, function in enumerate(functions):
        name = literal(f"functions.{function.name}:")
        writer.add(f"f{i}: {begin} {name} INDEX {between} {writer.arguments(function)} {end}")
    called = " | ".join(f"f{i}" for i in range(len(functions)))
    return f"({called}){'+' if many else ''} {writer.end}"


def _mistral(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """``name[ARGS]{...}``, or a list of JSON objects in older models."""
    if not writer.has("[ARGS]"):
        objects = []
        for i, function in enumerate(functions):
            name = literal(json.dumps(function.name))
            writer.add(
                f'f{i}: "{{" WS? "\\"name\\"" WS? ":" WS? {name} WS? "," WS? "\\"arguments\\"" '
                f'WS? ":" WS? {writer.arguments(function)} WS? "}}"'
            )
            objects.append(f"f{i}")
        writer.add(f"call: {' | '.join(objects)}")
        more = ' (WS? "," WS? call)*' if many else ""
        return f'WS? "[" WS? call{more} WS? "]"'
    between = writer.mark("[ARGS]")
    for i, function in enumerate(functions):
        writer.add(f"f{i}: {literal(function.name)} {between} {writer.arguments(function)}")
    writer.add(f"call: {' | '.join(f'f{i}' for i in range(len(functions)))}")
    return f"call ({writer.start} call)*" if many else "call"


@dataclass(frozen=True, slots=True)
class _Tags:
    """A format in which each argument stands between tags.

    ``open`` and ``close`` are around all arguments; ``key`` comes before an argument's value
    and ``after`` behind it. ``{}`` stands for a name.
    """

    open: tuple[str, ...]
    key: tuple[str, ...]
    after: tuple[str, ...]
    close: tuple[str, ...] = ()

    def __call__(self, writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
        """The body of a call."""
        called = []
        for i, function in enumerate(functions):
            parts = _marks(writer, self.open, function.name)
            properties = function.schema.get("properties") or {}
            required = function.schema.get("required") or ()
            for j, (name, schema) in enumerate(properties.items()):
                key = " ".join(_marks(writer, self.key, name))
                value = self._value(writer, function, name, schema)
                writer.add(f"f{i}p{j}: {key} {value}")
                parts.append(f"f{i}p{j}{'' if name in required else '?'}")
            parts += _marks(writer, self.close, function.name)
            writer.add(f"f{i}: {' '.join(parts)}")
            called.append(f"f{i}")
        # Some parsers want the closing tag at the very end, but for a line break.
        return f'WS? ({" | ".join(called)}) "\\n"? {writer.end}'

    def _value(self, writer: _Writer, function: _Function, name: str, schema: Any) -> str:
        """An argument's value and what ends it."""
        after = " ".join(_marks(writer, self.after))
        if not isinstance(schema, Mapping):
            schema = {}
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if options and all(isinstance(option, str) for option in options):
            return f"({' | '.join(map(literal, options))}) {after}"
        if not _is_text(schema):
            whole = function.schema
            shared: dict[str, Any] = {k: whole[k] for k in ("$defs", "definitions") if k in whole}
            at = f"{function.at}.properties.{name}"
            return f"{json_value({**shared, **schema}, strict=function.strict, at=at)} {after}"
        if function.strict:
            _check_text(schema, f"{function.at}.properties.{name}")
        if writer.is_special(self.after[0]):  # which plain text never matches
            return f"TEXT? {after}"
        lazy = f"text{len(writer.rules)}"
        writer.add(f"{lazy}[lazy]: /(?s:.*){_escaped(''.join(self.after))}/")
        return lazy


def _marks(writer: _Writer, marks: Sequence[str], name: str = "") -> list[str]:
    return [writer.mark(mark.replace("{}", name)) for mark in marks]


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value is written without quotes: it is a string, or may be one."""
    kinds = schema.get("type")
    if kinds is not None:
        return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    parts = [part for key in ("anyOf", "oneOf") for part in schema.get(key) or ()]
    if parts:
        return any(isinstance(part, Mapping) and _is_text(part) for part in parts)
    return not {"$ref", "allOf", "properties", "items", "enum", "const"} & schema.keys()


def _check_text(schema: Mapping[str, Any], at: str) -> None:
    for keyword in ("pattern", "format", "minLength", "maxLength"):
        if keyword in schema:
            raise UnsupportedError(
                at, f"{keyword} cannot be enforced in this model's call format; leave out strict"
            )


def _escaped(text: str) -> str:
    """Text as a part of an expression between slashes."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text).replace("\n", "\\n")


_Body = Callable[[_Writer, Sequence[_Function], bool], str]

_GLM = _Tags(
    open=("{}\n",),
    key=("<arg_key>", "{}", "</arg_key>", "\n", "<arg_value>"),
    after=("</arg_value>", "\n"),
)
_BODIES: Mapping[str, _Body] = {
    "json_tools": _json_tools,
    "kimi_k2": _kimi_k2,
    "mistral": _mistral,
    "qwen3_coder": _Tags(
        open=("<function={}>\n",),
        key=("<parameter={}>\n",),
        after=("\n</parameter>\n",),
        close=("</function>",),
    ),
    "glm47": _GLM,
    "laguna": _GLM,
    "minimax_m2": _Tags(
        open=('<invoke name="{}">\n',),
        key=('<parameter name="{}">',),
        after=("</parameter>\n",),
        close=("</invoke>",),
    ),
}
_ONE_SECTION = ("kimi_k2", "mistral")
"""Formats in which one pair of marks holds all calls."""


def is_known(format: ToolFormat) -> bool:
    """Whether the calls of this format can be enforced."""
    return format.style in _BODIES


def calls_grammar(
    format: ToolFormat, tools: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, *, many: bool
) -> Lark:
    """One call of one of the tools, or with ``many`` any number of calls but none."""
    writer, body = _written(format, tools, vocabulary, many)
    writer.add(f"body: {body}")
    more = f" (WS? {writer.start} body)*" if many and format.style not in _ONE_SECTION else ""
    return _lark(writer, f"start: WS? {writer.start} body{more}")


def rest_grammar(
    format: ToolFormat, tools: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, *, many: bool
) -> Lark:
    """What may follow the start mark of the first call: the call, and with ``many`` others."""
    writer, body = _written(format, tools, vocabulary, many)
    writer.add(f"body: {body}")
    more = f" (WS? {writer.start} body)*" if many and format.style not in _ONE_SECTION else ""
    return _lark(writer, f"start: body{more} WS?")


def _written(
    format: ToolFormat, tools: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, many: bool
) -> tuple[_Writer, str]:
    writer = _Writer(vocabulary, format)
    functions = [_function(tool["function"], i) for i, tool in enumerate(tools)]
    return writer, _BODIES[format.style](writer, functions, many)


def _function(function: Mapping[str, Any], index: int) -> _Function:
    at = f"tools[{index}].function.parameters"
    schema: Mapping[str, Any] = function.get("parameters") or {}
    if schema.get("type", "object") != "object":
        raise OptionError(f"{at}.type", f"arguments are an object, not {schema['type']!r}")
    whole = {"type": "object", "properties": {}, **schema}  # without parameters no keys at all
    return _Function(function["name"], whole, bool(function.get("strict")), at)


def _lark(writer: _Writer, start: str) -> Lark:
    return Lark("\n".join([start, *writer.rules, _SPACE, _TEXT, ""]))
