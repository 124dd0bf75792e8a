"""Grammars of tool calls, in the format that the model was trained on.

Invariant: the format's parser reads every text that a grammar made here derives as calls of the
given tools, with arguments that are valid against their schemas.

Marks are written as tokens if the vocabulary has them, so that no argument can end a call by
quoting its mark. Tagged formats put strings between marks without escapes: a schema's ``pattern``,
``format`` and lengths cannot be enforced there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import GrammarError, OptionError
from ...filters import Lark
from ...filters.grammar import quoted
from ...filters.json_schema import WHITESPACE
from ...filters.schema.keywords import parsed
from ...filters.schema.places import Held, held
from ...tokens import Vocabulary
from ..dialect import UnsupportedError
from .formats import CallFormat
from .schema import Shape, options_of, outline
from .styles import TEXT, Style, as_text, filled

_SPACE = "WS: /[ \\t\\r\\n]{1,12}/"
_TEXT = "TEXT: /(?s:.)+/"
_INDEX = "INDEX: /[0-9]{1,3}/"
_NAMED = re.compile(r"\{(?:name|quoted)\}")
_PLAIN = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
    | {"title", "description"}
)
"""Keywords of a schema that are still enforced if each argument is written on its own."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A function to call; ``at`` is the place of its schema in the request."""

    name: str
    schema: dict[str, Any]
    strict: bool
    at: str


class _Writer:
    """Collects the rules of a grammar of calls in a style."""

    def __init__(self, vocabulary: Vocabulary, style: Style) -> None:
        self._added = {vocabulary.piece(token): token for token in vocabulary.added}
        self._vocabulary = vocabulary
        self._style = style
        self._spaces = " WS? " if style.spaced else " "
        self._named = next(i for i, piece in enumerate(style.open) if _NAMED.search(piece))
        self.rules: list[str] = []

    def is_special(self, text: str) -> bool:
        """Whether a text is a token that is never part of plain text."""
        return self._added.get(text.encode()) in self._vocabulary.special

    def mark(self, text: str) -> str:
        """A text as its added tokens, which plain text never matches, and the text between them."""
        rest, plain, parts = text.encode(), b"", []
        while rest:
            begin = [p for p in self._added if p and rest.startswith(p)]
            found = max((p for p in begin if p == rest or not p.isspace()), key=len, default=b"")
            if not found:
                plain, rest = plain + rest[:1], rest[1:]
                continue
            if plain:
                parts.append(quoted(plain.decode()))
            parts.append(f"<[{self._added[found]}]>")
            plain, rest = b"", rest[len(found) :]
        if plain:
            parts.append(quoted(plain.decode()))
        return " ".join(parts)

    def pieces(self, pieces: Sequence[str], name: str = "") -> list[str]:
        parts: list[str] = []
        for piece in pieces:
            piece = filled([piece], name=name, key=name, quoted=json.dumps(name))
            texts = piece.strip() if self._style.spaced else piece
            before, index, after = texts.partition("{index}")
            write = quoted if self._style.spaced else self.mark
            parts += [write(before)] if before else []
            parts += ["INDEX"] if index else []
            parts += [write(after)] if after else []
        return parts

    def function(self, i: int, function: _Function) -> None:
        """Add the rules of a call of a function, from the first piece that names it."""
        parts = [*self.pieces(self._style.open[self._named :], function.name)]
        parts += self._arguments(i, function)
        self.rules.append(f"f{i}: {self._spaces.join(parts)}")

    def calls(self, count: int, many: bool, end: str) -> str:
        """The right side of a rule: calls of the first ``count`` functions, up to the ``end``."""
        style, names = self._style, " | ".join(f"f{i}" for i in range(count))
        parts = [*self.pieces(style.open[: self._named]), f"({names})", *self.pieces(style.close)]
        self.rules.append(f"call: {self._spaces.join(parts)}")
        first, last = (quoted(text) if text.strip() else "" for text in style.around)
        between = (style.between or "").strip()
        between = (
            f"WS? {self.mark(between)} WS?" if between else "WS?" if not style.between else "WS"
        )
        more = f"({between} call)*" if many and style.between is not None else ""
        return f"{first} WS? call {more} WS? {last}{' WS? ' if last else ' '}{end}"

    def _arguments(self, i: int, function: _Function) -> list[str]:
        """The rules of a function's arguments, or the one rule of all of them as an object."""
        style, schema = self._style, function.schema
        if not style.key:
            return [json_value(schema, function.at)]
        properties = list((schema.get("properties") or {}).items())
        required = schema.get("required") or ()
        for j, (name, inner) in enumerate(properties):
            value = " ".join([*self.pieces(style.key, name), self._value(function, name, inner)])
            self.rules.append(f"f{i}v{j}: {value}")
        if not style.comma:
            optional = ("" if name in required else "?" for name, _ in properties)
            return [f"f{i}v{j}{mark}" for j, mark in enumerate(optional)]
        for rule, lead in (("a", ""), ("b", quoted(style.comma))):  # the first argument, and others
            for j, (name, _) in enumerate(properties):
                skipped = "" if name in required else f" | f{i}{rule}{j + 1}"
                self.rules.append(f"f{i}{rule}{j}: {lead} f{i}v{j} f{i}b{j + 1}{skipped}")
            if properties or rule == "a":
                self.rules.append(f'f{i}{rule}{len(properties)}: ""')
        return [f"f{i}a0"]

    def _value(self, function: _Function, name: str, schema: Any) -> str:
        """The rule of an argument's value and of the pieces that end it."""
        style, at = self._style, f"{function.at}.properties.{name}"
        schema = schema if isinstance(schema, Mapping) else {}
        after = " ".join(self.pieces(style.after))
        options, kinds = options_of(schema), Shape(schema, function.schema).kinds
        if style.value is not as_text or options is not None or (kinds and "string" not in kinds):
            if options and style.value is as_text and all(isinstance(o, str) for o in options):
                return f"({' | '.join(map(quoted, options))}) {after}"
            shared = {k: v for k, v in function.schema.items() if k in ("$defs", "definitions")}
            return f"{json_value({**shared, **schema}, at)} {after}"
        unheld = [
            word for word in ("pattern", "format", "minLength", "maxLength") if word in schema
        ]
        if function.strict and unheld:
            reason = f"{unheld[0]} cannot be enforced in this model's call format; leave out strict"
            raise UnsupportedError(at, reason)
        if self.is_special(style.after[0]):  # plain text never matches it
            return f"TEXT? {after}"
        lazy = f"text{len(self.rules)}"
        self.rules.append(f"{lazy}[lazy]: /(?s:.*){_escaped(''.join(style.after))}/")
        return lazy


