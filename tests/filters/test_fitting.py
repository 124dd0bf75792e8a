"""Arguments that are checked against schemas as jsonschema does, in bounded time and offline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mlxgen.chat.calls.schema import outline
from mlxgen.filters.schema.fitting import Fitting, UncheckedError

from ..effort import tries
from .test_any_schema import Maker, without_references
from .test_tables import is_valid


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
