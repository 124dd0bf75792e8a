"""What filters take, and what they refuse to be made of.

``tests/data/texts.jsonl`` has a filter, what it is made of, and good and bad texts in each line;
``tests/data/refusals.jsonl`` has the reason for which nothing can be made of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mlxgen.errors import GrammarError
from mlxgen.filters import JsonSchema, Lark, Regex, Specification
from mlxgen.filters.gbnf import lark_of

from .helpers import byte_level, constrained, stands

DATA = Path(__file__).parent.parent / "data"
MAKE: Mapping[str, Callable[[Any], Specification]] = {
    "schema": JsonSchema,
    "closed": lambda schema: JsonSchema(schema, closed=True),
    "gbnf": lambda grammar: Lark(lark_of(grammar)),
    "lark": Lark,
    "regex": Regex,
}
NAMES = {"schema": "JsonSchema(", "gbnf": "GBNF", "lark": "Lark", "regex": "Regex("}


def table(name: str) -> pytest.MarkDecorator:
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    cases = list(map(json.loads, lines))
    return pytest.mark.parametrize("case", cases, ids=lambda case: json.dumps(case)[:60])


@table("texts")
def test_good_texts_stand_and_bad_ones_do_not(case: Any) -> None:
    spec = MAKE[case["filter"]](case["given"])
    vocabulary = byte_level() if case["filter"] == "gbnf" else None
    for text in case["good"]:
        assert stands(spec, text, vocabulary), text
    for text in case["bad"]:
        assert not stands(spec, text, vocabulary), text


@table("refusals")
def test_what_cannot_be_met_is_refused_with_the_reason_before_anything_is_generated(
    case: Any,
) -> None:
    with pytest.raises(GrammarError, match=re.escape(case["reason"])) as caught:
        constrained(MAKE[case["filter"]](case["given"]))
    said = str(caught.value)
    assert NAMES[case["filter"]] in said and "<state>" not in said and len(said) < 500
