"""What is wrong with a grammar, in words."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import GrammarError, JsonSchema, Lark, Regex
from tests.fakes import byte_level_tokenizer

CASES: list[tuple[Any, str]] = [
    (
        Regex("(a"),
        r"the regular expression (a is not valid: unclosed group ('(' at character 1)",
    ),
    (Regex("é+[z-a]b"), "the start must be <= the end ('z-a' at character 4)"),
    (Regex("a(?i"), "expected flag but got end of regex (at its end)"),
    (Regex("(?=a)"), "look-behind, is not supported ('(?=' at character 1)"),
    (Regex("a\n(b"), r"the regular expression a\n(b is not valid: unclosed group"),
    (Lark("start: /(a/"), "the regular expression (a is not valid: unclosed group"),
    (Lark("start: b\nb: c"), 'line 2, column 4: unknown name: "c"'),
    (JsonSchema({"type": "string", "pattern": "(a"}), "(a is not valid: unclosed group"),
]


@pytest.mark.parametrize(("given", "words"), CASES)
def test_what_is_wrong_is_said_in_one_line_with_its_place(given: Any, words: str) -> None:
    with pytest.raises(GrammarError) as error:
        given.bind(byte_level_tokenizer(), 300)
    message = str(error.value)
    assert words in message
    assert "\n" not in message and "^" not in message and "regex parse error" not in message
