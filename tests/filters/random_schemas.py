"""Random JSON schemas, each with an instance that is valid against it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

PATTERNS: dict[str, str] = {
    r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$": "john.doe@ex-ample.org",
    r"^[0-9]{5}(-[0-9]{4})?$": "12345-6789",
    r"^\+?[1-9][0-9]{7,14}$": "+4915112345678",
    r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$": "DE89370400440532013000",
    r"^(foo|bar)-[a-f0-9]{8}$": "bar-00ffee12",
    r"^#[0-9a-fA-F]{6}$": "#ffcc00",
    r"^v[0-9]+\.[0-9]+\.[0-9]+$": "v1.20.3",
    r"^https?://[a-z0-9.-]+(/[a-z0-9_-]+)*$": "https://ex.org/a/b",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "13:45",
    r"^[^@]+@[^@]+$": "x@y",
}

FORMATS: dict[str, str] = {
    "date-time": "1999-12-31T23:59:59+01:00",
    "date": "2020-02-29",
    "time": "10:20:30Z",
    "email": "jane_doe@mail.example.org",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "10.0.0.1",
    "ipv6": "2001:db8::8a2e:370:7334",
    "hostname": "ex.org",
    "duration": "P3D",
    "uri": "http://ex.org/a?b=c",
}

TREE: Schema = {
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
        "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
    },
    "required": ["label", "children", "next"],
    "additionalProperties": False,
}

NAMES = [
    "id",
    "name",
    "created_at",
    "kind",
    "value",
    "items",
    "tags",
    "left",
    "right",
    "url",
    "email",
    "zip_code",
    "description",
    "author",
    "title",
    "children",
    "next",
    "size",
    "color",
    "data",
    "meta",
    "is_active",
    "type",
    "price",
    "quantity",
    "notes",
]
VALUES = ["alpha", "beta", "gamma", 12, None, "delta wing", "alphabet", "a", [1, 2], {"a": 1}]


def case(seed: int) -> tuple[Schema, Any]:
    """An object schema, and an instance with its properties in the schema's order."""
    draw = random.Random(seed)
    schema = _object(draw, 3)
    return schema | {"$defs": {"tree": TREE}}, _instance(draw, schema, 3)


def _schema(draw: random.Random, depth: int) -> Schema:
    flat: list[Callable[[random.Random], Schema]] = [
        _integer,
        lambda _: {"type": draw.choice(["number", "boolean", "null"])},
        lambda _: {"const": draw.choice(VALUES)},
        lambda _: {"enum": draw.sample(VALUES, draw.randint(1, 5))},
        lambda _: {"type": "string"},
        _long_string,
        lambda _: {"type": "string", "pattern": draw.choice(list(PATTERNS))},
        lambda _: {"type": "string", "format": draw.choice(list(FORMATS))},
    ]
    nested: list[Callable[[random.Random, int], Schema]] = [_array, _tuple, _object, _object, _any]
    kind = draw.randrange(len(flat) + (len(nested) + 1) * (depth > 0))
    if kind < len(flat):
        return flat[kind](draw)
    if kind == len(flat):
        return {"$ref": "#/$defs/tree"}
    return nested[kind - len(flat) - 1](draw, depth - 1)


def _integer(draw: random.Random) -> Schema:
    least = draw.randint(-50, 500)
    return draw.choice([{}, {"minimum": least, "maximum": least + 99}]) | {"type": "integer"}


def _long_string(draw: random.Random) -> Schema:
    least = draw.randint(1, 40)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 9)}


def _array(draw: random.Random, depth: int) -> Schema:
    return {"type": "array", "items": _schema(draw, depth), "minItems": draw.choice([0, 0, 1, 4])}


def _tuple(draw: random.Random, depth: int) -> Schema:
    items = [_schema(draw, depth) for _ in range(draw.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _object(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(NAMES, draw.randint(0, 6))
    schema: Schema = {
        "type": "object",
        "properties": {name: _schema(draw, depth) for name in names},
        "required": [name for name in names if draw.random() < 0.5],
    }
    return schema | draw.choice([{}, {"additionalProperties": False}])


def _any(draw: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(draw, depth) for _ in range(draw.randint(2, 4))]}


def _instance(draw: random.Random, schema: Schema, depth: int) -> Any:
    if "$ref" in schema:
        count = draw.randint(0, 2) if depth > 0 else 0
        after = depth > 0 and draw.random() < 0.4
        return {
            "label": _text(draw, draw.randint(0, 5)),
            "children": [_instance(draw, schema, depth - 1) for _ in range(count)],
            "next": _instance(draw, schema, depth - 1) if after else None,
        }
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "anyOf" in schema:
        return _instance(draw, draw.choice(schema["anyOf"]), depth)
    if schema["type"] == "object":
        return {
            name: _instance(draw, value, depth)
            for name, value in schema["properties"].items()
            if name in schema["required"] or draw.random() < 0.4
        }
    if schema["type"] == "array":
        count = schema["minItems"] + draw.choice([0, 0, 1])
        items = schema.get("prefixItems") or [schema["items"]] * count
        return [_instance(draw, item, depth) for item in items]
    return _scalar(draw, schema)


def _scalar(draw: random.Random, schema: Schema) -> Any:
    if schema["type"] == "integer":
        return draw.randint(schema.get("minimum", -999), schema.get("maximum", 99999))
    if schema["type"] != "string":
        return {"number": draw.choice([0.5, -2.25, 100]), "boolean": True, "null": None}[
            schema["type"]
        ]
    if "pattern" in schema:
        return PATTERNS[schema["pattern"]]
    if "format" in schema:
        return FORMATS[schema["format"]]
    return _text(draw, draw.randint(schema.get("minLength", 0), schema.get("maxLength", 20)))


def _text(draw: random.Random, length: int) -> str:
    return "".join(draw.choice('abc xyzé"\\') for _ in range(length))
