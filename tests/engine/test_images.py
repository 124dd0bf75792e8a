"""Images in prompts: the model sees what mlx-lm would show it, and every way of running is one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from mlxgen import LanguageModel, OptionError
from mlxgen.engine.kv.kv import KV
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.request.prompt import Prompt
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.errors import CapacityError
from mlxgen.images import plain
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.seeing import asking, picture, png, seeing

GREEDY: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return seeing()


@pytest.fixture(autouse=True)
def forgetful(lm: LanguageModel) -> Iterator[None]:
    """What one test leaves in the prefix cache is not there for the next."""
    lm.prefix_cache.clear()
    yield


def tokens_of(lm: LanguageModel, prompt: Any) -> list[int]:
    return list(Prompt.of(prompt, lm.vocabulary, lm.images).tokens)


def logits_of_mlx_lm(lm: LanguageModel, images: list[Any], text: str) -> tuple[list[int], Any]:
    """The ids and the last logits of mlx-lm's own way from messages to a model."""
    from mlx_lm.processors import load_processor

    parts = [*[{"type": "image"} for _ in images], {"type": "text", "text": text}]
    rendered = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    expanded, pixels = load_processor(lm.model, dict(lm.config))(rendered, images=images)
    ids = lm.tokenizer.encode(expanded, add_special_tokens=False)
    embeddings = lm.model.embed_inputs(mx.array(ids), pixel_values=pixels or None)
    cache = make_prompt_cache(lm.model)
    logits = lm.model(mx.array(ids)[None], cache=cache, input_embeddings=embeddings[None])
    return ids, logits[0, -1]


@pytest.mark.parametrize("seeds", [[1], [1, 2], []])
def test_the_model_is_shown_what_mlx_lm_shows_it(lm: LanguageModel, seeds: list[int]) -> None:
    ids, wanted = logits_of_mlx_lm(lm, [picture(seed) for seed in seeds], "what is it?")
    ours = tokens_of(lm, asking(*map(png, seeds)))
    assert plain(ours) == ids
    logits = KV(lm.runtime.runner()).run(ours)[-1]
    np.testing.assert_allclose(np.array(logits), np.array(wanted), rtol=1e-4, atol=1e-4)


# ---- every way of running is one -----------------------------------------------------------------


Way = Callable[[LanguageModel, Any], Sequence[int]]


def generated(**options: Any) -> Way:
    return lambda lm, prompt: lm.generate(prompt, **GREEDY, **options).tokens


def beside_others(**limits: Any) -> Way:
    def batched(lm: LanguageModel, prompt: Any) -> Sequence[int]:
        prompts = ["someone else", prompt, asking(png(2)), asking(png(3), png(1))]
        each: list[Any] = [{"max_tokens": 60}, {}, {}, {}]
        return lm.batch(prompts, each=each, limits=Limits(**limits), **GREEDY).run()[1].tokens

    return batched


def set_aside(lm: LanguageModel, prompt: Any) -> Sequence[int]:
    scheduler = Scheduler(lm.runtime, Limits(max_batch=2, keep_prefixes=False))
    seen = scheduler.submit(lm.runtime.prepare(prompt, Options.of(GREEDY)))
    for _ in range(4):
        scheduler.step()
    scheduler.set_aside(seen)
    scheduler.resume(seen)
    while scheduler.busy:
        scheduler.step()
    return seen.request.tokens


def back_and_forked(lm: LanguageModel, prompt: Any) -> Sequence[int]:
    with lm.stream(prompt, **GREEDY) as stream:
        for _ in range(6):
            next(stream)
        (twin,) = stream.fork()
        stream.rewind(to=2)
        list(stream), list(twin)
        assert twin.tokens == stream.tokens
        twin.close()
        return stream.tokens


def after_another(lm: LanguageModel, prompt: Any) -> Sequence[int]:
    """With what is kept of a prompt that begins with one image of two."""
    list(lm.batch([asking(png(1), png(3), text="what was it before?")], **GREEDY))
    return generated()(lm, prompt)


WAYS: dict[str, Way] = {
    "a batch": beside_others(max_batch=4),
    **{f"pieces of {size}": beside_others(prefill_chunk=size) for size in (3, 7, 16)},
    "run again": set_aside,
    "back and forked": back_and_forked,
    "after another": after_another,
    "a draft of text": generated(draft="ngram"),
    "bans": generated(banned=["qqq"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_says_the_same_however_it_is_run(lm: LanguageModel, way: str) -> None:
    prompt = asking(png(1), png(2))
    expected = list(generated()(lm, prompt))
    lm.prefix_cache.clear()
    assert list(WAYS[way](lm, prompt)) == expected


def test_the_prefix_cache_tells_images_apart_in_files_as_well(
    lm: LanguageModel, tmp_path: Any
) -> None:
    said = [list(generated()(lm, asking(png(seed)))) for seed in (1, 2)]
    assert said[0] != said[1]
    history = tokens_of(lm, asking(png(1)))
    first = next(i for i, token in enumerate(history) if token < 0)
    assert lm.prefix_cache.match(history) > first + 6
    assert lm.prefix_cache.match(tokens_of(lm, asking(png(3)))) <= first
    saved = lm.save_prefix(asking(png(1)), tmp_path / "seen")
    lm.prefix_cache.clear()
    assert lm.load_prefix(tmp_path / "seen") == saved
    assert [list(generated()(lm, asking(png(seed)))) for seed in (1, 2)] == said


def test_options_that_look_at_the_prompt_see_its_placeholders(lm: LanguageModel) -> None:
    blind = LanguageModel(tiny_model(tiny_config(lm.vocabulary.size)), lm.tokenizer, name="blind")
    expected = list(generated()(lm, asking(png(1))))
    assert list(generated(draft=blind)(lm, asking(png(1)))) == expected
    result = lm.generate(asking(png(1)), **GREEDY, prompt_logprobs=2)
    scores = [score.token for score in result.chunks[0].prompt]
    assert scores == plain(tokens_of(lm, asking(png(1))))
    for options in ({"repetition_penalty": 1.3}, {"heal": True}):
        assert len(generated(**options)(lm, asking(png(1)))) == 12


# ---- what is refused, and what is held -----------------------------------------------------------


def test_a_model_that_takes_no_images_says_so() -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    assert lm.images is None
    with pytest.raises(OptionError) as caught:
        lm.stream(asking("cat.png"))
    assert caught.value.field == "messages[0].content[0].image"


def test_an_image_that_there_is_no_memory_for_is_refused() -> None:
    small = seeing(cache_bytes=1 << 20)
    plan = small.memory
    small.runtime.memory = plan.__class__.of(plan.device, plan.device, caches=1 << 20)
    small.generate(asking(png(1, rows=2, columns=2)), max_tokens=1)
    with pytest.raises(CapacityError, match="patches needs"):
        small.generate(asking(png(1, rows=60, columns=60)), max_tokens=1)


def test_nobody_holds_an_image_once_its_request_is_over(lm: LanguageModel) -> None:
    assert lm.images is not None
    list(lm.batch([asking(png(1)), asking(png(2), png(1))], max_tokens=3))
    with lm.stream(asking(png(3)), max_tokens=3) as stream:
        next(stream)
        assert lm.images.nbytes > 0
    del stream
    gc.collect()
    assert lm.images.nbytes == 0
