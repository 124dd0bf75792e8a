"""What filters take, what may come at a place of a text, and what is refused.

- ``tests/data/schemas.jsonl``: a schema and some values; jsonschema says what comes of their texts.
- ``tests/data/texts.jsonl``: a filter, what it is made of, and good and bad texts.
- ``tests/data/places.jsonl``: a filter, a text that was written, and what may come next.
- ``tests/data/refusals.jsonl``: the reason for which nothing can be made of it.

The filter ``python`` is an expression, whose value is one filter or a tuple of several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import regex

from mlxgen import filters
from mlxgen.errors import GrammarError, OptionError
from mlxgen.filters import Constraint, JsonSchema, Lark, Regex
from mlxgen.filters.schema.fitting import Fitting
from mlxgen.filters.schema.patterns import searched
from mlxgen.filters.schema.scalars import FORMATS
from mlxgen.tokens import Vocabulary

from ..effort import ALL
from .helpers import (
    Fixed,
    alphabet,
    byte_level,
    constrained,
    feed,
    pieces,
    sentencepiece,
    stands,
    wordpiece,
)

DATA = Path(__file__).parent.parent / "data"
NAMES = {**vars(filters), "Fixed": Fixed, "re": re}
MAKE: Mapping[str, Callable[[Any], Any]] = {
    "schema": JsonSchema,
    "closed": lambda schema: JsonSchema(schema, closed=True),
    "gbnf": lambda grammar: Lark(filters.lark_of(grammar)),
    "lark": Lark,
    "regex": Regex,
    "python": lambda written: eval(written, dict(NAMES)),
}
SAID = {"schema": "JsonSchema(", "gbnf": "GBNF", "lark": "Lark", "regex": "Regex("}
VOCABULARIES: Mapping[str, Callable[[], Vocabulary]] = {
    "letters": alphabet,
    "bytes": byte_level,
    "pieces": sentencepiece,
    "words": wordpiece,
}


in_parts = pytest.mark.parametrize("part", range(4))


def table(name: str, part: int = 0, parts: int = 1) -> list[Any]:
    """The cases of a file; those that are ``slow`` only if all is to be tried."""
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    cases = map(json.loads, lines[part::parts])
    return [case for case in cases if ALL or not case.get("slow")]


def vocabulary_of(case: Any) -> Vocabulary:
    return VOCABULARIES[
        case.get("vocabulary", "bytes" if case["filter"] == "gbnf" else "letters")
    ]()


def running(case: Any) -> Constraint:
    made = MAKE[case["filter"]](case["given"])
    made = made if isinstance(made, tuple) else (made,)
    return constrained(*made, vocabulary=vocabulary_of(case))


@in_parts
def test_good_texts_stand_and_bad_ones_do_not(part: int) -> None:
    for case in table("texts", part, 4):
        spec = MAKE[case["filter"]](case["given"])
        for text in case["good"]:
            assert stands(spec, text, vocabulary_of(case)), (case, text)
        for text in case["bad"]:
            assert not stands(spec, text, vocabulary_of(case)), (case, text)


def test_what_may_come_next_and_whether_the_text_may_end() -> None:
    for case in table("places"):
        constraint = feed(running(case), case["text"])
        mask, allows = constraint.mask(), case["allows"]
        found = {
            "allows": None if mask is None else sorted(map(bytes.decode, pieces(constraint))),
            "ends": constraint.can_end(),
            "forced": constraint.vocabulary.decode(constraint.forced()),
        }
        wanted = {**case, "allows": None if allows is None else sorted(allows)}
        assert {**case, **found} == wanted
        assert constraint.ended() == (case["ends"] and allows == []), case


@in_parts
def test_what_cannot_be_met_is_refused_with_the_reason_before_anything_is_generated(
    part: int,
) -> None:
    for case in table("refusals", part, 4):
        with pytest.raises((GrammarError, OptionError), match=re.escape(case["reason"])) as caught:
            running(case)
        said = str(caught.value)
        assert SAID.get(case["filter"], "") in said
        assert len(said) < 500 and "\n" not in said and "<state>" not in said, said
        assert "regex parse error" not in said and "backtrace" not in said, said


# ---- schemas and values --------------------------------------------------------------------------


def is_valid(schema: Any, value: Any) -> bool:
    """As jsonschema has it, with patterns as ECMA has them and formats that are enforced."""

    def pattern(checker: Any, given: str, value: Any, schema: Any) -> Any:
        if isinstance(value, str) and not regex.search(searched(given), value):
            yield jsonschema.ValidationError("pattern")

    def format(checker: Any, given: str, value: Any, schema: Any) -> Any:
        if isinstance(value, str) and not regex.search(searched(FORMATS[given]), value):
            yield jsonschema.ValidationError("format")

    def multiple(checker: Any, given: Any, value: Any, schema: Any) -> Any:
        is_number = checker.is_type(value, "number")
        if is_number and Fraction(repr(value)) % Fraction(repr(given)):  # floats would get it wrong
            yield jsonschema.ValidationError("multipleOf")

    rules = {"pattern": pattern, "format": format, "multipleOf": multiple}
    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    extend: Any = jsonschema.validators.extend
    made = extend(kind, rules)
    return bool(made(schema).is_valid(value))


def spelled(value: Any) -> str:
    """A value as the grammars spell it: an integer without a fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


@in_parts
def test_a_text_stands_if_and_only_if_its_value_is_valid(part: int) -> None:
    verdicts = []
    for case in table("schemas", part, 4):
        spec = JsonSchema(case["schema"])
        for value in case["values"]:
            verdicts.append(is_valid(case["schema"], value))
            assert stands(spec, spelled(value)) == verdicts[-1], (case, value)
            if "format" not in json.dumps(case["schema"]):
                objection = Fitting(case["schema"]).objection(json.dumps(value))
                assert (objection is None) == verdicts[-1], (case, value)
    assert min(verdicts.count(True), verdicts.count(False)) > 25
