"""What filters take, what may come at a place of a text, and what is refused.

- ``tests/data/schemas.jsonl``: a schema and some values; jsonschema says what comes of their texts.
- ``tests/data/texts.jsonl``: a filter, what it is made of, and good and bad texts.
- ``tests/data/places.jsonl``: a filter, a text that was written, and what may come next.
- ``tests/data/objections.jsonl``: a filter, a text that it lets end, and what is wrong with it.
- ``tests/data/dead_ends.jsonl``: a filter, a text that nothing may follow, and what is said of it.
- ``tests/data/refusals.jsonl``: the reason for which nothing can be made of it.

The filter ``python`` is an expression, whose value is one filter or a tuple of several.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
import regex

from mlxgen import filters
from mlxgen.errors import DeadEndError, FilterError, GrammarError, OptionError
from mlxgen.filters import Constraint, JsonSchema, Lark, Regex
from mlxgen.filters.checks import command, json_lines, python
from mlxgen.filters.schema.fitting import Fitting
from mlxgen.filters.schema.patterns import searched
from mlxgen.filters.schema.scalars import FORMATS
from mlxgen.tokens import Vocabulary
from mlxgen.workers import Work

from ..effort import table
from . import helpers
from .helpers import (
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    pieces,
    sentencepiece,
    stands,
    wordpiece,
)

NAMES = {**vars(filters), **vars(helpers), "re": re}
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


def vocabulary_of(case: Any) -> Vocabulary:
    return VOCABULARIES[
        case.get("vocabulary", "bytes" if case["filter"] == "gbnf" else "letters")
    ]()


def running(case: Any) -> Constraint:
    made = MAKE[case["filter"]](case["given"])
    made = made if isinstance(made, tuple) else (made,)
    return constrained(*made, vocabulary=vocabulary_of(case))


def fed(case: Any) -> Constraint:
    """After the text of a case, byte by byte, with whole tokens in lists."""
    constraint, text = running(case), case["text"]
    tokens = {constraint.vocabulary.piece(t): t for t in constraint.vocabulary.added}
    for part in text if isinstance(text, list) else [text]:
        if isinstance(part, str):
            feed(constraint, part)
            continue
        for piece in map(str.encode, part):
            token = constraint.vocabulary.token_of(piece)
            constraint.advance(tokens[piece] if token is None else token)
    return constraint


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
        constraint = fed(case)
        decode, allows = constraint.vocabulary.decode, None
        if constraint.mask() is not None:
            allows = sorted(piece.decode(errors="replace") for piece in pieces(constraint))
        found = {
            "allows": allows,
            "ends": constraint.can_end(),
            "forced": decode(constraint.forced()),
            "hint": decode(constraint.hint()),
        }
        wanted = {name: case.get(name, said) for name, said in found.items()}
        wanted["allows"] = wanted["allows"] and sorted(wanted["allows"])
        assert found == wanted, case
        assert constraint.ended() == (case["ends"] and wanted["allows"] == []), case
        assert (constraint.vocabulary.eos <= allowed(constraint)) == case["ends"], case


def test_what_is_wrong_with_a_finished_text_is_said_unless_the_grammar_holds_it() -> None:
    for case in table("objections"):
        constraint = fed(case)
        while isinstance(objection := constraint.objection(), Work):
            objection.wait()
        found = {
            "objection": None if objection is None else [*objection],
            "checks": constraint.checks,
            "unchecked": constraint.unchecked()[0],
            "due": constraint.unchecked()[1],
            "left_out": list(constraint.left_out),
        }
        nothing = {"checks": False, "unchecked": 0, "due": False, "left_out": []}
        assert {**nothing, **case, **found} == {**nothing, **case}
        assert constraint.can_end(), case


def test_where_nothing_may_come_next_the_filters_are_named() -> None:
    for case in table("dead_ends"):
        constraint = fed(case)
        with pytest.raises((DeadEndError, FilterError)) as caught:
            constraint.mask()
        for part in case["says"]:
            assert part in str(caught.value), case
        assert len(str(caught.value)) < 500, case


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


# ---- the checks that come with mlxgen ------------------------------------------------------------


def test_python_may_go_on_like_this_or_what_is_wrong_is_said() -> None:
    """``says`` is how the complaint about the last line of a text begins."""
    for case in table("checks"):
        lines = case["text"].splitlines(keepends=True)
        said = [python(line, "".join(lines[:i])) for i, line in enumerate(lines)]
        if "says" in case:
            assert (said[-1] or "").startswith(case["says"]), case
        else:
            assert not any(said), case


def test_json_lines() -> None:
    assert json_lines('{"a": 1}\n', "") is None
    assert json_lines("\n", "") is None
    assert (json_lines("{'a': 1}\n", "") or "").startswith("not JSON: ")


def test_a_command_reads_the_piece_and_its_status_decides() -> None:
    check = command(
        f"{sys.executable} -c 'import sys; t = sys.stdin.read(); print(t); sys.exit(\"x\" in t)'"
    )
    assert check("a\n", "x") is None
    assert check("x y\n", "") == "x y"
    assert check("Prose about x:\n```js\na\n```\nand\n```\nb\n```\nx\n", "") is None
    assert check("Prose:\n```js\na\n```\nand\n```\nx y\n```\n", "") == "x y"


@pytest.mark.parametrize("line", ["", "'"])
def test_a_command_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(OptionError, match="check: "):
        command(line)
