from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import GrammarError
from mlxgen.filters import JsonSchema
from mlxgen.filters.schema.references import References
from mlxgen.filters.schema.written import held

from ..effort import tries
from .helpers import accepts, stands

OBJECT = {"type": "object"}
A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"properties": {"b": {"type": "integer"}}}


def test_by_default_objects_are_as_open_as_json_schema_has_them() -> None:
    for text in ('{"a":1,"b":"x"}', '{"b":1}'):
        assert stands(JsonSchema(A), text)
        jsonschema.validate(json.loads(text), A)
    assert JsonSchema(A) != JsonSchema(A, closed=True)
    assert "closed=True" in repr(JsonSchema(A, closed=True))


def test_keys_that_some_condition_names_are_allowed() -> None:
    schema = {
        **OBJECT,
        **A,
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"$ref": "#/$defs/then"},
        "dependentSchemas": {"a": {"properties": {"d": {}}}},
        "$defs": {"then": {"properties": {"t": {}}, "required": ["t"]}},
    }
    spec = JsonSchema(schema, closed=True, ignore_unsupported=True)
    assert accepts(spec, '{"a":1,"t":2}') and accepts(spec, '{"d":1}')
    assert not accepts(spec, '{"z":1}')


def test_what_is_not_a_schema_is_left_for_the_engine_to_refuse() -> None:
    for schema, reason in (
        ({"properties": []}, "properties must be"),
        ({"allOf": [5]}, "schema must be"),
        ({"anyOf": 5}, "anyOf must be"),
        ({"properties": {"x": {"$ref": "#/$defs/gone"}}}, "does not exist"),
        ({"allOf": [{"$ref": "http://example.com/x"}, A]}, "not present"),
        ({"unevaluatedProperties": 5}, "unevaluatedProperties"),
    ):
        with pytest.raises(GrammarError, match=reason):
            stands(JsonSchema(schema, closed=True), "{}")


def test_a_schema_that_cannot_be_closed_is_refused_by_name() -> None:
    choices: list[Any] = [
        {"anyOf": [{"properties": {f"{i}{j}": {}}} for j in "abcd"]} for i in range(9)
    ]
    with pytest.raises(GrammarError, match=r"JsonSchema\(.*too many ways"):
        stands(JsonSchema({"allOf": choices}, closed=True), "{}")


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_parts_that_are_met_again_and_again_are_looked_at_once(keyword: str) -> None:
    """Eighty definitions, each of which has the one before it twice."""
    links: dict[str, Any] = {"c0": A}
    for i in range(1, 80):
        before = {"$ref": f"#/$defs/c{i - 1}"}
        links[f"c{i}"] = {keyword: [before, before], "properties": {f"p{i}": {}}}
    spec = JsonSchema({"type": "object", "$ref": "#/$defs/c79", "$defs": links}, closed=True)
    assert stands(spec, '{"p79":1,"p40":2,"a":3}') and not stands(spec, '{"p80":1}')


def test_a_condition_may_hold_its_schema_again() -> None:
    itself = {**OBJECT, **A, "then": {"$ref": "#"}, "else": {"if": {"$ref": "#"}}}
    assert stands(JsonSchema(itself, closed=True), '{"a":1}')
    assert not stands(JsonSchema(itself, closed=True), '{"b":1}')


def test_the_grammar_stays_about_as_long_as_the_schema() -> None:
    defs: dict[str, Any] = {"t0": {**OBJECT, **A}}
    for i in range(1, 30):
        inner = {"$ref": f"#/$defs/t{i - 1}"}
        defs[f"t{i}"] = {
            "allOf": [{"properties": {"x": inner, "y": inner}}, {"anyOf": [A, B]}],
            "anyOf": [{"properties": {"u": inner}}, {"properties": {"v": inner}}],
        }
    schema = {"$ref": "#/$defs/t29", "$defs": defs}
    assert len(held(schema, whitespace=None, closed=True).lark) < 30 * len(json.dumps(schema))


# ---- compared with jsonschema --------------------------------------------------------------------

