"""Schemas and values: what jsonschema says of each is what comes of the text.

``tests/data/schemas.jsonl`` has a schema and some values in each line.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import regex

from mlxgen.errors import FilterError
from mlxgen.filters import JsonSchema
from mlxgen.filters.schema.formats import FORMATS
from mlxgen.filters.schema.patterns import searched

from .helpers import constrained, feed

TABLE = Path(__file__).parent.parent / "data" / "schemas.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


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
        if is_number and Decimal(repr(value)) % Decimal(repr(given)):  # floats would get it wrong
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case["schema"])[:60])
def test_a_text_stands_if_and_only_if_its_value_is_valid(case: Any) -> None:
    schema = case["schema"]
    spec = JsonSchema(schema)
    for value in case["values"]:
        try:
            constraint = feed(constrained(spec), spelled(value))
        except FilterError:
            stands = False
        else:
            stands = constraint.can_end() and constraint.objection() is None
        assert stands == is_valid(schema, value), value


def test_the_table_has_both_kinds_of_values() -> None:
    verdicts = [is_valid(case["schema"], value) for case in CASES for value in case["values"]]
    assert min(verdicts.count(True), verdicts.count(False)) > 100