def json_value(schema: Mapping[str, Any] | bool, at: str) -> str:
    """The part of a rule that derives JSON of a schema, with closed objects."""
    try:
        return f"%lark {{\n{_held(schema).lark}}}"
    except GrammarError as error:
        error.field = at
        raise


def notes_of(schema: Mapping[str, Any]) -> Sequence[str]:
    """The parts of a schema that are not even checked, such as unknown formats."""
    try:
        return _held(schema).notes
    except GrammarError:  # no grammar can be made of it
        return ()


def _held(schema: Mapping[str, Any] | bool) -> Held:
    try:
        return _held_text(json.dumps(schema))
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


@lru_cache(256)
def _held_text(schema: str) -> Held:
    return held(parsed(schema), whitespace=WHITESPACE, closed=True)


def _escaped(text: str) -> str:
    """Text, escaped for a regular expression between slashes."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text).replace("\n", "\\n")


class CallsGrammar(NamedTuple):
    """A grammar of calls. It enforces only the outline of the schemas of ``loose`` tools, as asked
    or because no grammar can be made of more, and a part of the schemas of strict tools that must
    be
    ``checked``."""

    spec: Lark
    loose: frozenset[str]
    checked: frozenset[str]


def calls_grammar(
    format: CallFormat,
    tools: Sequence[Mapping[str, Any]],
    vocabulary: Vocabulary,
    *,
    names: Collection[str],
    strict: Collection[str],
    loose: Collection[str] = (),
    many: bool,
    begun: bool = False,
) -> CallsGrammar:
    """The grammar of one call of one of the tools with these ``names``; ``many``: of one or more.

    ``begun``: the start mark of the first call is already there. The arguments of ``strict``
    functions follow the schema to the letter, and those of ``loose`` ones only its outline.
    """
    style = format.body
    if format.style == "mistral" and b"[ARGS]" not in map(vocabulary.piece, vocabulary.added):
        style = format.others[0]  # the style of older models
    if format.thought:
        style = replace(style, close=())  # it ends with the text
    writer, outlined, checked = _Writer(vocabulary, style), set(loose), set[str]()
    functions: list[_Function] = []
    for i, tool in enumerate(tools):
        name, at = tool["function"]["name"], f"tools[{i}].function.parameters"
        schema: Mapping[str, Any] = tool["function"].get("parameters") or {}
        if name not in names:
            continue
        if schema.get("type", "object") != "object":
            raise OptionError(f"{at}.type", f"expected 'object', got {schema['type']!r}")
        closed = {"type": "object", "properties": {}, **schema}  # without parameters, no keys
        functions.append(_Function(name, closed, name in strict, at))
    for i, function in enumerate(functions):
        before = len(writer.rules)
        try:
            if function.name not in outlined:
                writer.function(i, function)
        except (GrammarError, UnsupportedError):
            outlined.add(function.name)
            del writer.rules[before:]
        if function.name in outlined:
            writer.function(i, replace(function, schema=outline(function.schema), strict=False))
        elif function.strict:
            is_whole = not style.key or function.schema.keys() <= _PLAIN
            if not is_whole or _held(function.schema).checked:
                checked.add(function.name)
    start, end = writer.mark(format.start), writer.mark(format.end)
    if format.thought:
        thought = writer.pieces(format.thought)
        writer.rules.append(f"thought: {' '.join(thought).replace(quoted(TEXT), 'TEXT?')}")
        body = f"thought* {writer.calls(len(functions), many=False, end='')}"
    else:
        body = writer.calls(len(functions), many, end)
    calls = f"body (WS? {start} body)*" if many and format.paired else "body"
    whole = f"{calls} WS?" if begun else f"{'WS? ' if start else ''}{start} {calls}"
    rules = [f"start: {whole}", f"body: {body}", *writer.rules, _SPACE, _TEXT, _INDEX]
    return CallsGrammar(Lark("\n".join([*rules, ""])), frozenset(outlined), frozenset(checked))
