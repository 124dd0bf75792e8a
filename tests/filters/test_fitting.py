"""Arguments that are checked against schemas as jsonschema does, in bounded time and offline."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.chat.calls.schema import outline
from mlxgen.filters.schema.fitting import Fitting, UncheckedError

from ..effort import tries

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", 1.0, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)
KINDS = st.sampled_from(["null", "boolean", "object", "array", "number", "integer", "string"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=1),
            "items": inner,
            "uniqueItems": st.booleans(),
            "pattern": st.sampled_from(["a", "^b?$"]),
            "anyOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "unevaluatedProperties": st.booleans() | inner,
        },
    )


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(st.just({}), _schemas, max_leaves=5)


@settings(max_examples=tries(200))
@given(SCHEMAS, VALUES)
def test_what_fits_is_what_jsonschema_says(schema: dict[str, Any], value: Any) -> None:
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (Fitting(schema).objection(json.dumps(value)) is None) is valid


@settings(max_examples=tries(200))
@given(SCHEMAS, st.dictionaries(st.sampled_from("abc"), VALUES))
def test_what_fits_a_schema_fits_its_outline_if_its_objects_are_closed(
    schema: dict[str, Any], value: Any
) -> None:
    properties = {**{key: {} for key in value}, **schema.get("properties", {})}
    schema = {**schema, "properties": properties}
    if jsonschema.Draft202012Validator(schema).is_valid(value):
        assert jsonschema.Draft202012Validator(outline(schema)).is_valid(value)


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


def test_what_checks_arguments_is_imported_only_if_there_are_any() -> None:
    code = "import sys, mlxgen.chat.turn; sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
