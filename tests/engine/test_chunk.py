"""What a generation hands out."""

from __future__ import annotations

from tests.fakes.speaking import PROMPT, endless


def test_the_repr_of_a_result_is_one_short_line() -> None:
    result = endless().lm.generate(PROMPT, max_tokens=200)
    assert repr(result).startswith("<Result 'abcdefgh")
    assert repr(result).endswith("…', 200 tokens, length>")
    assert len(repr(result)) < 100
