"""Whole texts by their probability: what is kept is a text, and every move is weighed."""

from __future__ import annotations

from typing import Any

import pytest

import mlxgen

OPTIONS: dict[str, Any] = {"seed": 4, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load(draft="off")


def test_without_moves_it_is_what_is_generated(lm: mlxgen.LanguageModel) -> None:
    result = lm.resampled("Once upon a time", moves=0, **OPTIONS)
    expected = lm.generate("Once upon a time", temperature=1, **OPTIONS)
    assert (result.text, result.tokens) == (expected.text, expected.tokens)
    assert result.usage.rewound_tokens == 0


def test_without_a_mask_every_move_is_taken(lm: mlxgen.LanguageModel) -> None:
    """Draws have the chance that they are weighed by, and texts the same length."""
    texts = [lm.resampled("Once upon a time", moves=n, **OPTIONS).text for n in range(5)]
    assert len(set(texts)) == 5


def test_a_result_is_the_text_of_its_tokens_and_its_filter(lm: mlxgen.LanguageModel) -> None:
    spec = mlxgen.Regex("(the|a) (fox|cat|old bear) (sat|ran) ?(away|home)?")
    options: dict[str, Any] = {"seed": 4, "max_tokens": 30, "filters": [spec]}
    results = lm.resampled("Once upon a time ", moves=5, chains=6, **options)
    assert len(results) == 6 and len({result.text for result in results}) > 1
    for result in results:
        assert result.text == lm.vocabulary.decode(result.tokens)
        assert [chunk.token for chunk in result.chunks if chunk.token is not None] == list(
            result.tokens
        )
        assert result.usage.forward_passes > 0
    again = lm.resampled("Once upon a time ", moves=5, chains=6, **options)
    assert [each.text for each in again] == [each.text for each in results]


def test_power_prefers_texts_that_are_likely_as_a_whole(lm: mlxgen.LanguageModel) -> None:
    def likelihood(power: float) -> float:
        results = lm.resampled("Once upon a time", moves=6, power=power, chains=8, **OPTIONS)
        return sum(chunk.logprob or 0.0 for result in results for chunk in result.chunks)

    assert likelihood(4.0) > likelihood(1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hooks", [print]),
        ("banned", ["a"]),
        ("close_json", True),
        ("loops", "take back"),
        ("temperature", 0),
        ("moves", -1),
        ("power", 0),
        ("chains", 0),
    ],
)
def test_what_cannot_be_weighed_is_refused(lm: mlxgen.LanguageModel, name: str, value: Any) -> None:
    with pytest.raises(mlxgen.OptionError, match=name):
        lm.resampled("a", **{name: value})
