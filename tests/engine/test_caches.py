"""On every kind of cache: what was taken back and forked, and what streams keep for others."""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.models.cache import RotatingKVCache

from mlxgen import LanguageModel, Limits, Stream
from tests.fakes import byte_level_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds, of_kind, random_model
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import PROMPT, reciter


@pytest.fixture(scope="module", params=cache_kinds())
def lm(request: pytest.FixtureRequest) -> LanguageModel:
    return of_kind(request.param, draft="off")


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "lm" in request.fixturenames:
        request.getfixturevalue("lm").prefix_cache.clear()


LONG = [(7 * i + i // 9) % VOCAB for i in range(50)]


def tokens(stream: Stream, count: int = 12) -> list[int]:
    for _, _ in zip(range(count), stream, strict=False):
        pass
    return stream.tokens


def fresh(lm: LanguageModel, prompt: list[int]) -> list[int]:
    """What the model says where nothing is kept."""
    lm.prefix_cache.clear()
    with lm.stream(prompt, ignore_eos=True) as stream:
        return tokens(stream)


def test_what_goes_on_from_a_kept_answer_runs_the_rest_only(lm: LanguageModel) -> None:
    with lm.stream(LONG, ignore_eos=True) as stream:
        said = tokens(stream)
        stream.keep()
        assert tokens(stream, 4) == said + stream.tokens[len(said) :]  # and it can go on itself
    with lm.stream(LONG[:20], prefix=[*LONG[20:], *said, 5], ignore_eos=True) as stream:
        usage = stream.usage  # tokens of a prefix are counted as well
    assert (usage.prompt_tokens, usage.cached_tokens) == (20, len(LONG) + len(said))
    longer = [*LONG, *said, 5, 6, 7]
    with lm.stream(longer, ignore_eos=True) as stream:
        assert stream.usage.cached_tokens == len(LONG) + len(said)
        again = tokens(stream)
    assert again == fresh(lm, longer)


def test_a_prompt_can_be_gone_on_from_where_it_was_kept(lm: LanguageModel) -> None:
    expected = fresh(lm, LONG)
    others = [[*LONG[:place], 90, 91] for place in (20, 31, len(LONG) - 1)]
    said = [fresh(lm, other) for other in others]
    lm.prefix_cache.clear()
    with lm.stream(LONG, ignore_eos=True) as stream:
        for place in (0, -1, 20, 20, 5, 31, len(LONG) - 1, len(LONG), 1000):
            stream.keep(place)  # nothing happens where it was run, or is not there
        assert tokens(stream, 1) == expected[:1]
        stream.keep(40)
        assert tokens(stream, 11) == expected
        assert stream.usage.cached_tokens == 0
        stream.keep()
    for other, answer in zip(others, said, strict=True):
        with lm.stream(other, ignore_eos=True) as stream:
            assert stream.usage.cached_tokens == len(other) - 2
            assert tokens(stream) == answer


def test_two_schedulers_share_what_is_kept_of_one_model(lm: LanguageModel) -> None:
    prompts = [[*LONG[: 30 + 3 * i], 60 + i] for i in range(6)]
    alone = [fresh(lm, prompt) for prompt in prompts]
    lm.prefix_cache.clear()
    limits = Limits(max_batch=2, prefill_chunk=16)
    options: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "limits": limits}
    both = [lm.batch([*prompts, *prompts[::-1]], **options) for _ in range(2)]
    going = list(both)
    while going:  # a chunk of each in turn
        going = [batch for batch in going if next(batch, None) is not None]
        check_integrity(lm.prefix_cache)
    for batch in both:
        assert [list(result.tokens) for result in batch.run()] == [*alone, *alone[::-1]]
        assert batch.stats.cached_tokens > 0


def test_a_window_that_the_answer_fills_leaves_the_end_of_the_prompt() -> None:
    lm = LanguageModel(random_model("llama"), byte_level_tokenizer())
    lm.runtime.make_cache = lambda: [RotatingKVCache(max_size=40) for _ in range(2)]  # type: ignore[method-assign]
    lm.prefix_cache.clear()
    said = []
    for _ in range(2):
        with lm.stream(LONG[:30], ignore_eos=True) as stream:
            cached = stream.usage.cached_tokens
            said.append(tokens(stream, 20))
            stream.keep()
    assert cached == 29 and said[0] == said[1]


def test_a_draft_that_was_not_looked_at_is_not_kept() -> None:
    speaker = reciter(list("abababababababababababababab"))
    with speaker.lm.stream(PROMPT, draft="ngram") as stream:
        for _ in range(16):
            next(stream)
            stream.keep()
        said = stream.tokens
        rest = [chunk.token for chunk in stream]
    assert [*said, *rest] == [*speaker.tokens(list("ab" * 14)), speaker.end]
    check_integrity(speaker.lm.prefix_cache)


def test_a_stream_that_failed_keeps_nothing() -> None:
    def fail(result: object) -> None:
        raise ValueError("no")

    speaker = reciter(list("abc" * 20))
    stream = speaker.lm.stream(PROMPT * 20, hooks=[fail])
    with pytest.raises(Exception, match="no"):
        next(stream)
    stream.keep()
    assert speaker.lm.prefix_cache.entries == 0
