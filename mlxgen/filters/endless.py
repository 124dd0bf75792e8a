"""Schemas that no finite text satisfies, because they contain themselves without a way out.

The grammar engine does not notice: it finds every step possible and never reaches an end.

Invariant: only schemas that certainly have no finite instance are reported. Anything that is
not understood counts as satisfiable, and is left to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .references import at_pointer


def why_endless(schema: Any) -> str | None:
    """Why ``schema`` has no finite instance, or None.

    The set of references that are known to lead to an end grows until nothing is added: the
    least fixed point of "satisfiable".
    """
    try:
        return _why_endless(schema)
    except RecursionError:  # nested more deeply than the engine allows, which will say so
        return None


def _why_endless(schema: Any) -> str | None:
    references = _References(schema)
    while True:
        known = len(references.ending), len(references.seen)
        if _ends(schema, references):
            return None
        for pointer in list(references.seen):
            if _ends(references.resolve(pointer), references):
                references.ending.add(pointer)
        if (len(references.ending), len(references.seen)) == known:
            return f"no text satisfies it: {_endless_part(schema, references)}"


class _References:
    """The local references of a schema, and which of them are known to lead to an end."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.seen: dict[str, None] = {}
        self.ending: set[str] = set()

    def ends(self, pointer: Any) -> bool:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return True  # not ours to follow
        self.seen.setdefault(pointer)
        return pointer in self.ending

    def resolve(self, pointer: str) -> Any:
        """What a reference points at; True (satisfiable) if that is not clear."""
        if pointer != "#" and not pointer.startswith("#/"):
            return True  # an anchor
        return at_pointer(self.root, pointer[1:], True)


def _ends(schema: Any, references: _References) -> bool:
    """Whether a finite instance is known to exist, or may."""
    if not isinstance(schema, Mapping):
        return True
    if "$ref" in schema and not references.ends(schema["$ref"]):
        return False
    parts = schema.get("allOf")
    if isinstance(parts, list) and not all(_ends(part, references) for part in parts):
        return False
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list) and parts and not any(_ends(p, references) for p in parts):
            return False
    types = schema.get("type")
    if types == "object":
        return not _endless_property(schema, references)
    if types == "array":
        return not _endless_item(schema, references)
    return True


def _endless_property(schema: Mapping[str, Any], references: _References) -> str | None:
    properties = schema.get("properties")
    required = schema.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        for name in required:
            value = properties.get(name) if isinstance(name, str) else None
            if value is not None and not _ends(value, references):
                return str(name)
    return None


def _endless_item(schema: Mapping[str, Any], references: _References) -> bool:
    least = schema.get("minItems", 0)
    if not isinstance(least, int) or least < 1:
        return False
    first = schema.get("prefixItems")
    needed = first[:least] if isinstance(first, list) else []
    if least > len(needed) and "items" in schema:
        needed = [*needed, schema["items"]]
    return not all(_ends(item, references) for item in needed)


def _endless_part(schema: Any, references: _References) -> str:
    for part in (schema, *map(references.resolve, references.seen)):
        name = _endless_property(part, references) if isinstance(part, Mapping) else None
        if name is not None:
            return f"the required property {name!r} always needs another one like it"
    return "it refers to itself and never ends"
