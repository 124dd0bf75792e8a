from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import FilterError, GrammarError, OptionError
from mlxgen.filters import Constraint, JsonObject, JsonSchema

from ..effort import tries
from .helpers import (
    accepts,
    byte_level,
    constrained,
    feed,
    ordinary,
    sentencepiece,
    takes,
)

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
        "more": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab"\\é\n', max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=tries(80))
@given(VALUES, st.sampled_from([None, 0, 2, 4]))
def test_any_json_is_taken_however_it_is_laid_out(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assert accepts(JsonSchema(True), text)
    assert accepts(JsonObject(), text) == isinstance(value, dict)
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert accepts(JsonSchema(True, whitespace=None), compact)


@settings(max_examples=tries(25))
@given(st.data())
def test_a_random_walk_through_the_masks_ends_in_valid_json(data: st.DataObject) -> None:
    constraint = constrained(JsonSchema(RECORD), vocabulary=byte_level())
    tokens = walk(constraint, data)
    if tokens is not None:
        jsonschema.validate(json.loads(constraint.vocabulary.decode(tokens)), RECORD)


def walk(constraint: Constraint, data: st.DataObject) -> list[int] | None:
    tokens: list[int] = []
    while not constraint.ended():
        choices = sorted(ordinary(constraint))
        # Quotes and closing brackets often, so that most walks come to an end.
        closing = [t for t in choices if constraint.vocabulary.piece(t) in (b'"', b"}", b"]", b",")]
        token = data.draw(st.sampled_from(closing or choices) | st.sampled_from(choices))
        constraint.advance(token)
        tokens.append(token)
        if len(tokens) > 80:
            return None
    return tokens


# ---- options -------------------------------------------------------------------------------


def test_white_space_is_bounded_by_default_and_settable() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert accepts(JsonSchema(schema), "\n\n[1,\n    2]")
    assert not accepts(JsonSchema(schema), " " * 9 + "[1]")
    assert not accepts(JsonSchema(schema), "[1] ")
    assert accepts(JsonSchema(schema, whitespace=" "), "[1, 2]")
    assert not accepts(JsonSchema(schema, whitespace=" "), "[1,  2]")
    compact = JsonSchema(schema, whitespace=None)
    assert accepts(compact, "[1,2]")
    assert not accepts(compact, "[1, 2]") and not accepts(compact, " [1]")
    spaced = JsonSchema(RECORD, whitespace=None, separators=(", ", ": "))
    assert accepts(spaced, '{"name": "Bob", "age": 7}') and not accepts(spaced, '{"name":"Bob"')
    with pytest.raises(GrammarError, match="unclosed group"):
        constrained(JsonSchema(schema, whitespace="("))


def test_a_model_that_only_ever_writes_white_space_runs_out_of_it() -> None:
    constraint = feed(constrained(JsonSchema(RECORD)), "{")
    while blank := [t for t in ordinary(constraint) if constraint.vocabulary.piece(t).isspace()]:
        constraint.advance(blank[0])
        assert len(constraint) < 60
    assert len(constraint) > 1


def objection(spec: JsonSchema, text: str) -> str | None:
    """What is wrong with a text that the grammar allows."""
    constraint = feed(constrained(spec), text)
    assert constraint.can_end()
    found = constraint.objection()
    return None if found is None else found[0]


def test_what_no_grammar_holds_is_checked_at_the_end() -> None:
    schema = {"type": "array", "uniqueItems": True, "contains": {"const": 1}}
    constraint = feed(constrained(JsonSchema(schema)), "[2, 2]")
    assert constraint.checks and constraint.unchecked == len("[2, 2]")
    assert constraint.objection() == ("it violates uniqueItems", 0, True)
    assert objection(JsonSchema(schema), "[2,3]") == "it violates contains"
    assert objection(JsonSchema(schema), "[2,1]") is None
    lenient = JsonSchema(schema, ignore_unsupported=True)
    assert feed(constrained(lenient), "[2,2]").objection() == ("it violates uniqueItems", 0, False)
    assert not constrained(JsonSchema({"type": "array"})).checks


def test_one_of_is_checked_unless_its_branches_exclude_each_other() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    assert objection(JsonSchema(schema), "1") == "it violates oneOf"
    assert objection(JsonSchema(schema), "1.5") is None
    as_any_of = JsonSchema(schema, one_of_as_any_of=True)
    assert not constrained(as_any_of).checks and objection(as_any_of, "1") is None
    assert as_any_of.left_out == ("oneOf",)
    kinds = [{"properties": {"k": {"const": k}}, "required": ["k"]} for k in ("a", "b")]
    for apart in (
        [{"type": "integer"}, {"type": "string"}],
        [{**k, "type": "object"} for k in kinds],
    ):
        assert not constrained(JsonSchema({"oneOf": apart})).checks


def test_formats_that_nobody_knows_are_notes() -> None:
    spec = JsonSchema({"properties": {"p": {"type": "string", "format": "path"}}})
    assert accepts(spec, '{"p":"a/b"}') and spec.left_out == ("format=path",)
    assert constrained(spec).left_out == ("format=path",)
    assert JsonSchema({"type": "string", "format": "date"}).left_out == ()


class Model:
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return RECORD


def test_schemas_come_as_mappings_text_booleans_and_model_classes() -> None:
    specs = [JsonSchema(RECORD), JsonSchema(json.dumps(RECORD)), JsonSchema(Model)]
    assert len(set(specs)) == 1
    assert accepts(specs[2], '{"name":"Bob","age":7}')
    assert accepts(JsonSchema(True), "[1]")
    assert eval(repr(specs[0])) == specs[0]
    assert JsonSchema(True) != JsonSchema(True, whitespace=None)
    with pytest.raises(AttributeError):
        specs[0].schema = "{}"  # type: ignore[misc]


def test_a_schema_cannot_be_changed_behind_the_specifications_back() -> None:
    schema: dict[str, Any] = {"const": 1}
    spec = JsonSchema(schema)
    schema["const"] = 2
    assert accepts(spec, "1") and not accepts(spec, "2")


# ---- refusals ------------------------------------------------------------------------------


def test_a_schema_of_brackets_is_not_json() -> None:
    with pytest.raises(GrammarError, match="not JSON") as caught:
        constrained(JsonSchema("[" * 5000))
    assert len(str(caught.value)) < 400


def test_a_deeply_nested_schema_is_held() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        schema = {"type": "array", "items": schema, "maxItems": 1, "minItems": 1}
    spec = JsonSchema(schema, whitespace=None)
    assert accepts(spec, "[" * 200 + "1" + "]" * 200)
    assert not accepts(spec, "[" * 199 + "1" + "]" * 199)


@pytest.mark.parametrize(
    "make",
    [
        lambda: JsonSchema(5),  # type: ignore[arg-type]
        lambda: JsonSchema([RECORD]),  # type: ignore[arg-type]
        lambda: JsonSchema({"const": float("nan")}),
        lambda: JsonSchema({"const": object()}),
        lambda: JsonSchema(True, whitespace=3),  # type: ignore[arg-type]
        lambda: JsonSchema(True, separators=(",",)),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_a_schema_is_refused_when_it_is_written(make: Any) -> None:
    with pytest.raises(OptionError, match="filters: JsonSchema"):
        make()


# ---- SentencePiece -------------------------------------------------------------------------


def test_json_may_open_with_a_space_that_the_decoder_drops() -> None:
    vocabulary = sentencepiece()
    for spec in (JsonSchema(RECORD), JsonSchema(RECORD, whitespace=None), JsonObject()):
        for start in ('{"name":"B"', ' {"name":"B"'):
            assert takes(constrained(spec, vocabulary=vocabulary), start)
    compact = constrained(JsonSchema(RECORD, whitespace=None), vocabulary=vocabulary)
    assert not takes(compact, '  {"name"')
    raw = constrained(
        JsonSchema(RECORD, whitespace=None), vocabulary=vocabulary, strips_space=False
    )
    with pytest.raises(FilterError):
        feed(raw, " ")


def test_nullable_of_openapi_and_names_that_nobody_escaped_are_understood() -> None:
    one = {"type": "integer", "nullable": True}
    for schema in (one, {"enum": [1], "nullable": True}, {"properties": {"a": one}, **one}):
        spec = JsonSchema(schema)
        assert accepts(spec, "null") and accepts(spec, "1") and not accepts(spec, '"x"')
        assert objection(spec, "null") is None
    for name in ("a%25b", "a%b", "Foo[int]", "a b", "é"):
        spec = JsonSchema({"$ref": f"#/$defs/{name}", "$defs": {name: {"type": "null"}}})
        assert accepts(spec, "null") and not accepts(spec, "1")


@pytest.mark.parametrize("count", [300, 3000])
def test_long_lists_of_items_and_values_are_held(count: int) -> None:
    spec = JsonSchema(
        {"type": "array", "prefixItems": [{"type": "integer"}] * count}, whitespace=None
    )
    assert accepts(spec, "[1,2]") and not accepts(spec, '[1,"x"]')
    names = JsonSchema({"enum": [f"value {i}" for i in range(count)]})
    assert accepts(names, f'"value {count - 1}"') and not accepts(names, f'"value {count}"')
