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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...errors import GrammarError, OptionError
from ...filters import Lark
from ...filters.grammar import quoted
from ...filters.json_schema import WHITESPACE
from ...tokens import Vocabulary
from ..dialect import UnsupportedError
from .formats import CallFormat
from .schema import kinds_of, options_of
from .styles import ARGUMENTS, Headed, Literals, Objects, Tagged

if TYPE_CHECKING:
    from ...filters.schema.written import Held

_SPACE = "WS: /[ \\t\\r\\n]{1,12}/"
_TEXT = "TEXT: /(?s:.)+/"
_PLAIN = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
    | {"title", "description"}
)
"""Keywords of a schema that are held if each argument is written on its own."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A function to call; ``at`` is its place in the request."""

    name: str
    schema: dict[str, Any]
    strict: bool
    at: str


class _Writer:
    """Collects the rules of a grammar."""

    def __init__(self, vocabulary: Vocabulary, format: CallFormat) -> None:
        self._added = {vocabulary.piece(token): token for token in vocabulary.added}
        self._vocabulary = vocabulary
        self.format = format
        self.start = self.mark(format.start)  # before a call
        self.end = self.mark(format.end)  # after it
        self.rules: list[str] = []

    def is_special(self, text: str) -> bool:
        """Whether this text is a token that is never part of plain text."""
        return self._added.get(text.encode()) in self._vocabulary.special

    def mark(self, text: str) -> str:
        """The added tokens of which a text is made, or else the text."""
        rest, tokens = text.encode(), []
        while rest:
            found = max((p for p in self._added if p and rest.startswith(p)), key=len, default=b"")
            if not found:
                return quoted(text)
            tokens.append(f"<[{self._added[found]}]>")
            rest = rest[len(found) :]
        return " ".join(tokens)


def _any_of(functions: Sequence[_Function]) -> str:
    return " | ".join(f"f{i}" for i in range(len(functions)))


def json_value(schema: Mapping[str, Any] | bool, at: str) -> str:
    """JSON of a schema with closed objects, as a part of a rule."""
    try:
        return f"%lark {{\n{_held(schema).lark}}}"
    except GrammarError as error:
        error.field = at
        raise


def unheld(format: CallFormat, schema: Mapping[str, Any]) -> bool:
    """Whether calls in this format may have arguments that the grammar takes and the schema does
    not. GrammarError if it is not one."""
    is_json = isinstance(format.body, Objects | Headed)
    return bool(_held(schema).checked) or not (is_json or schema.keys() <= _PLAIN)


def notes_of(schema: Mapping[str, Any]) -> Sequence[str]:
    """What of a schema is not even checked, such as unknown formats."""
    try:
        return _held(schema).notes
    except GrammarError:  # no grammar is made of it
        return ()


def _held(schema: Mapping[str, Any] | bool) -> Held:
    try:
        return _held_text(json.dumps(schema))
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


@lru_cache(256)
def _held_text(schema: str) -> Held:
    from ...filters.schema.written import held, parsed  # jsonschema takes a while to import

    return held(parsed(schema), whitespace=WHITESPACE, closed=True)


# ---- the styles: what stands between the marks of a call ----------------------------------------


def _objects(writer: _Writer, style: Objects, functions: Sequence[_Function], many: bool) -> str:
    """``{"name": ..., "arguments": {...}}``, in a list if the format has one."""
    opening = quoted(style.opening) if style.opening else ""
    first, second = (quoted(json.dumps(key)) for key in style.keys)
    for i, function in enumerate(functions):
        name, arguments = (
            quoted(json.dumps(function.name)),
            json_value(function.schema, function.at),
        )
        inner = (
            f'WS? "," WS? {second} WS? ":" WS? {arguments}'
            if style.keys[0]
            else (f'WS? ":" WS? {arguments} WS?')
        )
        writer.rules.append(f"f{i}: {name} {inner}")
    key = f'{first} WS? ":" WS?' if style.keys[0] else ""
    call = f'"{{" WS? {key} ({_any_of(functions)}) WS? "}}"'
    if style.is_list:
        writer.rules.append(f"call: {call}")
        more = ' (WS? "," WS? call)*' if many else ""
        call = f'"[" WS? call{more} WS? "]"'
    return f"{opening} WS? {call} WS? {writer.end}"


def _headed(writer: _Writer, style: Headed, functions: Sequence[_Function], many: bool) -> str:
    """A name in a head of its own, and one JSON object, as the pieces of the format say."""
    writer.rules.append("INDEX: /[0-9]{1,3}/")
    harmony = writer.format.style == "harmony"
    pieces = style.pieces[:-1] if harmony else style.pieces  # its end is the end of the text
    for i, function in enumerate(functions):
        parts: list[str] = []
        for piece in pieces:
            if piece == ARGUMENTS:
                parts.append(json_value(function.schema, function.at))
                continue
            text, index, rest = piece.replace("{name}", function.name).partition("{index}")
            parts += [writer.mark(each) for each in (text,) if each]
            parts += ["INDEX"] if index else []
            parts += [writer.mark(rest)] if rest else []
        writer.rules.append(f"f{i}: {' '.join(parts)}")
    writer.rules.append(f"call: {_any_of(functions)}")
    if harmony:
        channel, message, end, start = map(
            writer.mark, ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
        )
        thought = f'{channel} "analysis" {message} TEXT? {end} {start} "assistant"'
        writer.rules.append(f"thought: {thought}")
        return "thought* call"
    between = writer.mark(style.between) if style.between else "WS?"
    return f"call{f' ({between} call)*' if many else ''} {writer.end}"