KEYS = st.sampled_from("abc")
FLAT: st.SearchStrategy[Any] = st.sampled_from([{}, {"type": "object"}, {}, {"type": "integer"}])
DEFS = ("x", "y")


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of objects, of which any part may be missing."""
    parts = {
        "type": st.just("object"),
        "properties": st.dictionaries(KEYS, inner, max_size=2),
        "required": st.lists(KEYS, max_size=1),
        "additionalProperties": st.booleans(),
        "unevaluatedProperties": st.just(False),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "$ref": st.sampled_from([f"#/$defs/{name}" for name in DEFS]),
    }
    weights = ["type", "properties", "properties", "properties", "allOf", "anyOf", *parts]
    chosen = st.lists(st.sampled_from(weights), min_size=1, max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({n: parts[n] for n in names}))


def without_references(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: without_references(v) for k, v in schema.items() if k != "$ref"}
    return [without_references(part) for part in schema] if isinstance(schema, list) else schema


SCHEMAS = st.recursive(FLAT, composed, max_leaves=6)
VALUES = st.recursive(
    st.just(1), lambda inner: st.dictionaries(st.sampled_from("abcz"), inner, max_size=2)
)
OBJECTS = st.dictionaries(st.sampled_from("abcabcz"), VALUES, min_size=1, max_size=3)


@settings(max_examples=tries(250))
@given(SCHEMAS, st.tuples(SCHEMAS, SCHEMAS), st.lists(OBJECTS, min_size=4, max_size=4))
def test_exactly_what_jsonschema_takes_of_the_closed_reading_is_allowed(
    schema: Any, defs: tuple[Any, Any], values: list[Any]
) -> None:
    whole = {**schema, "$defs": dict(zip(DEFS, map(without_references, defs), strict=True))}
    validator = jsonschema.Draft202012Validator(reading(whole, whole))
    spec = JsonSchema(whole, closed=True)
    is_object = "properties" in schema and "type" not in schema and "$ref" not in schema
    for value in [*values, {}, *([] if is_object else [1])]:
        try:
            allowed = any(stands(spec, text) for text in orders(value))
        except GrammarError as error:
            assert "no text satisfies it" in str(error)
            allowed = False
        assert allowed == validator.is_valid(value), value


def reading(schema: Any, root: Any) -> Any:
    """The closed reading, said by ``unevaluatedProperties``: one of all the ways to choose."""
    return reading_of_all([schema], root)


def reading_of_all(schemas: list[Any], root: Any) -> Any:
    ways = product(*(ways_of(schema, root) for schema in schemas))
    return {"anyOf": [reading_of_way([s for part in way for s in part], root) for way in ways]}


def ways_of(schema: dict[str, Any], root: Any, *, top: bool = True) -> Iterator[list[Any]]:
    """For each way to choose branches: the schemas that hold, composed of nothing."""
    if not top and "unevaluatedProperties" in schema and "additionalProperties" not in schema:
        yield [{"whole": reading(schema, root), "additionalProperties": True}]
        return
    parts = list(schema.get("allOf", ()))
    if "$ref" in schema:
        parts.append(root["$defs"][schema["$ref"].rpartition("/")[2]])
    plain = {k: v for k, v in schema.items() if k not in ("allOf", "anyOf", "$ref", "$defs")}
    for branch in schema.get("anyOf", [None]):
        more = [*parts, *([] if branch is None else [branch])]
        for way in product(*(ways_of(part, root, top=False) for part in more)):
            yield [plain, *(s for part in way for s in part)]


def reading_of_way(way: list[dict[str, Any]], root: Any) -> Any:
    said: dict[str, list[Any]] = {}
    for schema in way:
        for key, value in schema.get("properties", {}).items():
            said.setdefault(key, []).append(value)
    needed = [key for schema in way for key in schema.get("required", ())]
    closed = any("properties" in s for s in way) and not any(
        "additionalProperties" in s for s in way
    )
    unevaluated = any("unevaluatedProperties" in schema for schema in way)
    plain = [
        {
            **{
                k: v for k, v in schema.items() if k in ("type", "required", "additionalProperties")
            },
            "properties": dict.fromkeys(schema.get("properties", {}), True),
        }
        for schema in way
    ]
    return {
        "allOf": [*plain, *(schema["whole"] for schema in way if "whole" in schema)],
        "properties": {
            **dict.fromkeys(needed if closed and not unevaluated else (), True),
            **{key: reading_of_all(values, root) for key, values in said.items()},
        },
        **({"unevaluatedProperties": False} if closed or unevaluated else {}),
    }


def orders(value: Any) -> Iterator[str]:
    """A value's texts, with its keys in every order."""
    if not isinstance(value, dict):
        yield json.dumps(value)
        return
    for keys in permutations(value):
        for inner in product(*(list(orders(value[key])) for key in keys)):
            yield "{" + ",".join(f'"{k}":{text}' for k, text in zip(keys, inner, strict=True)) + "}"


# ---- references ----------------------------------------------------------------------------------


def test_references_are_found_by_pointer_anchor_and_address() -> None:
    target: dict[str, Any] = {"$id": "sub/x", "$anchor": "spot", "items": [{"a/b": {"c~d": 1}}]}
    root: dict[str, Any] = {"$id": "http://example.com/r", "$defs": {"t": target}}

    def found(reference: Any, *, inside: bool = False) -> Any:
        part = {"$ref": reference}
        (target if inside else root)["probe"] = part
        return References(root).find(part, "nothing")

    assert found("#") is root and found("http://example.com/r") is root
    assert found("#", inside=True) is target and found("sub/x") is target
    assert found("sub/x#spot") is target and found("#spot", inside=True) is target
    assert found("#/$defs/t/items/0/a~1b/c~0d") == 1
    assert found("#/items/0/a%7E1b", inside=True) == {"c~d": 1}
    for reference in ("#spot", "#/items/0", "#/$defs/t/items/1", "other", "http://[", 5):
        assert found(reference) == "nothing"
