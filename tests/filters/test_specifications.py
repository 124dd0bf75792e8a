"""What specifications are and mean, beyond the examples of ``test_tables.py``."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.filters import After, Allow, Choice, JsonObject, JsonSchema, Lark, Regex, Substring
from mlxgen.tokens import Token

from ..effort import table, tries
from .helpers import (
    accepts,
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
    pieces,
    sentencepiece,
)
from .test_tables import MAKE

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def test_specifications_are_values_and_bind_again_and_again() -> None:
    written = [case["given"] for case in table("filters") if case.get("value")]
    specs = list(map(MAKE["python"], written))
    assert len(set(specs)) == len(specs)
    for spec in specs:
        again = pickle.loads(pickle.dumps(spec))
        assert spec == again and hash(spec) == hash(again)
        if isinstance(spec, Regex | Lark | Choice | Substring | JsonSchema):
            assert eval(repr(spec)) == spec
        with pytest.raises(AttributeError):
            setattr(spec, dataclasses.fields(spec)[0].name, "b")
        vocabulary = byte_level()
        first, second = (constrained(spec, vocabulary=vocabulary) for _ in range(2))
        before = allowed(second)
        first.advance(min(ordinary(first)))
        assert allowed(second) == before


# ---- grammars ------------------------------------------------------------------------------------


@settings(max_examples=tries(60))
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4), st.text(max_size=4))
def test_a_choice_takes_any_text_literally(options: list[str], other: str) -> None:
    for option in options:
        assert accepts(Choice(options), option, byte_level())
    assert accepts(Choice(options), other, byte_level()) == (other in options)


def test_the_text_after_a_dropped_space_is_constrained() -> None:
    constraint = constrained(Regex(" ?a"), vocabulary=sentencepiece())
    space = constraint.vocabulary.token_of(b" ") or 0
    a = constraint.vocabulary.token_of(b"a") or 0
    assert constraint.validate([space, space, a]) == 3  # the text is " a"
    assert constraint.validate([space, space, space]) == 2
    constraint.advance(space)
    twin = constraint.fork()
    constraint.advance(a)
    assert constraint.ended() and not twin.can_end()
    raw = constrained(Regex("a"), vocabulary=sentencepiece(), strips_space=False)
    assert raw.validate([space]) == 0


# ---- JSON ----------------------------------------------------------------------------------------

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


def test_a_model_that_only_ever_writes_white_space_runs_out_of_it() -> None:
    constraint = feed(constrained(JsonSchema(RECORD)), "{")
    while blank := [t for t in ordinary(constraint) if constraint.vocabulary.piece(t).isspace()]:
        constraint.advance(blank[0])
        assert len(constraint) < 60
    assert len(constraint) > 1


class Model:
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return RECORD


def test_schemas_come_as_mappings_text_booleans_and_model_classes() -> None:
    assert JsonSchema(RECORD) == JsonSchema(json.dumps(RECORD)) == JsonSchema(Model)
    assert JsonSchema(True) != JsonSchema(True, whitespace=None)
    schema: dict[str, Any] = {"const": 1}
    spec = JsonSchema(schema)
    schema["const"] = 2  # which is the caller's, and no longer the specification's
    assert accepts(spec, "1") and not accepts(spec, "2")


# ---- what chooses between others -----------------------------------------------------------------


def token(text: str) -> Token:
    found = alphabet().token_of(text.encode())
    assert found is not None
    return found


def right(text: bytes, trigger: str, then: str) -> bool:
    """Whether a text may be the start of what ``After(trigger, Regex(then))`` allows."""
    _, found, behind = text.partition(trigger.encode())
    return not found or regex.fullmatch(then, behind.decode(), partial=True) is not None


@settings(max_examples=tries(320))
@given(st.data())
def test_after_any_tokens_the_mask_is_what_a_search_in_the_text_says(data: st.DataObject) -> None:
    vocabulary = alphabet()
    trigger = data.draw(st.sampled_from(["ab", "a", "aba", '":', "cab"]))
    then = data.draw(st.sampled_from(["[abc]{1,3}", "c", '[":}]*', "[0-9]"]))
    constraint = constrained(After(trigger, Regex(then)))
    usable = [token(text) for text in ("a", "b", "c", "ab", "abc", '"', ":", '":', '"}', "1")]
    text = b""
    for _ in range(data.draw(st.integers(0, 6))):
        expected = {t for t in usable if right(text + vocabulary.piece(t), trigger, then)}
        assert allowed(constraint) & {*usable} == expected
        assert {t for t in usable if constraint.validate([t])} == expected
        if not expected:
            break
        chosen = data.draw(st.sampled_from(sorted(expected)))
        constraint.advance(chosen)
        text += vocabulary.piece(chosen)


def test_a_token_that_completes_the_trigger_and_begins_what_follows_can_be_rewound_to() -> None:
    constraint = constrained(After("a", Regex("b[cd]e")))
    constraint.advance(token("ab"))
    feed(constraint, "c").rewind(1)
    assert pieces(constraint) == {b"c", b"d"}


# ---- functions -----------------------------------------------------------------------------------


def test_a_function_says_what_is_allowed_and_none_means_everything() -> None:
    asked: list[tuple[int, ...]] = []

    def alternating(tokens: Sequence[int]) -> list[int] | None:
        asked.append(tuple(tokens))
        return None if len(tokens) == 2 else [65 + len(tokens) % 2]

    constraint = constrained(Allow(alternating))
    for text, allows in (("A", {65}), ("B", {66}), ("x", None)):
        assert (constraint.mask() if allows is None else allowed(constraint)) == allows
        constraint.can_end()
        feed(constraint, text)
    assert asked == [(), (65,), (65, 66)]  # once for each place
