"""Many sequences: mlxgen's scheduler against mlx-lm's ``BatchGenerator``.

Owns the measurements of batches: speed, the prefix cache, evenness and memory. Must never
know how rows are scheduled. Invariant: both sides get the same model, prompts and settings,
and generate as many tokens; mlx-lm's side makes no text of them, ours does.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache
from mlx_lm.sample_utils import make_sampler

import mlxgen
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler

from .alternate import Comparison, Spread, compare
from .steering import RECORDS

MIXED = [
    {
        "temperature": 0.5 + 0.05 * i,
        "top_p": 0.8 + 0.01 * i,
        "top_k": 20 + 5 * i,
        "min_p": 0.002 * i,
    }
    for i in range(16)
]
ALIKE = [{"temperature": 0.7}]
WARM_STEPS = 8
ASKED = 3  # times the usual gap


def prompt_of(length: int, seed: int, vocab_size: int = 256) -> list[int]:
    """Made-up tokens; the same seed gives the same."""
    chance = random.Random(seed)
    return [chance.randrange(3, min(256, vocab_size)) for _ in range(length)]


def speed(
    lm: mlxgen.LanguageModel,
    rows: int,
    tokens: int,
    turns: int,
    settings: Sequence[dict[str, Any]] = ALIKE,
) -> Comparison:
    """Seconds in which both sides generate ``tokens`` for each of ``rows`` short prompts."""
    prompts = [prompt_of(8, i) for i in range(rows)]

    def ours() -> float:
        return run_ours(lm, prompts, tokens, settings)

    def theirs() -> float:
        samplers = [
            make_sampler(
                temp=each["temperature"],
                top_p=each.get("top_p", 0.0),
                min_p=each.get("min_p", 0.0),
                top_k=each.get("top_k", 0),
            )
            for each in settings
        ]
        chosen = [samplers[i % len(samplers)] for i in range(rows)]
        generator = BatchGenerator(lm.model, stop_tokens=None, prefill_step_size=2048)
        start = time.perf_counter()
        generator.insert(prompts, max_tokens=[tokens] * rows, samplers=chosen)
        left = rows
        while left:
            left -= sum(r.finish_reason is not None for r in generator.next_generated())
        seconds = time.perf_counter() - start
        generator.close()
        return seconds

    return compare(ours, theirs, turns)


def run_ours(
    lm: mlxgen.LanguageModel,
    prompts: Sequence[list[int]],
    tokens: int,
    settings: Sequence[dict[str, Any]] = ALIKE,
    **options: Any,
) -> float:
    """Seconds for all rows on our side."""
    scheduler = Scheduler(lm, Limits(keep_prefixes=False))
    made = [
        lm.prepare(
            prompt,
            Options.of(
                {"max_tokens": tokens, "ignore_eos": True, "seed": i, **settings[i % len(settings)]}
                | options
            ),
        )
        for i, prompt in enumerate(prompts)
    ]
    start = time.perf_counter()
    for row in made:
        scheduler.submit(row)
    while scheduler.busy:
        scheduler.step()
    return time.perf_counter() - start


def constrained(
    lm: mlxgen.LanguageModel, rows: int, steps: int, turns: int
) -> tuple[Spread, Spread, float]:
    """Rows with a schema each over rows without: speed a pass, tokens a second, passes a token.

    All rows run all the time: those with a schema would be done sooner with as many tokens.
    """
    prompts = [prompt_of(8, i) for i in range(rows)]
    schemas = list(RECORDS.values())
    filters = [
        mlxgen.JsonSchema(
            {"type": "array", "items": schemas[i % len(schemas)], "minItems": 200},
            whitespace=None,
            separators=(", ", ": "),
        )
        for i in range(rows)
    ]

    def run(steered: bool) -> tuple[float, int, int]:
        scheduler = Scheduler(lm, Limits(keep_prefixes=False))
        for i, prompt in enumerate(prompts):
            given: dict[str, Any] = {
                "max_tokens": None,
                "ignore_eos": True,
                "seed": i,
                "temperature": 0.7,
            }
            if steered:
                given["filters"] = filters[i]
            scheduler.submit(lm.prepare(prompt, Options.of(given)))
        for _ in range(WARM_STEPS):
            scheduler.step()
        before = scheduler.stats()
        assert before.running == rows
        start = time.perf_counter()
        for _ in range(steps):
            scheduler.step()
        seconds = time.perf_counter() - start
        after = scheduler.stats()
        assert after.running == rows
        scheduler.close()
        passes = after.forward_passes - before.forward_passes
        return seconds, passes, after.completion_tokens - before.completion_tokens

    run(True), run(False)
    by_pass, by_token, share = [], [], []
    for turn in range(turns):
        first, second = run(turn % 2 == 0), run(turn % 2 == 1)
        with_schema, without = (first, second) if turn % 2 == 0 else (second, first)
        by_pass.append((with_schema[1] / with_schema[0]) / (without[1] / without[0]))
        by_token.append((with_schema[2] / with_schema[0]) / (without[2] / without[0]))
        share.append(with_schema[1] / with_schema[2])
    return Spread.of(by_pass), Spread.of(by_token), statistics.median(share)


def first_token(lm: mlxgen.LanguageModel, length: int, turns: int) -> tuple[Comparison, Comparison]:
    """Seconds to the first token behind a prefix of ``length`` tokens that is in the cache.

    Against the same without a cache, and against mlx-lm's cache.
    """
    prefix = prompt_of(length, 99)
    scheduler = Scheduler(lm)

    def serve(prompt: list[int], engine: Scheduler) -> float:
        row = lm.prepare(prompt, Options.of({"max_tokens": 1, "temperature": 0}))
        start = time.perf_counter()
        engine.submit(row)
        while not any(event.chunks for event in engine.step()):
            pass
        seconds = time.perf_counter() - start
        while engine.busy:
            engine.step()
        return seconds

    serve([*prefix, 5], scheduler)
    cold = Scheduler(lm, Limits(keep_prefixes=False))
    turn = iter(range(1 << 30))

    def cached() -> float:
        return serve([*prefix, *prompt_of(4, next(turn))], scheduler)

    theirs = LRUPromptCache()
    caches = make_prompt_cache(lm.model)
    lm.model(mx.array([prefix]), cache=caches)
    mx.eval([c.state for c in caches])
    theirs.insert_cache("model", prefix, caches)

    def peer() -> float:
        prompt = [*prefix, *prompt_of(4, next(turn))]
        start = time.perf_counter()
        cache, rest = theirs.fetch_nearest_cache("model", prompt)
        generator = BatchGenerator(lm.model, stop_tokens=None)
        generator.insert([rest], max_tokens=[1], caches=[cache])
        while not generator.next_generated():
            pass
        seconds = time.perf_counter() - start
        generator.close()
        return seconds

    return (
        compare(cached, lambda: serve([*prefix, *prompt_of(4, next(turn))], cold), turns),
        compare(cached, peer, turns),
    )


class Gaps(NamedTuple):
    """Gaps between two tokens of a row while a prompt arrives, over the usual ones there.

    ``noise`` is the longest one without a prompt, over the same.
    """

    longest: float
    nearly_longest: float
    noise: float


def longest_gap(lm: mlxgen.LanguageModel, rows: int, length: int) -> Gaps:
    """What is usual is the median of 41 gaps around the same token without the prompt; at most
    ``ASKED`` times as long a gap is asked for."""
    gap = ASKED * statistics.median(_gaps(lm, rows, None, 100))
    found = _gaps(lm, rows, length, None, gap)
    plain = _gaps(lm, rows, None, len(found))
    usual = [statistics.median(plain[max(0, i - 20) : i + 21]) for i in range(len(plain))]
    over = sorted(gap / at for gap, at in zip(found, usual, strict=True))
    noise = max(gap / at for gap, at in zip(plain, usual, strict=True))
    return Gaps(over[-1], over[int(0.99 * len(over))], noise)


def _gaps(
    lm: mlxgen.LanguageModel,
    rows: int,
    length: int | None,
    steps: int | None,
    gap: float | None = None,
) -> list[float]:
    """Seconds between the tokens of one of the rows, until the late prompt's first token."""
    scheduler = Scheduler(lm, Limits(keep_prefixes=False, longest_gap=gap))
    options = {"max_tokens": None, "ignore_eos": True, "temperature": 0.7}
    running = [
        scheduler.submit(lm.prepare(prompt_of(8, i), Options.of({**options, "seed": i})))
        for i in range(rows)
    ]
    for _ in range(60):
        scheduler.step()
    if length is not None:
        scheduler.submit(lm.prepare(prompt_of(length, 77), Options.of(options)))
    gaps: list[float] = []
    last, arrived = time.perf_counter(), False
    while not arrived and len(gaps) != steps:
        for event in scheduler.step():
            if event.handle is running[0] and event.chunks:
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
            arrived = arrived or event.handle not in running
    scheduler.close()
    return gaps


