"""Schemas that no finite text satisfies, because they contain themselves without a way out.

The grammar engine does not notice: it finds every step possible and never reaches an end.

Invariant: only schemas that certainly have no finite instance are reported. Anything that is
not understood counts as satisfiable, and is left to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .references import References


def why_endless(schema: Any) -> str | None:
    """Why ``schema`` has no finite instance, or None.

    The set of parts that are known to lead to an end grows until nothing is added: the least
    fixed point of "satisfiable".
    """
    search = _Search(schema)
    try:
        while not search.ends(schema):
            known = len(search.ending), len(search.targets)
            for target in list(search.targets.values()):
                if search.ends(target):
                    search.ending.add(id(target))
            if (len(search.ending), len(search.targets)) == known:
                return f"no text satisfies it: {search.reason(schema)}"
    except RecursionError:  # nested more deeply than the engine allows, which will say so
        pass
    return None


class _Search:
    """What references refer to, by its id(), and which of it is known to lead to an end."""

    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self.targets: dict[int, Any] = {}
        self.ending: set[int] = set()

    def ends(self, schema: Any) -> bool:
        """Whether a finite instance is known to exist, or may."""
        if not isinstance(schema, Mapping):
            return True
        if "$ref" in schema:
            target = self._references.find(schema)
            if isinstance(target, Mapping) and id(target) not in self.ending:
                self.targets.setdefault(id(target), target)
                return False
        parts = schema.get("allOf")
        if isinstance(parts, list) and not all(self.ends(part) for part in parts):
            return False
        for keyword in ("anyOf", "oneOf"):
            parts = schema.get(keyword)
            if isinstance(parts, list) and parts and not any(self.ends(p) for p in parts):
                return False
        types = schema.get("type")
        if types == "object":
            return not self._endless_property(schema)
        if types == "array":
            return not self._endless_item(schema)
        return True

    def _endless_property(self, schema: Mapping[str, Any]) -> str | None:
        properties = schema.get("properties")
        required = schema.get("required")
        if isinstance(properties, Mapping) and isinstance(required, list):
            for name in required:
                value = properties.get(name) if isinstance(name, str) else None
                if value is not None and not self.ends(value):
                    return str(name)
        return None

    def _endless_item(self, schema: Mapping[str, Any]) -> bool:
        least = schema.get("minItems", 0)
        if not isinstance(least, int) or least < 1:
            return False
        first = schema.get("prefixItems")
        needed = first[:least] if isinstance(first, list) else []
        if least > len(needed) and "items" in schema:
            needed = [*needed, schema["items"]]
        return not all(self.ends(item) for item in needed)

    def reason(self, schema: Any) -> str:
        for part in (schema, *self.targets.values()):
            name = self._endless_property(part) if isinstance(part, Mapping) else None
            if name is not None:
                return f"the required property {name!r} always needs another one like it"
        return "it refers to itself and never ends"
