"""Arguments of calls that come back are an object for the template, also if they are not JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.chat.calls.values import returned

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.booleans())
def test_json_means_what_it_says(value: dict[str, object], ascii: bool) -> None:
    assert returned(json.dumps(value, ensure_ascii=ascii)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"pattern": "\d+\.py"}', {"pattern": r"\d+\.py"}),
        (r'{"path": "C:\Users\me\\new"}', {"path": r"C:\Users\me\new"}),
        (r'{"text": "it\'s \"it\""}', {"text": 'it\'s "it"'}),
        (r'{"text": "\u00e9 \u12 \ux"}', {"text": "é \\u12 \\ux"}),
        ('{"text": "a\nb\tc"}', {"text": "a\nb\tc"}),
        (r'{"text": "\ud83d\ude0a \ud83d"}', {"text": "\N{SMILING FACE WITH SMILING EYES} �"}),
        ("{'a': True,}", {"a": True}),
        ("", {}),
        (" \n", {}),
    ],
)
def test_what_is_nearly_json_is_repaired(text: str, expected: object) -> None:
    assert returned(text) == expected


@pytest.mark.parametrize("text", ["ls -l", "[1]", '"x"', '{"a": ', "[" * 100_000])
def test_what_is_no_object_stays_text(text: str) -> None:
    assert returned(text) == text


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_has_an_answer_that_can_be_encoded(text: str) -> None:
    json.dumps(returned("{" + text), ensure_ascii=False).encode()
    json.dumps(returned('{"a": "' + text + '"}'), ensure_ascii=False).encode()