def _literals(writer: _Writer, style: Literals, functions: Sequence[_Function], many: bool) -> str:
    """``name(key=value, ...)``, in a list or on lines. The values are JSON, which is Python."""
    sign, comma = style.signs
    for i, function in enumerate(functions):
        properties = list((function.schema.get("properties") or {}).items())
        required = function.schema.get("required") or ()
        before, after = style.before + function.name + style.brackets[0], style.brackets[1]
        writer.rules.append(f"f{i}: {quoted(before)} f{i}a0 {quoted(after)}")
        for j, (name, schema) in enumerate(properties):
            value = f"{quoted(name + sign)} {_json_argument(function, name, schema)}"
            writer.rules.append(f"f{i}v{j}: {value}")
            for rule, lead in (("a", ""), ("b", quoted(comma))):  # the first argument, and others
                skipped = "" if name in required else f" | f{i}{rule}{j + 1}"
                writer.rules.append(f"f{i}{rule}{j}: {lead} f{i}v{j} f{i}b{j + 1}{skipped}")
        for rule in "ab" if properties else "a":
            writer.rules.append(f'f{i}{rule}{len(properties)}: ""')
    writer.rules.append(f"call: {_any_of(functions)}")
    if "\n" in style.between:
        return f"WS? call{' (WS call)*' if many else ''} WS? {writer.end}"
    first, last = map(quoted, style.around)
    return f"{first} call{f' ({quoted(style.between)} call)*' if many else ''} {last} {writer.end}"


def _tagged(writer: _Writer, style: Tagged, functions: Sequence[_Function], many: bool) -> str:
    """Each argument between tags."""
    for i, function in enumerate(functions):
        parts = _marks(writer, style.open, function.name)
        properties = function.schema.get("properties") or {}
        required = function.schema.get("required") or ()
        for j, (name, schema) in enumerate(properties.items()):
            key = " ".join(_marks(writer, style.key, name))
            value = _tagged_value(writer, style, function, name, schema)
            writer.rules.append(f"f{i}p{j}: {key} {value}")
            parts.append(f"f{i}p{j}{'' if name in required else '?'}")
        parts += _marks(writer, style.close, function.name)
        writer.rules.append(f"f{i}: {' '.join(parts)}")
    return f'WS? ({_any_of(functions)}) "\\n"? {writer.end}'


def _tagged_value(
    writer: _Writer, style: Tagged, function: _Function, name: str, schema: Any
) -> str:
    """An argument's value and what ends it."""
    after = " ".join(_marks(writer, style.after))
    if not isinstance(schema, Mapping):
        schema = {}
    options = options_of(schema)
    if options and all(isinstance(option, str) for option in options):
        return f"({' | '.join(map(quoted, options))}) {after}"
    kinds = kinds_of(schema, function.schema)
    if options is not None or (kinds and "string" not in kinds):
        return f"{_json_argument(function, name, schema)} {after}"
    if function.strict:
        _check_text(schema, f"{function.at}.properties.{name}")
    if writer.is_special(style.after[0]):  # plain text never matches it
        return f"TEXT? {after}"
    lazy = f"text{len(writer.rules)}"
    writer.rules.append(f"{lazy}[lazy]: /(?s:.*){_escaped(''.join(style.after))}/")
    return lazy


def _json_argument(function: _Function, name: str, schema: Any) -> str:
    """The value of one argument, as JSON."""
    if not isinstance(schema, Mapping):
        schema = {}
    shared: dict[str, Any] = {
        key: function.schema[key] for key in ("$defs", "definitions") if key in function.schema
    }
    return json_value({**shared, **schema}, f"{function.at}.properties.{name}")


def _marks(writer: _Writer, pieces: Sequence[str], name: str = "") -> list[str]:
    return [writer.mark(piece.replace("{name}", name).replace("{key}", name)) for piece in pieces]


def _check_text(schema: Mapping[str, Any], at: str) -> None:
    for keyword in ("pattern", "format", "minLength", "maxLength"):
        if keyword in schema:
            raise UnsupportedError(
                at, f"{keyword} cannot be enforced in this model's call format; leave out strict"
            )


def _escaped(text: str) -> str:
    """Text as a part of an expression between slashes."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text).replace("\n", "\\n")


def _body(writer: _Writer, functions: Sequence[_Function], many: bool) -> str:
    style = writer.format.body
    is_old = writer.format.style == "mistral" and not writer.mark("[ARGS]").startswith("<")
    if is_old:
        style = Objects(is_list=True)  # of older models
    if isinstance(style, Objects):
        return _objects(writer, style, functions, many)
    if isinstance(style, Headed):
        return _headed(writer, style, functions, many)
    if isinstance(style, Tagged):
        return _tagged(writer, style, functions, many)
    assert isinstance(style, Literals)
    return _literals(writer, style, functions, many)


def calls_grammar(
    format: CallFormat,
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
    writer.rules.append(f"body: {_body(writer, functions, many)}")
    has_more = many and format.paired
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
