"""Grammars of tool calls, in the format on which the model was trained.

Invariant: the format's parser reads every text that a grammar made here derives as calls of the
given tools, with arguments that are valid against their schemas.

Marks are written as tokens if the vocabulary has them, so that no argument can end a call by
quoting its mark. In the tagged formats, texts stand between marks as they are: a schema's
``pattern``, ``format`` and lengths cannot be enforced there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import GrammarError, OptionError
from ...filters import Lark
from ...filters.closed_objects import closed_objects
from ...filters.grammar import quoted
from ...filters.json_schema import WHITESPACE
from ...tokens import Vocabulary
from ..dialect import UnsupportedError
from .reader import ToolFormat

_SPACE = "WS: /[ \\t\\r\\n]{1,8}/"
_TEXT = "TEXT: /(?s:.)+/"


@dataclass(frozen=True, slots=True)
class _Function:
    """A function to call; ``at`` is its place in the request."""

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
        """The mark after a call."""
        return self._spelled(self.format.end, self.format.end_tokens)

    def is_special(self, text: str) -> bool:
        """Whether this text is a token that is never part of plain text."""
        return self._added.get(text.encode()) in self._vocabulary.special

    def has(self, text: str) -> bool:
        """Whether the vocabulary has an added token with this text."""
        return text.encode() in self._added

    def mark(self, text: str) -> str:
        """The token with this text, or else the text."""
        token = self._added.get(text.encode())
        return f"<[{token}]>" if token is not None else quoted(text)

    def add(self, rule: str) -> None:
        self.rules.append(rule)

    def arguments(self, function: _Function) -> str:
        """Arguments as one JSON text."""
        return json_value(function.schema, strict=function.strict, at=function.at)

    def objects(self, functions: Sequence[_Function]) -> str:
        """``{"name": ..., "arguments": {...}}`` of one of these functions."""
        for i, function in enumerate(functions):
            name, arguments = quoted(json.dumps(function.name)), self.arguments(function)
            self.add(f'f{i}: {name} WS? "," WS? "\\"arguments\\"" WS? ":" WS? {arguments}')
        return f'"{{" WS? "\\"name\\"" WS? ":" WS? ({_any_of(functions)}) WS? "}}"'

    def _spelled(self, text: str, tokens: Sequence[int]) -> str:
        """A mark as added tokens, or as text if the vocabulary has none for it."""
        if tokens and all(token in self._vocabulary.added for token in tokens):
            return " ".join(f"<[{token}]>" for token in tokens)
        return self.mark(text)


def _any_of(functions: Sequence[_Function]) -> str:
    return " | ".join(f"f{i}" for i in range(len(functions)))


def json_value(schema: Mapping[str, Any] | bool, *, strict: bool, at: str) -> str:
    """JSON of a schema with closed objects, as a part of a rule."""
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
    return f"WS? {writer.objects(functions)} WS? {writer.end}"


def _kimi_k2(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """A section of ``functions.name:0`` and JSON arguments, each between its own marks."""
    begin, end = writer.mark("<|tool_call_begin|>"), writer.mark("<|tool_call_end|>")
    between = writer.mark("<|tool_call_argument_begin|>")
    writer.add("INDEX: /[0-9]{1,3}/")
    for i, function in enumerate(functions):
        name = quoted(f"functions.{function.name}:")
        writer.add(f"f{i}: {begin} {name} INDEX {between} {writer.arguments(function)} {end}")
    return f"({_any_of(functions)}){'+' if many else ''} {writer.end}"


def _mistral(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """``name[ARGS]{...}``, or a list of JSON objects in older models."""
    if not writer.has("[ARGS]"):
        writer.add(f"call: {writer.objects(functions)}")
        more = ' (WS? "," WS? call)*' if many else ""
        return f'WS? "[" WS? call{more} WS? "]"'
    between = writer.mark("[ARGS]")
    for i, function in enumerate(functions):
        writer.add(f"f{i}: {quoted(function.name)} {between} {writer.arguments(function)}")
    writer.add(f"call: {_any_of(functions)}")
    return f"call ({writer.start} call)*" if many else "call"


@dataclass(frozen=True, slots=True)
class _Tags:
    """A format in which each argument stands between tags.

    ``open`` and ``close`` surround all arguments, ``key`` and ``after`` the value of each.
    ``{}`` stands for a name.
    """

    open: tuple[str, ...]
    key: tuple[str, ...]
    after: tuple[str, ...]
    close: tuple[str, ...] = ()

    def __call__(self, writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
        """The body of a call."""
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
        # Some parsers want the closing tag at the very end, except for a line break.
        return f'WS? ({_any_of(functions)}) "\\n"? {writer.end}'

    def _value(self, writer: _Writer, function: _Function, name: str, schema: Any) -> str:
        """An argument's value and what ends it."""
        after = " ".join(_marks(writer, self.after))
        if not isinstance(schema, Mapping):
            schema = {}
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if options and all(isinstance(option, str) for option in options):
            return f"({' | '.join(map(quoted, options))}) {after}"
        if not _is_text(schema):
            whole = function.schema
            shared: dict[str, Any] = {k: whole[k] for k in ("$defs", "definitions") if k in whole}
            at = f"{function.at}.properties.{name}"
            return f"{json_value({**shared, **schema}, strict=function.strict, at=at)} {after}"
        if function.strict:
            _check_text(schema, f"{function.at}.properties.{name}")
        if writer.is_special(self.after[0]):  # plain text never matches it
            return f"TEXT? {after}"
        lazy = f"text{len(writer.rules)}"
        writer.add(f"{lazy}[lazy]: /(?s:.*){_escaped(''.join(self.after))}/")
        return lazy


def _marks(writer: _Writer, marks: Sequence[str], name: str = "") -> list[str]:
    return [writer.mark(mark.replace("{}", name)) for mark in marks]


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value is written without quotes, because it is or may be a string."""
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
    format: ToolFormat,
    tools: Sequence[Mapping[str, Any]],
    vocabulary: Vocabulary,
    *,
    names: Collection[str],
    strict: Collection[str],
    many: bool,
    begun: bool = False,
) -> Lark:
    """One call of one of the tools with these names, or with ``many`` one or more calls.

    ``begun``: the start mark of the first call is already there. Arguments for the ``strict``
    functions follow the schema to the letter.
    """
    writer = _Writer(vocabulary, format)
    functions = [
        _function(tool["function"], i, strict)
        for i, tool in enumerate(tools)
        if tool["function"]["name"] in names
    ]
    writer.add(f"body: {_BODIES[format.style](writer, functions, many)}")
    has_more = many and format.style not in _ONE_SECTION
    calls = f"body (WS? {writer.start} body)*" if has_more else "body"
    start = f"{calls} WS?" if begun else f"WS? {writer.start} {calls}"
    return Lark("\n".join([f"start: {start}", *writer.rules, _SPACE, _TEXT, ""]))


def _function(function: Mapping[str, Any], index: int, strict: Collection[str]) -> _Function:
    at = f"tools[{index}].function.parameters"
    schema: Mapping[str, Any] = function.get("parameters") or {}
    if schema.get("type", "object") != "object":
        raise OptionError(f"{at}.type", f"expected 'object', got {schema['type']!r}")
    whole = {"type": "object", "properties": {}, **schema}  # without parameters, no keys
    return _Function(function["name"], whole, function["name"] in strict, at)