def kv_bytes(lm: mlxgen.LanguageModel, rows: int, length: int) -> tuple[int, int, int, int]:
    """KV bytes of ``rows`` requests behind a common prompt: ours while all of them run and then
    kept, and the same of mlx-lm's."""
    prefix = prompt_of(length, 5)
    prompts = [[*prefix, *prompt_of(8, i)] for i in range(rows)]
    lm.prefix_cache.clear()
    scheduler = Scheduler(lm)
    options = {"max_tokens": 24, "ignore_eos": True}
    for prompt in prompts:
        scheduler.submit(lm.prepare(prompt, Options.of(options)))
    running = 0
    while scheduler.busy:
        scheduler.step()
        stats = scheduler.stats()
        if stats.running == rows:
            running = stats.kv_bytes + stats.cache_bytes
    kept = scheduler.stats().cache_bytes
    generator = BatchGenerator(lm.model, stop_tokens=None)
    lru = LRUPromptCache(max_size=rows)
    generator.insert(prompts, max_tokens=[24] * rows)
    theirs = 0
    left = rows
    while left:
        for response in generator.next_generated():
            if response.finish_reason is not None:
                left -= 1
                lru.insert_cache("model", response.all_tokens, response.prompt_cache)
        theirs = max(theirs, generator.prompt_cache_nbytes + lru.nbytes)
    generator.close()
    return running, kept, theirs, lru.nbytes


def growth(lm: mlxgen.LanguageModel, requests: int) -> tuple[int, int]:
    """Bytes held by MLX after the first ten requests and after all, the prefix cache full."""
    lm.prefix_cache.clear()
    lm.prefix_cache.max_bytes = 1 << 22
    scheduler = Scheduler(lm, Limits(max_bytes=1 << 26))
    held: list[int] = []
    for number in range(requests):
        row = lm.prepare(prompt_of(20, number), Options.of({"max_tokens": 4, "ignore_eos": True}))
        scheduler.submit(row)
        while scheduler.busy and scheduler.stats().queued + scheduler.stats().running > 4:
            scheduler.step()
        if number == 9 or number == requests - 1:
            while scheduler.busy:
                scheduler.step()
            mx.clear_cache()
            held.append(mx.get_active_memory() - lm.prefix_cache.nbytes)
    return held[0], held[1]
