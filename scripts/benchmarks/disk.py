"""Prefixes on disk: what it takes to bring one back, and what writing it costs those who generate.

Owns the folders and what is in them. Must never know how a file looks. Invariant: what is restored
is read by a ``LanguageModel`` that has never seen it, and from the disk, where the system can be
told to forget what it has read (Linux).
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

import mlxgen
from mlxgen.engine.prefix.store import BlockStore

from .alternate import Comparison, Spread, compare
from .architectures import random_model
from .models import fake_tokenizer

VOCABULARY = 2_000
TOKENS = 20_000
REST = 16  # tokens after those that are restored
MODELS = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2},
    "4 layers of 8 heads": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""Shapes of a Llama; the KV of the second takes 32 KiB a token."""


class Found(NamedTuple):
    """``first``: seconds to the first token, restored against run. ``read`` and ``written``: bytes
    a second. ``beside``: tokens a second of a row while KV is written, over those without;
    ``stalled``: over those beside a thread that only hashes, and takes a core as well."""

    nbytes: int
    first: Comparison
    read: Spread
    written: Spread
    beside: Spread
    stalled: Spread


def measured(shape: dict[str, int], folder: Path, turns: int, tokens: int = TOKENS) -> Found:
    """The figures of a model, in an empty folder."""
    model = random_model("llama", vocab_size=VOCABULARY, max_position_embeddings=1 << 17, **shape)
    tokenizer = fake_tokenizer(VOCABULARY)

    def fresh(place: str | None) -> mlxgen.LanguageModel:
        where = None if place is None else folder / place
        return mlxgen.LanguageModel(model, tokenizer, cache_dir=where, draft="off")

    chance = random.Random(0)
    prompt = [chance.randrange(VOCABULARY - 1) for _ in range(tokens + REST)]
    lm = fresh("kept")
    _keep(lm, prompt[:tokens])
    lm.prefix_cache.flush()
    nbytes = lm.prefix_cache.nbytes

    def first(place: str | None, cached: int) -> float:
        cold = fresh(place)
        _ = cold.prefix_cache  # its folder is read when a server starts
        forget(folder)
        start = time.perf_counter()
        stream = cold.stream(prompt, max_tokens=1, temperature=0)
        next(iter(stream))
        seconds = time.perf_counter() - start
        assert stream.usage.cached_tokens >= cached, stream.usage
        return seconds

    compared = compare(lambda: first("kept", tokens - 1), lambda: first(None, 0), turns)
    read = [_read(fresh("kept").prefix_cache, prompt, folder) for _ in range(turns)]
    written = [_written(fresh(f"turn {turn}"), lm, prompt[:tokens]) for turn in range(turns)]
    rates, beside, stalled = (Spread.of(list(each)) for each in zip(*written, strict=True))
    return Found(nbytes, compared, Spread.of(read), rates, beside, stalled)


def forget(folder: Path) -> None:
    """Have the system drop what it holds of the files in a folder, where it can be told."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _keep(lm: mlxgen.LanguageModel, prompt: list[int]) -> None:
    """Have the prefix cache hold the KV of a prompt."""
    stream = lm.stream(prompt, max_tokens=1, temperature=0)
    for _ in stream:
        pass
    stream.keep()


def _read(cache: BlockStore, prompt: list[int], folder: Path) -> float:
    """Bytes a second of reading a prefix and checking it."""
    forget(folder)
    start = time.perf_counter()
    cache.restore(prompt)
    seconds = time.perf_counter() - start
    assert cache.match(prompt) >= len(prompt) - REST - 1
    return cache.nbytes / seconds


def _written(
    lm: mlxgen.LanguageModel, holder: mlxgen.LanguageModel, prompt: list[int]
) -> tuple[float, float, float]:
    """Bytes a second of writing what ``holder`` has of a prompt to the folder of ``lm``, and tokens
    a second of a row meanwhile, over those without and over those beside a thread that hashes."""
    cache, kv = lm.prefix_cache, holder.prefix_cache.take([*prompt, 0])
    assert kv is not None
    cache.keep(prompt, kv)
    mx.synchronize()
    stream = iter(lm.stream(prompt[:REST], max_tokens=1 << 16, ignore_eos=True, temperature=0))

    def rate(goes_on: Callable[[], bool]) -> float:
        count, start = 0, time.perf_counter()
        while not count or goes_on():
            next(stream)
            count += 1
        return count / (time.perf_counter() - start)

    def beside(work: Callable[[], object]) -> tuple[float, float]:
        start = time.perf_counter()
        worker = threading.Thread(target=work)
        worker.start()
        found = rate(worker.is_alive)
        worker.join()
        return found, time.perf_counter() - start

    beside(partial(time.sleep, 1))
    rates = [[beside(work)[0] for work in (partial(time.sleep, 1), _hash)]]
    during, seconds = beside(cache.flush)
    rates.append([beside(work)[0] for work in (partial(time.sleep, 1), _hash)])
    alone, hashing = (sum(each) / 2 for each in zip(*rates, strict=True))
    return cache.nbytes / seconds, during / alone, during / hashing


def _hash() -> None:
    """Hash for a second."""
    data, end = bytes(8 << 20), time.perf_counter() + 1
    while time.perf_counter() < end:
        hashlib.sha256(data)
