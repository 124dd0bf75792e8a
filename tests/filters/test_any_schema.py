"""Random schemas: texts of their grammars are valid, and valid values have texts.

A text that is not valid is objected to once it is complete. jsonschema is the judge.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, permutations, product
from typing import Any

import pytest

from mlxgen.chat.calls.schema import outline
from mlxgen.errors import GrammarError
from mlxgen.filters import Constraint, JsonSchema
from mlxgen.filters.schema.fitting import Fitting, UncheckedError
from mlxgen.filters.schema.places import held

from ..effort import tries
from .helpers import accepts, constrained, ordinary, stands
from .test_tables import is_valid

TYPES = ["null", "boolean", "object", "array", "number", "integer", "string"]
PATTERNS = ["a", "^a", "b$", "^[ab]*$", '^[^"]*$', "^$", "x^a|b", "^(?!a)", "^.{2}$", r"^(a|b)\1"]
STRINGS = ["", "a", "b", "ab", "ba", '"', "\\", "xx", "1"]
NUMBERS = [0, 1, 2, 3, 5, -1, -3, 0.5, 2.5, -0.25, 10, 2**60 + 1]
ENDING = (b'"', b"}", b"]", b",", b"0", b"1", b"a", b"b", b":", b"{", b"[", b"null", b"true")


class Maker:
    """Makes random values and schemas of a few letters and numbers."""

    bools = 0.05  # how often a schema is only true or false

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        kind = self.draw.randrange(8 if depth else 5)
        if kind < 2:
            return self.draw.choice([None, True, False])
        if kind == 2:
            return self.draw.choice(NUMBERS)
        if kind < 5:
            return self.draw.choice(STRINGS)
        if kind < 7:
            keys = self.draw.sample("abc", self.draw.randint(0, 2))
            return {key: self.value(depth - 1) for key in keys}
        return [self.value(depth - 1) for _ in range(self.draw.randint(0, 3))]

    def schema(self, depth: int = 3) -> Any:
        if self.draw.random() < self.bools:
            return self.draw.choice([True, False])
        made: dict[str, Any] = {}
        for _ in range(self.draw.randint(0, 3)):
            makers = {**self.flat(), **(self.nested(depth - 1) if depth else {})}
            keyword = self.draw.choice([*makers, "type", *(["properties"] if depth else [])])
            made[keyword] = makers[keyword]()
            if keyword == "if":
                made[self.draw.choice(["then", "else"])] = self.schema(depth - 1)
        return made

    def flat(self) -> Mapping[str, Callable[[], Any]]:
        draw = self.draw
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        sizes = ("Length", "Items", "Properties")
        return {
            "type": lambda: draw.choice([*TYPES, draw.sample(TYPES, 2)]),
            "enum": lambda: [self.value(1) for _ in range(draw.randint(1, 3))],
            "const": lambda: self.value(1),
            **{name: lambda: draw.choice(NUMBERS) for name in bounds},
            **{f"min{size}": lambda: draw.randint(0, 3) for size in sizes},
            **{f"max{size}": lambda: draw.randint(0, 3) for size in sizes},
            "multipleOf": lambda: draw.choice([1, 2, 0.5, 3, 7, 0.25, 0.01, 12]),
            "pattern": lambda: draw.choice(PATTERNS),
        }

    def nested(self, depth: int) -> Mapping[str, Callable[[], Any]]:
        draw = self.draw
        one = ("additionalProperties", "items", "propertyNames", "contains", "not", "if")
        some = ("anyOf", "oneOf", "allOf", "prefixItems")

        def schemas() -> list[Any]:
            return [self.schema(depth) for _ in range(draw.randint(1, 3))]

        return {
            "properties": lambda: {key: self.schema(depth) for key in draw.sample("abc", 2)},
            "required": lambda: draw.sample("abc", draw.randint(1, 2)),
            "patternProperties": lambda: {
                pattern: self.schema(depth) for pattern in draw.sample(PATTERNS, 2)
            },
            "uniqueItems": lambda: True,
            "dependentRequired": lambda: {"a": ["b"]},
            "unevaluatedProperties": lambda: self.schema(depth),
            "$ref": lambda: f"#/$defs/{draw.choice('xy')}",
            **{name: lambda: self.schema(depth) for name in one},
            **dict.fromkeys(some, schemas),
        }

    def walk(self, spec: JsonSchema) -> tuple[str, Constraint] | None:
        """A text that the grammar allows; None: it has no end in sight."""
        constraint, tokens = constrained(spec), []
        pieces = constraint.vocabulary.pieces
        for _ in range(120):
            choices = sorted(ordinary(constraint))
            if constraint.can_end() and (not choices or self.draw.random() < 0.5):
                break
            ending = [token for token in choices if pieces[token] in ENDING]
            token = self.draw.choice(ending if ending and self.draw.random() < 0.9 else choices)
            constraint.advance(token)
            tokens.append(token)
        if not constraint.can_end():
            return None
        return b"".join(pieces[token] for token in tokens).decode(), constraint


def without_references(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: without_references(v) for k, v in schema.items() if k != "$ref"}
    return [without_references(part) for part in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_is_valid_and_what_is_valid_is_taken(seed: int) -> None:
    make = Maker(seed)
    for _ in range(tries(192)):
        schema = make.schema()
        if isinstance(schema, bool):
            continue
        schema = {**schema, "$defs": {name: without_references(make.schema(1)) for name in "xy"}}
        spec = JsonSchema(schema, whitespace=None)
        values = [make.value() for _ in range(8)]
        try:
            constrained(spec)
        except GrammarError as error:
            assert "no text satisfies it" in str(error)
            assert not any(is_valid(schema, value) for value in values), schema
            continue
        for _ in range(3):
            if (walked := make.walk(spec)) is not None:
                text, constraint = walked
                valid = is_valid(schema, json.loads(text))
                assert valid == (constraint.objection() is None), (schema, text)
                assert valid or constraint.checks, (schema, text)
        for value in values:
            texts = (text.replace(" ", "") for text in islice(orders(value), 24))
            if is_valid(schema, value):
                assert any(accepts(spec, text) for text in texts), (schema, value)


def orders(value: Any) -> Iterator[str]:
    """A value's texts, with its keys in every order."""
    if not isinstance(value, dict):
        yield json.dumps(value)
        return
    for keys in permutations(value):
        for inner in product(*(list(orders(value[key])) for key in keys)):
            yield "{" + ",".join(f'"{k}":{text}' for k, text in zip(keys, inner, strict=True)) + "}"


