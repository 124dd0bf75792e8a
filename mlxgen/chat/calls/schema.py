"""The types in a tool's schema, and what they make of the values that a model writes.

A model writes a value as text between tags, as JSON or as Python, and makes mistakes: the schema of
the tool decides what the value is. Invariant: a value that fits its schema is left unchanged, and
nothing is lost: a value that cannot be made to fit stays as the model wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias

from .values import dumped, literal, plain_json

Schema: TypeAlias = Any  # a mapping, True or False; but a client may send anything

_DEEP = 16  # levels of nested values to look at
_ALIASES = {  # Python's names of types, as in tools written by hand
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}
_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


class Shape:
    """A schema with the schemas that it refers to or combines."""

    def __init__(self, schema: Schema, root: Schema = None) -> None:
        self._root = schema if root is None else root
        self._parts: list[Mapping[str, Any]] = []
        waiting, seen = [schema], set[int]()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            self._parts.append(part)
            if isinstance(reference := part.get("$ref"), str):
                waiting.append(self._referred(reference))
            for keyword in ("allOf", "anyOf", "oneOf"):
                inner = part.get(keyword)
                waiting += inner if isinstance(inner, list) else []

    def _referred(self, reference: str) -> Schema:
        """What a reference within the schema refers to; True if there is nothing."""
        found: Any = self._root if reference.startswith("#") else True
        for step in reference.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, TypeError, ValueError):
                return True
        return found

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The types that the schema names; empty: it allows any."""
        found: set[str] = set()
        for part in self._parts:
            kinds = part.get("type")
            if isinstance(kinds, str | list):
                named = [kinds] if isinstance(kinds, str) else kinds
                found.update(_ALIASES.get(kind, kind) for kind in named if isinstance(kind, str))
            elif (options := options_of(part)) is not None:
                found.update(_NAMES.get(type(option), "object") for option in options)
            elif "properties" in part:
                found.add("object")
            elif "items" in part:
                found.add("array")
        return frozenset(found)

    @cached_property
    def properties(self) -> dict[str, Schema]:
        """All properties that the schema names."""
        found: dict[str, Schema] = {}
        for part in self._parts:
            own = part.get("properties")
            found = {**own, **found} if isinstance(own, Mapping) else found
        return found

    def property(self, key: str) -> Shape:
        """The shape of a property; that of any value if the schema does not describe it."""
        if key in self.properties:
            return Shape(self.properties[key], self._root)
        return self._first("additionalProperties")

    def _first(self, keyword: str) -> Shape:
        found = (part.get(keyword) for part in self._parts)
        return Shape(next((s for s in found if isinstance(s, Mapping)), True), self._root)

    def grows(self, *, quoted: bool) -> bool:
        """Whether a value can be passed on before its end, as a string whatever follows.

        ``quoted``: it has quotes that say so. Without them it may still turn out to be ``null``.
        """
        if any(options_of(part) is not None for part in self._parts):
            return False
        if quoted:
            return not self.kinds or "string" in self.kinds
        return "string" in self.kinds and self.kinds <= {"string", "null"}

    def of_text(self, text: str) -> Any:
        """The value that unquoted text stands for."""
        may_be_text = not self.kinds or "string" in self.kinds
        if self._is_chosen(text.strip()):
            text = text.strip()
        if self.kinds == {"string"} or self._is_chosen(text):
            return text
        try:  # only text that looks like nothing else is a string
            value = plain_json(text) if may_be_text else _read(text)
        except ValueError:
            return text
        if not self._is_chosen(value) and may_be_text:
            return text if isinstance(value, str) or not self._fits(value) else self.settled(value)
        return self.settled(value)

    def of_members(self, members: str | list[tuple[str, Any]]) -> Any:
        """The value that tags with their contents, or a text, stand for: an object, or a list of
        items. A name that occurs several times has a list."""
        if isinstance(members, str):
            return self.of_text(members)
        if all(name == "item" for name, _ in members):
            return [self._first("items").of_members(each) for _, each in members]
        found: dict[str, list[tuple[str, Any]]] = {}
        for name, each in members:
            found.setdefault(name, []).append(("item", each))
        return {
            name: self.property(name).of_members(items if len(items) > 1 else items[0][1])
            for name, items in found.items()
        }

    def settled(self, value: Any, depth: int = 0) -> Any:
        """A value, converted to what the schema wants if it does not fit."""
        if depth > _DEEP or self._is_chosen(value):
            return value
        if isinstance(value, str):
            try:
                read = _read(value)
            except ValueError:
                return value
            if not self._is_chosen(read) and (self._fits(value) or not self._fits(read)):
                return value
            value = read
        elif value is not None and "string" in self.kinds and not self._fits(value):
            return dumped(value)
        if isinstance(value, float) and self.kinds and "number" not in self.kinds:
            return int(value) if value.is_integer() else value
        if isinstance(value, dict):
            return {key: self.property(key).settled(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list):
            items = self._first("items")
            return [items.settled(each, depth + 1) for each in value]
        return value

    def _fits(self, value: Any) -> bool:
        name = _NAMES[type(value)]
        names = {name, "number"} if name == "integer" else {name}
        if name == "number" and value.is_integer():
            names.add("integer")
        return not self.kinds or not self.kinds.isdisjoint(names)

    def _is_chosen(self, value: Any) -> bool:
        """Whether a value is among the schema's choices, and of the same type."""
        numbers = {"integer", "number"}
        names = {_NAMES[type(value)]}
        names = numbers if names <= numbers else names
        return any(
            option == value and _NAMES.get(type(option)) in names
            for part in self._parts
            for option in options_of(part) or ()
        )


def _read(text: str) -> Any:
    """The value that a text spells, perhaps escaped once too often."""
    try:
        return literal(text)
    except ValueError:
        return literal(plain_json(f'"{text}"'))


def options_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of ``const`` or ``enum``; None: the schema has neither."""
    if "const" in schema:
        return [schema["const"]]
    options = schema.get("enum")
    return options if isinstance(options, list) else None


# ---- the outline of a schema --------------------------------------------------------------------

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_OPENING = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"}
)
"""Keywords that may name further properties."""


def outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema reduced to its type, its properties and their types, so that a grammar can always be
    made of it.

    Whatever is valid against the schema is valid against its outline.
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
