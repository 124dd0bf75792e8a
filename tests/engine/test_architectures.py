"""The whole step loop on small random models of real architectures, one for each cache type."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import LanguageModel
from mlxgen.sampling import PostSamplingResult
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import cache_kinds

KINDS = [kind for kind in cache_kinds() if kind != "concatenating"]  # no model brings these
PROMPT = list(b"The quick brown fox")


@pytest.fixture(scope="module", params=KINDS)
def lm(request: pytest.FixtureRequest) -> LanguageModel:
    model, make_cache = cache_kinds()[request.param]()
    language_model = LanguageModel(model, alphabet_tokenizer())
    # The tokenizer knows more tokens than these models have logits; that is allowed.
    language_model.runtime.make_cache = make_cache  # type: ignore[method-assign]
    return language_model


def greedy(lm: LanguageModel, **options: Any) -> tuple[int, ...]:
    return lm.generate([t % 96 for t in PROMPT], max_tokens=24, **options).tokens


def test_declined_draws_and_rewinds_leave_the_greedy_text_as_it_is(lm: LanguageModel) -> None:
    plain = greedy(lm)

    def unsure(result: PostSamplingResult) -> None:
        if result.attempt == 0 and result.position % 5 == 4:
            result.rewind = 3
        elif result.attempt == 0 and result.position % 2:
            result.resample = True

    assert greedy(lm, hooks=unsure, hold_tokens=4) == plain
    stream = lm.stream([t % 96 for t in PROMPT], max_tokens=24)
    for _ in range(20):
        next(stream)
    stream.rewind(tokens=13)
    (twin,) = stream.fork()
    for _ in stream:
        pass
    stream.rewind(tokens=2)
    for _ in (*stream, *twin):
        pass
    assert tuple(stream.tokens) == tuple(twin.tokens) == plain
