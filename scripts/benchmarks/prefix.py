"""Kept prefixes, in memory and on disk: the time they save, their bytes, the cost of writing them.

A ``LanguageModel`` that has never seen a prefix restores it from disk, after the system was told to
drop its cached pages of the files (Linux).
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache

import mlxgen

from . import kit
from .architectures import SHAPES, random_model

TOKENS = 20_000
REST = 16  # tokens after those that are restored
MODELS = ("tiny", "4 layers of 8 heads")  # the KV of the second takes 32 KiB a token


def figures(turns: int) -> Iterator[kit.Figure]:
    """Seconds to the first token after a cached prefix, against those without a cache and with
    mlx-lm's cache. Then the bytes that are kept of requests with this prefix."""
    lm, rows, times = kit.random_llama(8_000, 256, 4), 16, max(2, turns // 2)
    prefix, numbers = kit.prompt_of(2_000, 99), iter(range(1 << 30))

    def prompt(rest: int = 4) -> list[int]:
        return [*prefix, *kit.prompt_of(rest, next(numbers))]

    def first(**options: Any) -> float:
        start = time.perf_counter()
        with lm.batch([prompt()], max_tokens=1, temperature=0, **options) as chunks:
            next(chunks)
            return time.perf_counter() - start

    theirs = LRUPromptCache(max_size=rows + 1)
    caches = make_prompt_cache(lm.model)
    lm.model(mx.array([prefix]), cache=caches)
    mx.eval([each.state for each in caches])
    theirs.insert_cache("model", prefix, caches)

    def peer() -> float:
        given = prompt()
        start = time.perf_counter()
        cache, rest = theirs.fetch_nearest_cache("model", given)
        next(kit.their_batch(lm.model, [rest], 1, caches=[cache]))
        return time.perf_counter() - start

    cold = kit.compare(first, lambda: first(limits=mlxgen.Limits(keep_prefixes=False)), times)
    what = "time to first token, prefix of 2,000 tokens: without the prefix cache over with"
    yield kit.at_least(what, cold.ratio, 100, f"{cold.ratio}: {cold.ours.median * 1e3:.1f} ms")
    other = kit.compare(first, peer, times)
    text = f"{other.ratio}: {other.theirs.median * 1e3:.1f} ms"
    yield kit.at_least("the same: mlx_lm.LRUPromptCache's over ours", other.ratio, 1.3, text)

    prompts = [prompt(8) for _ in range(rows)]
    lm.prefix_cache.clear()
    with lm.batch(prompts, max_tokens=24, ignore_eos=True) as chunks:
        for _ in chunks:
            pass
    kept = LRUPromptCache(max_size=rows)
    for response in kit.their_batch(lm.model, prompts, 24):
        if response.finish_reason is not None:
            kept.insert_cache("model", response.all_tokens, response.prompt_cache)
    ours, most = lm.prefix_cache.nbytes, kept.nbytes
    what = f"kept of {rows} requests with a common prompt of 2,000 tokens: bytes over mlx-lm's"
    text = f"{ours / most:.2f}: {ours / 1e6:.1f} MB over {most / 1e6:.1f} MB"
    yield kit.at_most(what, ours / most, 1, text)


# ---- on disk -----------------------------------------------------------------------------------


def disk_figures(turns: int) -> Iterator[kit.Figure]:
    for name in MODELS:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found = on_disk(name, Path(folder), max(2, turns // 5))
        first = found.first
        ratio = first.ours.median / first.theirs.median
        size = f"{found.nbytes / 1e6:.0f} MB"
        what = f"{name}: first token after {TOKENS:,} tokens from disk ({size}) over running them"
        text = f"{ratio:.3f}: {first.ours.median:.2f} s over {first.theirs.median:.2f} s"
        yield kit.at_most(what, ratio, 0.1, text)
        what = f"{name}: tokens a second of a row meanwhile, over those without"
        yield kit.at_least(what, found.beside, 0.8)


class Found(NamedTuple):
    """``first``: seconds to the first token, restored against run. ``beside``: tokens per second of
    a row while KV is written, over those without writing."""

    nbytes: int
    first: kit.Comparison
    beside: kit.Spread


def on_disk(name: str, folder: Path, turns: int, tokens: int = TOKENS) -> Found:
    """The figures of a Llama of one of the ``SHAPES``, in an empty folder."""
    shape = SHAPES[name]
    model, tokenizer = random_model("llama", **shape), kit.fake_tokenizer(shape["vocab_size"])
    prompt = kit.prompt_of(tokens + REST, 0)

    def fresh(place: str | None) -> mlxgen.LanguageModel:
        where = None if place is None else folder / place
        return mlxgen.LanguageModel(model, tokenizer, cache_dir=where, draft="off")

    def keeping(place: str) -> mlxgen.LanguageModel:
        lm = fresh(place)
        with lm.stream(prompt[:tokens], max_tokens=1, temperature=0) as stream:
            next(stream)
            stream.keep()
        return lm

    def first(place: str | None, cached: int) -> float:
        cold = fresh(place)
        _ = cold.prefix_cache  # its folder is read when a server starts
        forget(folder)
        start = time.perf_counter()
        with cold.stream(prompt, max_tokens=1, temperature=0) as stream:
            next(stream)
        assert stream.usage.cached_tokens >= cached, stream.usage
        return time.perf_counter() - start

    def beside(place: str) -> float:
        lm = keeping(place)
        row = lm.stream(prompt[:REST], max_tokens=None, ignore_eos=True, temperature=0)

        def rate(work: Callable[[], object]) -> float:
            """Tokens per second of a row while a thread works."""
            worker, start, count = threading.Thread(target=work), time.perf_counter(), 0
            worker.start()
            while not count or worker.is_alive():
                next(row)
                count += 1
            return count / (time.perf_counter() - start)

        alone = rate(lambda: time.sleep(1))
        return rate(lm.prefix_cache.flush) / alone

    holder = keeping("kept")
    holder.prefix_cache.flush()
    compared = kit.compare(lambda: first("kept", tokens - 1), lambda: first(None, 0), turns)
    rates = kit.Spread.of([beside(f"turn {turn}") for turn in range(turns)])
    return Found(holder.prefix_cache.nbytes, compared, rates)


def forget(folder: Path) -> None:
    """Make the system drop its cached pages of a folder's files, if it offers that."""
    for file in folder.rglob("*"):
        if file.is_file() and hasattr(os, "posix_fadvise"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
