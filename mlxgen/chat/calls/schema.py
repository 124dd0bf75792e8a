"""What a schema says of the type of a value, and the check of every value of a call against it.

A model writes a value as text between tags, as JSON or as Python, and slips: the schema of the tool
decides what it is. Invariant: what fits its schema stays as it was written, and nothing is lost:
what fits in no way stays what the model wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from .values import Number, dumped, literal, plain_json

Schema: TypeAlias = Any  # a mapping, or True or False; a client may send anything else

_DEEP = 16  # levels of references and of values that are looked at
_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    Number: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def variants(schema: Schema, root: Schema, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """A schema, those that it refers to, and those of which it is made."""
    if not isinstance(schema, Mapping) or depth > _DEEP:
        return
    yield schema
    reference = schema.get("$ref")
    inner = [_referred(reference, root)] if isinstance(reference, str) else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(keyword)
        inner += parts if isinstance(parts, list) else []
    for part in inner:
        yield from variants(part, root, depth + 1)


def kinds_of(schema: Schema, root: Schema) -> frozenset[str]:
    """The types that a schema names; none: it allows any."""
    found: set[str] = set()
    for each in variants(schema, root):
        kinds = each.get("type")
        if isinstance(kinds, str):
            found.add(kinds)
        elif isinstance(kinds, list):
            found.update(kind for kind in kinds if isinstance(kind, str))
        elif (options := options_of(each)) is not None:
            found.update(_NAMES.get(type(option), "object") for option in options)
        elif "properties" in each:
            found.add("object")
        elif "items" in each:
            found.add("array")
    return frozenset(found)


def options_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values to choose from; None: there is no choice."""
    if "const" in schema:
        return [schema["const"]]
    options = schema.get("enum")
    return options if isinstance(options, list) else None


def property_of(schema: Schema, key: str, root: Schema) -> Schema:
    """The schema of a property; True if nothing is known of it."""
    if key in (known := properties_of(schema, root)):
        return known[key]
    others = (each.get("additionalProperties") for each in variants(schema, root))
    return next((other for other in others if isinstance(other, Mapping)), True)


def properties_of(schema: Schema, root: Schema) -> dict[str, Schema]:
    """All properties that a schema names."""
    found: dict[str, Schema] = {}
    for each in variants(schema, root):
        own = each.get("properties")
        found = {**own, **found} if isinstance(own, Mapping) else found
    return found


def grows(schema: Schema, root: Schema, *, quoted: bool) -> bool:
    """Whether a text can be passed on before its end: it is a string, whatever follows.

    ``quoted``: it has quotes that say so. Without them it may still turn out to be ``null``.
    """
    if any(options_of(each) is not None for each in variants(schema, root)):
        return False
    kinds = kinds_of(schema, root)
    if quoted:
        return not kinds or "string" in kinds
    return "string" in kinds and kinds <= {"string", "null"}


def of_text(text: str, schema: Schema, root: Schema) -> Any:
    """The value that a text without quotes stands for."""
    kinds = kinds_of(schema, root)
    may_be_text = not kinds or "string" in kinds
    bare = text.strip()
    if bare != text and _chosen(bare, schema, root):
        text = bare
    if kinds == {"string"} or _chosen(text, schema, root):
        return text
    try:  # a text is only what looks like nothing else
        value = plain_json(text) if may_be_text else literal(text)
    except ValueError:
        return text
    if _chosen(value, schema, root):
        return value
    if may_be_text and (isinstance(value, str) or not _fits(value, kinds)):
        return text
    return settled(value, schema, root)


def settled(value: Any, schema: Schema, root: Schema, depth: int = 0) -> Any:
    """A value as its schema wants it."""
    kinds = kinds_of(schema, root)
    if depth > _DEEP or _chosen(value, schema, root):
        return value
    if isinstance(value, str):
        try:
            read = literal(value)
        except ValueError:
            return value
        if not _chosen(read, schema, root) and (_fits(value, kinds) or not _fits(read, kinds)):
            return value
        value = read
    elif value is not None and "string" in kinds and not _fits(value, kinds):
        return dumped(value)
    if isinstance(value, Number) and kinds and "number" not in kinds and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {
            key: settled(each, property_of(schema, key, root), root, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list):
        items = (each.get("items") for each in variants(schema, root))
        of_items = next((item for item in items if isinstance(item, Mapping)), True)
        return [settled(each, of_items, root, depth + 1) for each in value]
    return value


def _fits(value: Any, kinds: frozenset[str]) -> bool:
    name = _NAMES[type(value)]
    is_whole = name == "number" and value.is_integer()
    return (
        not kinds
        or name in kinds
        or (name == "integer" and "number" in kinds)
        or (is_whole and "integer" in kinds)
    )


def _chosen(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether a value is one of those to choose from, of the same type."""
    for each in variants(schema, root):
        for option in options_of(each) or ():
            names = {_NAMES.get(type(option)), _NAMES.get(type(value))}
            if option == value and (len(names) == 1 or names == {"integer", "number"}):
                return True
    return False


def _referred(reference: str, root: Schema) -> Schema:
    """What a reference inside the schema refers to; True if there is nothing."""
    found: Any = root if reference.startswith("#") else True
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return True
    return found


# ---- the outline of a schema --------------------------------------------------------------------

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_OPENING = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"}
)
"""Keywords that may name further properties."""


def outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the types, the properties and their types alone, of which a grammar can be
    made whatever else the schema says.

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
