"""What the keywords of a schema say about a value, and values as terminals of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from ...errors import GrammarError
from . import numbers
from .numbers import Span
from .patterns import UnsupportedError, searched

Schema: TypeAlias = Mapping[str, Any]

TYPES = ("null", "boolean", "object", "array", "number", "string")
CHOICES = ("anyOf", "oneOf")
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
CONDITIONAL = ("if", "then", "else", "dependentSchemas", "dependencies")
_KEYED = ("properties", "patternProperties")
UNHELD = ("not", *_DEPENDENT, "$dynamicRef", "$recursiveRef")
_NUMBERS = (int, float, Decimal)
_SHAPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys((*_KEYED, "$defs", "definitions"), ((Mapping,), "an object")),
    **dict.fromkeys(("allOf", *CHOICES), ((list,), "a list of schemas")),
    **dict.fromkeys(("enum", "prefixItems"), ((list,), "a list")),
    **dict.fromkeys(("pattern", "format", "$ref"), ((str,), "a string")),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (_NUMBERS, "a number")),
    # which are true or false in draft 4
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), ((*_NUMBERS, bool), "a number")),
    **dict.fromkeys(
        ("not", "additionalProperties", "unevaluatedProperties", "propertyNames"),
        ((Mapping, bool), "a schema"),
    ),
    "type": ((str, list), "a type or a list of types"),
}
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
SAYING = frozenset(
    {*_SHAPES, *_LENGTHS, *UNHELD, *CONDITIONAL, "const", "required", "items", "additionalItems"}
    | {"uniqueItems", "contains", "unevaluatedProperties", "unevaluatedItems"}
) - {"$defs", "definitions"}
"""Keywords that say something about a value."""


def parsed(text: str) -> Any:
    """The JSON of a schema, without rounding any number."""
    return json.loads(text, parse_float=_as_written)


def _as_written(text: str) -> float | Decimal:
    return float(text) if Decimal(repr(float(text))) == Decimal(text) else Decimal(text)


def says(schema: Any) -> bool:
    return isinstance(schema, Mapping) and not SAYING.isdisjoint(schema)


def check(schema: Any) -> None:
    """GrammarError if ``schema`` is not a valid schema."""
    if not isinstance(schema, Mapping):
        raise GrammarError(f"a schema must be an object or a boolean, got {schema!r}"[:200])
    for keyword, value in schema.items():
        shapes, name = _SHAPES.get(keyword, ((object, bool), ""))
        if not isinstance(value, shapes) or (isinstance(value, bool) and bool not in shapes):
            raise GrammarError(f"{keyword} must be {name}, got {json.dumps(value, default=str)}")
        if keyword in _LENGTHS and not _is_size(value):
            raise GrammarError(f"{keyword} must be an integer from 0, got {value!r}")
    for kind in _kind_names(schema):
        if kind not in (*TYPES, "integer"):
            raise GrammarError(f"Invalid type: {kind}")
    patterns = [schema["pattern"]] if "pattern" in schema else []
    for pattern in (*patterns, *map_of(schema, "patternProperties")):
        with suppress(UnsupportedError):
            searched(pattern)


def _is_size(value: Any) -> bool:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return is_number and value >= 0 and bool(value == int(value))


def map_of(schema: Schema, keyword: str) -> Schema:
    given = schema.get(keyword)
    return given if isinstance(given, Mapping) else {}


def list_of(schema: Schema, keyword: str) -> list[Any]:
    given = schema.get(keyword)
    return given if isinstance(given, list) else []


def _kind_names(schema: Schema) -> list[Any]:
    kinds = schema.get("type", [])
    return kinds if isinstance(kinds, list) else [kinds]


def types_of(plain: Sequence[Schema]) -> set[str]:
    """The types that all of these schemas allow."""
    types = set(TYPES)
    for schema in plain:
        if "type" in schema:
            kinds = {*_kind_names(schema)}
            if schema.get("nullable") is True:
                kinds.add("null")
            if "integer" in kinds and "number" not in kinds and "number" in types:
                types = types - {"number"} | {"integer"}
            elif "number" in kinds and "integer" in types:
                kinds.add("integer")
            types &= kinds
    return types


def options_of(schema: Schema) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    options = schema.get("enum")
    if options is None:
        return None
    nullable = schema.get("nullable") is True and None not in options
    return [*options, None] if nullable else options


def fraction(value: Any) -> Fraction:
    found = Fraction(Decimal(repr(value)) if isinstance(value, float) else value)
    if not numbers.bounded(found):
        return Fraction(10) ** 400 * (1 if found > 0 else -1)
    return found


def span_of(plain: Sequence[Schema]) -> Span:
    """The numbers within the bounds of all these schemas."""
    span = Span()
    for schema in plain:
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if "minimum" in schema:
            span = span.both(Span(low=fraction(schema["minimum"]), above=above is True))
        if "maximum" in schema:
            span = span.both(Span(high=fraction(schema["maximum"]), below=below is True))
        if above is not None and not isinstance(above, bool):
            span = span.both(Span(low=fraction(above), above=True))
        if below is not None and not isinstance(below, bool):
            span = span.both(Span(high=fraction(below), below=True))
    return span


def lengths_of(plain: Sequence[Schema], low: str, high: str) -> tuple[int, int | None]:
    least = max((int(schema[low]) for schema in plain if low in schema), default=0)
    most = min((int(schema[high]) for schema in plain if high in schema), default=None)
    return least, most


def items_of(schema: Schema) -> tuple[Sequence[Any], Any]:
    """The schemas of the first items, and the schema of the others."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return schema["prefixItems"], items
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return (), items


def is_shut(plain: Sequence[Schema]) -> bool:
    """Whether these schemas name keys, and do not say which other keys an object may have."""
    return any(isinstance(s.get(word), Mapping) for s in plain for word in _KEYED) and not any(
        "additionalProperties" in s or "unevaluatedProperties" in s for s in plain
    )


def literal(text: str) -> str:
    """A JSON string as a literal of Lark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.dumps(text))
    spelling = json.dumps(text, ensure_ascii=False)
    return json.dumps(spelling, ensure_ascii=False).replace("\x7f", "\\u007f")
