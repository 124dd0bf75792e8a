"""One sequence: mlxgen's stream against mlx-lm's, and where the time on the host goes.

Owns the measurements of the step loop without filters or hooks. Must never know filters.
Invariant: both sides get the same model, prompt and settings, and generate as many tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler

import mlxgen
from mlxgen.engine.request.accept import accept, take
from mlxgen.engine.request.leads import next_draw, warm
from mlxgen.sampling import ForcedView

from .alternate import Comparison, compare

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


def streams(
    lm: mlxgen.LanguageModel, tokens: int, turns: int, temperature: float = 0.0, top_p: float = 1.0
) -> Comparison:
    """Seconds from the call to the last token, of both libraries.

    Not from the first token, which is out before anything else is submitted on our side: that would
    count against it.
    """

    def ours() -> float:
        start = time.perf_counter()
        stream = lm.stream(
            PROMPT, max_tokens=tokens, temperature=temperature, top_p=top_p, ignore_eos=True, seed=1
        )
        return until_end(stream, start)

    def theirs() -> float:
        lm.tokenizer.eos_token_ids = []
        sampler = make_sampler(temp=temperature, top_p=top_p if top_p < 1 else 0.0)
        try:
            start = time.perf_counter()
            stream = stream_generate(
                lm.model, lm.tokenizer, PROMPT, max_tokens=tokens, sampler=sampler
            )
            return until_end(stream, start)
        finally:
            lm.tokenizer.eos_token_ids = list(lm.vocabulary.eos)

    def until_end(stream: Iterable[object], start: float) -> float:
        count = sum(1 for _ in stream)
        assert count == tokens, (count, tokens)
        return time.perf_counter() - start

    return compare(ours, theirs, turns)


def timed(stream: Iterator[object], tokens: int) -> float:
    """Seconds from the first to the last of ``tokens`` items."""
    next(stream)
    start = time.perf_counter()
    count = 1 + sum(1 for _ in stream)
    seconds = time.perf_counter() - start
    assert count == tokens, (count, tokens)
    return seconds


def host_work(lm: mlxgen.LanguageModel, tokens: int = 20_000) -> float:
    """Microseconds a token on the host outside MLX: a request that accepts known tokens."""
    stream = lm.stream(PROMPT, max_tokens=tokens + 1, ignore_eos=True)
    request = stream._handle.request
    request.budget = tokens + 1  # whatever the context holds: no model runs here
    ordinary = [t for t in range(lm.vocabulary.size) if lm.vocabulary.is_ordinary(t)][:256]
    view = ForcedView(0)
    start = time.thread_time()  # of this thread alone: nothing else counts here
    for i in range(tokens):
        next_draw(request)
        accept(request, ordinary[i % len(ordinary)], view)
        warm(request)
        take(request)
    seconds = time.thread_time() - start
    mx.clear_cache()
    return seconds / tokens * 1e6
