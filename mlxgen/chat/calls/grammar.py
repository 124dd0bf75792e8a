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

_SPACE = "WS: /[ \\t\\r\\n]{1,12}/"
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
        first, second = (quoted(json.dumps(key)) for key in self.format.keys)
        for i, function in enumerate(functions):
            name, arguments = quoted(json.dumps(function.name)), self.arguments(function)
            self.add(f'f{i}: {name} WS? "," WS? {second} WS? ":" WS? {arguments}')
        return f'"{{" WS? {first} WS? ":" WS? ({_any_of(functions)}) WS? "}}"'

    def listed(self, call: str, many: bool) -> str:
        """A JSON list of calls."""
        self.add(f"call: {call}")
        more = ' (WS? "," WS? call)*' if many else ""
        return f'"[" WS? call{more} WS? "]"'

    def _spelled(self, text: str, tokens: Sequence[int]) -> str:
        """A mark as added tokens, or as text if the vocabulary has none for it."""
        if not text:
            return ""
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
    """``{"name": ..., "arguments": {...}}``, in a list if the format has one."""
    opening = quoted(writer.format.opening) if writer.format.opening else ""
    call = writer.objects(functions)
    calls = writer.listed(call, many) if writer.format.is_list else call
    return f"{opening} WS? {calls} WS? {writer.end}"


def _apertus(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """A list of ``{"name": {...}}``."""
    for i, function in enumerate(functions):
        name = quoted(json.dumps(function.name))
        writer.add(f'f{i}: "{{" {name} WS? ":" WS? {writer.arguments(function)} "}}"')
    return f"{writer.listed(_any_of(functions), many)} {writer.end}"


def _deepseek(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """A section of calls, each between its own marks, with JSON arguments in a fence or plain."""
    begin, end = writer.mark("<｜tool▁call▁begin｜>"), writer.mark("<｜tool▁call▁end｜>")
    between = writer.mark("<｜tool▁sep｜>")
    for i, function in enumerate(functions):
        name, arguments = quoted(function.name), writer.arguments(function)
        if writer.format.style == "deepseek_v3":
            inner = f'"function" {between} {name} "\\n```json\\n" {arguments} "\\n```"'
        else:
            inner = f"{name} {between} {arguments}"
        writer.add(f"f{i}: {begin} {inner} {end}")
    writer.add(f"call: {_any_of(functions)}")
    return f"call{' (WS? call)*' if many else ''} {writer.end}"


def _harmony(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """Thoughts, if any, and a message to a function; its end is the end of the text."""
    marks = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")
    channel, message, end, start, kind = map(writer.mark, marks)
    for i, function in enumerate(functions):
        head = f'{quoted(function.name)} " "? {kind} "json" {message}'
        writer.add(f"f{i}: {head} {writer.arguments(function)}")
    writer.add(f'thought: {channel} "analysis" {message} TEXT? {end} {start} "assistant"')
    return f'thought* {channel} "commentary to=functions." ({_any_of(functions)})'


def _pythonic(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    """``name(key=value, ...)``, in a list or on lines. The values are JSON, which is Python."""
    for i, function in enumerate(functions):
        properties = list((function.schema.get("properties") or {}).items())
        required = function.schema.get("required") or ()
        writer.add(f'f{i}: {quoted(function.name)} "(" f{i}a0 ")"')
        for j, (name, schema) in enumerate(properties):
            value = f"{quoted(f'{name}=')} {_json_argument(function, name, schema)}"
            writer.add(f"f{i}v{j}: {value}")
            for rule, before in (("a", ""), ("b", '", " ')):  # the first argument, and others
                skipped = "" if name in required else f" | f{i}{rule}{j + 1}"
                writer.add(f"f{i}{rule}{j}: {before}f{i}v{j} f{i}b{j + 1}{skipped}")
        for rule in "ab" if properties else "a":
            writer.add(f'f{i}{rule}{len(properties)}: ""')
    writer.add(f"call: {_any_of(functions)}")
    if writer.format.style == "pythonic_lines":
        return f"WS? call{' (WS call)*' if many else ''} WS? {writer.end}"
    return f'"[" call{r""" (", " call)*""" if many else ""} "]" {writer.end}'


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
        return f"WS? {writer.listed(writer.objects(functions), many)}"
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
            return f"{_json_argument(function, name, schema)} {after}"
        if function.strict:
            _check_text(schema, f"{function.at}.properties.{name}")
        if writer.is_special(self.after[0]):  # plain text never matches it
            return f"TEXT? {after}"
        lazy = f"text{len(writer.rules)}"
        writer.add(f"{lazy}[lazy]: /(?s:.*){_escaped(''.join(self.after))}/")
        return lazy


def _json_argument(function: _Function, name: str, schema: Any) -> str:
    """The value of one argument, as JSON."""
    if not isinstance(schema, Mapping):
        schema = {}
    shared: dict[str, Any] = {
        key: function.schema[key] for key in ("$defs", "definitions") if key in function.schema
    }
    at = f"{function.at}.properties.{name}"
    return json_value({**shared, **schema}, strict=function.strict, at=at)


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
    "apertus": _apertus,
    "deepseek_v3": _deepseek,
    "deepseek_v31": _deepseek,
    "harmony": _harmony,
    "kimi_k2": _kimi_k2,
    "llama_json": _json_tools,
    "llama_pythonic": _pythonic,
    "mistral": _mistral,
    "pythonic": _pythonic,
    "pythonic_lines": _pythonic,
    "seed": _Tags(
        open=("<function={}>\n",),
        key=("<parameter={}>",),
        after=("</parameter>\n",),
        close=("</function>",),
    ),
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
_REPEATED = ("json_tools", "qwen3_coder", "seed", "glm47", "laguna", "minimax_m2")
"""Formats in which every call has a pair of marks, unless calls are in a list."""


def is_known(format: ToolFormat) -> bool:
    """Whether the calls of this format can be enforced."""
    return format.style in _BODIES


def is_announced(format: ToolFormat) -> bool:
    """Whether they can be enforced as soon as a mark has begun them."""
    return bool(format.start) and is_known(format)


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
    has_more = many and format.style in _REPEATED and not format.is_list
    calls = f"body (WS? {writer.start} body)*" if has_more else "body"
    start = f"{calls} WS?" if begun else f"{'WS? ' if writer.start else ''}{writer.start} {calls}"
    return Lark("\n".join([f"start: {start}", *writer.rules, _SPACE, _TEXT, ""]))


def _function(function: Mapping[str, Any], index: int, strict: Collection[str]) -> _Function:
    at = f"tools[{index}].function.parameters"
    schema: Mapping[str, Any] = function.get("parameters") or {}
    if schema.get("type", "object") != "object":
        raise OptionError(f"{at}.type", f"expected 'object', got {schema['type']!r}")
    whole = {"type": "object", "properties": {}, **schema}  # without parameters, no keys
    return _Function(function["name"], whole, function["name"] in strict, at)
