"""What of a schema can be compiled: its outline, whatever it says, or what a grammar can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_OPENING = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"}
)
"""Keywords that may name further properties."""


_UNHELD = frozenset(
    {"uniqueItems", "contains", "minContains", "maxContains", "propertyNames", "not", "if", "then"}
    | {"else", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"}
    | {"unevaluatedItems", "$dynamicRef", "oneOf"}
)
"""Keywords that the grammar engine leaves out, or takes for something that allows more."""

_LOOKS = ("(?=", "(?!", "(?<=", "(?<!", "\\b", "\\B", *(f"\\{digit}" for digit in range(1, 10)))
"""What no automaton matches, at the beginning of each."""


def unheld(schema: Any) -> bool:
    """Whether a schema has something that a grammar cannot hold, so that answers are checked."""
    return any(
        not _UNHELD.isdisjoint(part) or _looks(part.get("pattern")) for part in _parts(schema)
    )


_FORMATS = frozenset(
    ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_VALUES = frozenset({"enum", "const", "default", "examples"})


def as_engine_takes(schema: Any) -> Any:
    """The same schema without what the engine refuses although it holds nothing: formats that are
    only notes, and counts such as 2.0."""
    if isinstance(schema, list):
        return [as_engine_takes(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    taken = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value not in _FORMATS:
            continue
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            value = int(value)
        taken[key] = value if key in _VALUES else as_engine_takes(value)
    return taken


def holdable(schema: Any) -> Any:
    """The schema as far as a grammar can hold it: without patterns that look around, and with the
    names that ``propertyNames`` allows. The engine leaves out the rest."""
    if isinstance(schema, list):
        return [holdable(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    drops = _looks(schema.get("pattern"))
    held = {key: holdable(value) for key, value in schema.items() if not drops or key != "pattern"}
    names = schema.get("propertyNames")
    if not isinstance(names, Mapping) or {"properties", "patternProperties"} & schema.keys():
        return held
    value, pattern = held.get("additionalProperties", True), names.get("pattern")
    if isinstance(pattern, str) and not _looks(pattern):
        return {**held, "patternProperties": {pattern: value}, "additionalProperties": False}
    options = names.get("enum")
    if isinstance(options, list) and all(isinstance(name, str) for name in options):
        properties = dict.fromkeys(options, value)
        return {**held, "properties": properties, "additionalProperties": False}
    return held


def _looks(pattern: Any) -> bool:
    return isinstance(pattern, str) and any(sign in pattern for sign in _LOOKS)


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the types, the properties and their types alone.

    What is valid against the schema is valid against its outline.
    """
    found = _types(schema)
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping):
        found["properties"] = {name: _types(each) for name, each in properties.items()}
    if isinstance(required, list):
        found["required"] = [name for name in required if isinstance(name, str)]
    is_closed = not schema.get("additionalProperties", False) and _OPENING.isdisjoint(schema)
    found["additionalProperties"] = not is_closed
    return found


def _types(schema: Any) -> dict[str, Any]:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    several = kinds if isinstance(kinds, list) else [kinds]
    if not several or not all(isinstance(kind, str) and kind in _TYPES for kind in several):
        return {}
    return {"type": kinds}
