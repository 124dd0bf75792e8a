"""What a schema says of the type of a value, and the check of every value of a call against it.

A model writes a value as text between tags, as JSON or as Python, and slips: the schema of the tool
decides what it is. Invariant: what fits its schema stays as it was written, and nothing is lost:
what fits in no way stays what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from .values import Number, dumped, literal, plain_json

Schema: TypeAlias = Any  # a mapping, or True or False; a client may send anything else

_DEEP = 16  # levels of references and of values that are looked at
_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    Number: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def kinds_of(schema: Schema, root: Schema, depth: int = 0) -> frozenset[str] | None:
    """The types that a schema allows; None: any."""
    if not isinstance(schema, Mapping) or depth > _DEEP:
        return None
    found: frozenset[str] | None = None
    written = schema.get("type")
    if isinstance(written, str):
        found = frozenset({written})
    elif isinstance(written, list):
        found = frozenset(kind for kind in written if isinstance(kind, str)) or None
    elif (options := options_of(schema)) is not None:
        found = frozenset(_NAMES.get(type(_exact(option)), "object") for option in options)
    elif "properties" in schema:
        found = frozenset({"object"})
    elif "items" in schema:
        found = frozenset({"array"})
    if isinstance(schema.get("$ref"), str):
        found = _both(found, kinds_of(_referred(schema["$ref"], root), root, depth + 1))
    for part in _parts(schema, "allOf"):
        found = _both(found, kinds_of(part, root, depth + 1))
    for keyword in ("anyOf", "oneOf"):
        parts = [kinds_of(part, root, depth + 1) for part in _parts(schema, keyword)]
        if parts and None not in parts:
            found = _both(found, frozenset().union(*(part for part in parts if part)))
    return found


def options_of(schema: Schema) -> list[Any] | None:
    """The values to choose from; None: there is no choice."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    options = schema.get("enum")
    return options if isinstance(options, list) else None


def property_of(schema: Schema, key: str, root: Schema, depth: int = 0) -> Schema:
    """The schema of a property; True if nothing is known of it."""
    if isinstance(schema, Mapping) and depth < _DEEP:
        own = schema.get("properties")
        if isinstance(own, Mapping) and key in own:
            return own[key]
        for part in _inner(schema, root):
            found = property_of(part, key, root, depth + 1)
            if found is not True:
                return found
        if isinstance(schema.get("additionalProperties"), Mapping):
            return schema["additionalProperties"]
    return True


def names_of(schema: Schema, root: Schema, depth: int = 0) -> dict[str, Schema]:
    """All properties that a schema names."""
    found: dict[str, Schema] = {}
    if isinstance(schema, Mapping) and depth < _DEEP:
        for part in _inner(schema, root):
            found |= names_of(part, root, depth + 1)
        own = schema.get("properties")
        found |= own if isinstance(own, Mapping) else {}
    return found


def grows(schema: Schema, root: Schema, *, quoted: bool) -> bool:
    """Whether a text can be passed on before its end: it is a string, whatever follows.

    ``quoted``: it has quotes that say so. Without them it may still turn out to be ``null``.
    """
    if options_of(schema) is not None:
        return False
    kinds = kinds_of(schema, root)
    if quoted:
        return kinds is None or "string" in kinds
    return kinds is not None and "string" in kinds and kinds <= {"string", "null"}


def of_text(text: str, schema: Schema, root: Schema) -> Any:
    """The value that a text without quotes stands for."""
    kinds = kinds_of(schema, root)
    options = _all_options(schema, root)
    if options is not None and any(option == text for option in options if _is_text(option)):
        return text
    others = None if kinds is None else kinds - {"string"}
    if others is not None and not others:
        return text
    try:
        value = plain_json(text) if kinds is None or "string" in kinds else literal(text)
    except ValueError:
        return text
    if options is not None and any(_same(option, value) for option in options):
        return value
    if isinstance(value, str):  # it has quotes: a string, unless a string may have them
        return text if kinds is None or "string" in kinds else settled(value, schema, root)
    if others is None or _fits(value, others) or "string" not in (kinds or ()):
        return settled(value, schema, root)
    return text


def settled(value: Any, schema: Schema, root: Schema, depth: int = 0) -> Any:
    """A value as its schema wants it."""
    if depth > _DEEP or not isinstance(schema, Mapping):
        return value
    kinds, options = kinds_of(schema, root), _all_options(schema, root)
    if options is not None and any(_same(option, value) for option in options):
        return value
    read = value
    if isinstance(value, str) and (options is not None or not _fits(value, kinds)):
        try:
            read = literal(value)
        except ValueError:
            return value
        chosen = options is not None and any(_same(option, read) for option in options)
        if not chosen and not _fits(read, (kinds or frozenset()) - {"string"}):
            return value
    elif value is not None and not _fits(value, kinds) and "string" in (kinds or ()):
        return dumped(value)
    if isinstance(read, Number) and kinds is not None and "number" not in kinds:
        return int(read) if float(read).is_integer() else read
    if isinstance(read, dict):
        return {
            key: settled(each, property_of(schema, key, root), root, depth + 1)
            for key, each in read.items()
        }
    if isinstance(read, list):
        items = _items_of(schema, root)
        return [settled(each, items, root, depth + 1) for each in read]
    return read


def _fits(value: Any, kinds: frozenset[str] | None) -> bool:
    if kinds is None:
        return True
    name = _NAMES.get(type(value), "object")
    if name == "integer" and "number" in kinds:
        return True
    return name in kinds or (name == "number" and "integer" in kinds and float(value).is_integer())


def _same(option: Any, value: Any) -> bool:
    """Whether two values are equal, and of the same type."""
    if isinstance(option, bool) or isinstance(value, bool):
        return option is value
    if isinstance(option, str) or isinstance(value, str):
        return _is_text(option) and _is_text(value) and option == value
    if option is None or value is None:
        return option is value
    return bool(option == value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _exact(value: Any) -> Any:
    return Number(repr(value)) if isinstance(value, float) else value


def _all_options(schema: Schema, root: Schema, depth: int = 0) -> list[Any] | None:
    """The values to choose from, in a schema and in those that it refers to."""
    own = options_of(schema)
    if own is not None or not isinstance(schema, Mapping) or depth > _DEEP:
        return own
    found = [_all_options(part, root, depth + 1) for part in _inner(schema, root)]
    chosen = [option for options in found if options is not None for option in options]
    return chosen if chosen and (None not in found or "allOf" in schema) else None


def _items_of(schema: Schema, root: Schema, depth: int = 0) -> Schema:
    if isinstance(schema, Mapping) and depth < _DEEP:
        if isinstance(schema.get("items"), Mapping):
            return schema["items"]
        for part in _inner(schema, root):
            found = _items_of(part, root, depth + 1)
            if found is not True:
                return found
    return True


def _inner(schema: Mapping[str, Any], root: Schema) -> Iterator[Schema]:
    """The schemas of which a schema is made."""
    if isinstance(schema.get("$ref"), str):
        yield _referred(schema["$ref"], root)
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from _parts(schema, keyword)


def _parts(schema: Mapping[str, Any], keyword: str) -> list[Schema]:
    parts = schema.get(keyword)
    return parts if isinstance(parts, list) else []


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    narrow = other | ({"integer"} if "number" in other else set())
    return (one & narrow) or one


def _referred(reference: str, root: Schema) -> Schema:
    """What a reference inside the schema refers to; True if there is nothing."""
    if not reference.startswith("#"):
        return True
    found = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return True
    return found


def written(value: Any) -> str:
    """A value as text between tags: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
