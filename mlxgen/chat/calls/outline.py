"""The outline of a schema, which can be compiled whatever the schema says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_OPENING = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"}
)
"""Keywords that may name further properties."""


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
