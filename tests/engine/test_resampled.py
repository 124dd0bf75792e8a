"""Whole texts by their probability: what is kept is a text, and every move is weighed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest

import mlxgen
from mlxgen.tokens import Token
from tests.fakes.speaking import Speaker

OPTIONS: dict[str, Any] = {"seed": 4, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    return mlxgen.load(draft="off")


def test_without_moves_it_is_what_is_generated(lm: mlxgen.LanguageModel) -> None:
    result = lm.resampled("Once upon a time", moves=0, **OPTIONS)
    expected = lm.generate("Once upon a time", temperature=1, **OPTIONS)
    assert (result.text, result.tokens) == (expected.text, expected.tokens)
    assert result.usage.rewound_tokens == 0
    # Without a mask, draws have the chance that they are weighed by: so every move is taken
    texts = [lm.resampled("Once upon a time", moves=n, **OPTIONS).text for n in range(1, 5)]
    assert len({result.text, *texts}) == 5


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


def test_a_prefix_stays_and_is_part_of_the_result(lm: mlxgen.LanguageModel) -> None:
    prefix = lm.vocabulary.encode(" there was", special=False)
    options: dict[str, Any] = {**OPTIONS, "prefix": prefix, "top_logprobs": 2}
    for result in lm.resampled("Once upon a time", moves=6, chains=3, **options):
        assert list(result.tokens[: len(prefix)]) == prefix and len(result.tokens) == 12
        assert [len(chunk.top) for chunk in result.chunks] == [2] * (12 - len(prefix))


@pytest.mark.slow
def test_power_prefers_texts_that_are_likely_as_a_whole(lm: mlxgen.LanguageModel) -> None:
    def likelihood(power: float) -> float:
        results = lm.resampled("Once upon a time", moves=6, power=power, chains=8, **OPTIONS)
        return sum(chunk.logprob or 0.0 for result in results for chunk in result.chunks)

    assert likelihood(4.0) > likelihood(1.0)


ODDS = {ord("a"): (4.0, 1.0, 1.0), ord("b"): (0.5, 1.0, 3.0), 0: (0.0, 1.5, 1.0)}
"""By the last letter, the logits of a, b and c."""


@pytest.mark.slow
def test_with_moves_texts_come_as_often_as_the_model_means_them() -> None:
    """All texts of a small grammar are counted. Ideal draws would be at a distance of 0.05."""

    def say(self: Speaker, tokens: list[Token]) -> dict[Token, float]:
        return dict(zip(b"abc", ODDS[tokens[-1] if tokens else 0], strict=True))

    def meant(text: str) -> float:
        total, last = 0.0, 0
        for letter in text.encode():
            logits = ODDS[last]
            total += logits[letter - ord("a")] - math.log(sum(map(math.exp, logits)))
            last = letter
        return math.exp(total)

    texts = ["aaaaa", *("b" + "".join(rest) for rest in itertools.product("ab", repeat=4))]
    whole = sum(map(meant, texts))
    expected = {text: meant(text) / whole for text in texts}
    lm = Speaker([], say, prompt_length=1).lm

    def distance(moves: int, chains: int = 80) -> float:
        """The total variation between what comes and what is meant."""
        filters = mlxgen.Regex("aaaaa|b[ab]{4}")
        results = lm.resampled("x", moves=moves, chains=chains, seed=3, filters=filters)
        counts = Counter(result.text for result in results)
        assert set(counts) <= set(texts)
        return sum(abs(counts[text] / chains - share) for text, share in expected.items()) / 2

    assert distance(0) > 0.45 > 0.25 > distance(12)


def test_what_cannot_be_weighed_is_refused(lm: mlxgen.LanguageModel) -> None:
    wrong: dict[str, Any] = {
        "hooks": [print],
        "banned": ["a"],
        "close_json": True,
        "loops": "take back",
        "temperature": 0,
        "moves": -1,
        "power": 0,
        "chains": 0,
    }
    for name, value in [*wrong.items(), ("power", "a"), ("power", math.inf), ("chains", 1.0)]:
        with pytest.raises(mlxgen.OptionError) as error:
            lm.resampled("a", **{name: value})
        assert error.value.field == name


def test_a_filter_may_allow_nothing_but_the_empty_text(lm: mlxgen.LanguageModel) -> None:
    result = lm.resampled("x", moves=2, filters=mlxgen.Regex(""))
    assert (result.text, result.tokens, result.finish_reason) == ("", (), "filter")