# ---- how much is made of one -----------------------------------------------------------------

A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_parts_that_are_met_again_and_again_are_looked_at_once(keyword: str) -> None:
    """Eighty definitions, each of which has the one before it twice."""
    links: dict[str, Any] = {"c0": A}
    for i in range(1, 80):
        before = {"$ref": f"#/$defs/c{i - 1}"}
        links[f"c{i}"] = {keyword: [before, before], "properties": {f"p{i}": {}}}
    spec = JsonSchema({"type": "object", "$ref": "#/$defs/c79", "$defs": links}, closed=True)
    assert stands(spec, '{"p79":1,"p40":2,"a":3}') and not stands(spec, '{"p80":1}')


def test_the_grammar_stays_about_as_long_as_the_schema() -> None:
    defs: dict[str, Any] = {"t0": {"type": "object", **A}}
    for i in range(1, 30):
        inner = {"$ref": f"#/$defs/t{i - 1}"}
        defs[f"t{i}"] = {
            "allOf": [{"properties": {"x": inner, "y": inner}}, {"anyOf": [A, B]}],
            "anyOf": [{"properties": {"u": inner}}, {"properties": {"v": inner}}],
        }
    schema = {"$ref": "#/$defs/t29", "$defs": defs}
    assert len(held(schema, whitespace=None, closed=True).lark) < 30 * len(json.dumps(schema))


# ---- what is checked against schemas as jsonschema does, in bounded time and offline ------------


class Wide(Maker):
    """With keywords that no grammar holds."""

    def nested(self, depth: int) -> Mapping[str, Callable[[], Any]]:
        draw = self.draw
        return {
            **super().nested(depth),
            "unevaluatedItems": lambda: self.schema(depth),
            "dependentSchemas": lambda: {"a": self.schema(depth)},
            "minContains": lambda: draw.randint(0, 2),
            "maxContains": lambda: draw.randint(0, 2),
        }


@pytest.mark.parametrize("seed", range(4))
def test_what_fits_is_what_jsonschema_says(seed: int) -> None:
    make = Wide(seed)
    for _ in range(tries(800)):
        schema = without_references({"allOf": [make.schema()]})
        for value in [make.value() for _ in range(4)]:
            valid = is_valid(schema, value)
            assert (Fitting(schema).objection(json.dumps(value)) is None) is valid, (schema, value)


@pytest.mark.parametrize("seed", range(4))
def test_what_fits_a_schema_fits_its_outline_if_its_objects_are_closed(seed: int) -> None:
    make = Maker(seed)
    for _ in range(tries(800)):
        schema, value = without_references(make.schema()), make.value()
        if isinstance(schema, bool) or not isinstance(value, dict):
            continue
        properties = {**{key: {} for key in value}, **schema.get("properties", {})}
        schema = {**schema, "properties": properties}
        if is_valid(schema, value):
            assert is_valid(outline(schema), value), (schema, value)


def test_an_objection_has_no_words_of_the_answer() -> None:
    schema = {"properties": {"a": {"pattern": "^x"}}}
    assert Fitting(schema).objection('{"a": "secret"}') == "it violates pattern"
    assert Fitting(schema).objection('{"a": ') == "it is not JSON"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://localhost:1/schema.json"},
        {"$schema": "http://localhost:1/none", "$ref": "other.json"},
        {"type": "strin"},
        {"properties": 5},
        {"$ref": "#"},
        {"pattern": "("},
        {"properties": {"a": {"pattern": "^(a|a)+(b|b)+((c|c)+d)+$"}}},
    ],
    ids=str,
)
def test_what_cannot_be_checked_says_so(schema: dict[str, Any]) -> None:
    value = json.dumps({"a": "a" * 30 + "b" * 30 + "c" * 30}) if "properties" in schema else '"a"'
    with pytest.raises(UncheckedError):
        Fitting(schema).objection(value)


def test_a_schema_that_grows_as_it_is_followed_is_given_up() -> None:
    definitions: dict[str, Any] = {"d0": {}}
    for i in range(1, 25):
        twice = {"$ref": f"#/$defs/d{i - 1}"}
        definitions[f"d{i}"] = {"allOf": [twice, twice]}
    began = time.process_time()
    with pytest.raises(UncheckedError, match="steps"):
        Fitting({"$ref": "#/$defs/d24", "$defs": definitions}).objection("{}")
    assert time.process_time() - began < 10
