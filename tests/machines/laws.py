"""Tries the laws of several machines in each of the folders that it is given, and prints what held.
If there is an adapter in the folder ``adapter`` of a model, the model has it, and quantised KV if
there is a file ``kv-bits-8``.

Run it with ``ranks``: rank 0 has each model twice, over all ranks and alone, and both have the same
stories.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx

import mlxgen
from mlxgen.machines.share import PartRuntime

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
Told = list[Any]


def told(lm: mlxgen.LanguageModel, seed: int) -> Iterator[Told]:
    """What comes of everything that moves KV, by the same decisions for every model."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(5, 90) for _ in range(rng.randrange(1, 40))] for _ in range(5)]
    long = [rng.randrange(5, 90) for _ in range(200)]
    yield ["greedy", lm.generate(prompts[0], max_tokens=20, ignore_eos=True).tokens]
    yield ["rewound and forked", *story(lm, prompts[1], rng)]
    each: list[Any] = [
        {},
        {"temperature": 1.0, "seed": seed, "top_p": 0.9},
        {"filters": [mlxgen.JsonSchema(SCHEMA)]},
        {"draft": "ngram"},
        {"stop": ["e"], "temperature": 1.0, "seed": seed},
    ]
    rows: dict[int, list[int]] = {}
    for i, chunk in lm.batch(prompts, each=each, max_tokens=12):
        rows.setdefault(i, []).append(token_of(chunk))
    yield ["batch", sorted(rows.items())]
    with lm.stream(long, max_tokens=4, ignore_eos=True) as stream:
        stream.keep(120)
        first = [token_of(chunk) for chunk in stream]
        stream.keep()
    again = lm.generate([*long, *first, 7], max_tokens=4, ignore_eos=True)
    yield ["kept", first, again.tokens, again.usage.cached_tokens]
    scored = lm.generate(long[:40], max_tokens=2, prompt_logprobs=1, ignore_eos=True).chunks[0]
    assert scored.prompt is not None
    yield ["scored", [score.token for score in scored.prompt]]


def story(lm: mlxgen.LanguageModel, prompt: list[int], rng: random.Random) -> Iterator[Told]:
    """Streams that go on, back and apart."""
    options: Any = {"max_tokens": 60, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    streams = [lm.stream(prompt, **options)]
    for _ in range(12):
        stream = rng.choice(streams)
        action = rng.random()
        if action < 0.6:
            for _ in range(rng.randrange(1, 6)):
                next(stream, None)
        elif action < 0.9:
            stream.rewind(rng.randrange(len(stream.tokens) + 1))
        elif len(streams) < 4:
            streams += stream.fork(1)
    for stream in streams:
        yield stream.tokens
        stream.close()


def read_again(lm: mlxgen.LanguageModel, folder: Path, cache: str) -> str:
    """What becomes of a prefix that all ranks have written to their disks."""
    prompt = [5 + i % 80 for i in range(400)]
    options: Any = {"max_tokens": 6, "ignore_eos": True}
    with lm.stream(prompt, **options) as stream:
        stream.keep(300)
        list(stream)
        stream.keep()
    assert lm.prefix_cache.flush(10)
    result = mlxgen.load(folder, cache_dir=cache).generate([*prompt, 7], **options)
    again = lm.generate([*prompt, 7], **options)
    assert result.usage.cached_tokens >= 256, result.usage
    return "equal" if result.tokens == again.tokens else f"{result.tokens} {again.tokens}"


def token_of(chunk: mlxgen.Chunk) -> int:
    assert chunk.token is not None
    return chunk.token


def memory(lm: mlxgen.LanguageModel, alone: mlxgen.LanguageModel, peak: int) -> str:
    """Whether a rank has read and holds its part of the weights, and plans for its part of KV."""
    assert isinstance(lm.runtime, PartRuntime)
    of, mine, whole = lm.runtime.share.group.size(), lm.runtime.footprint, alone.runtime.footprint
    said = f"{mine} {whole} {peak}"
    parts = 1 if "kv_lora_rank" in lm.config else of  # every rank has all of a latent
    if mine.growing * parts != whole.growing or mine.weights >= whole.weights:
        return said
    if lm.runtime.batches != alone.runtime.batches:
        return "its sequences do not run together as those of the whole do"
    small = whole.weights < 1 << 20  # embeddings count most, which every rank has
    is_part = mine.weights < 0.6 * whole.weights and peak < 0.9 * whole.weights
    return "equal" if small or is_part else said


def with_adapter(lm: mlxgen.LanguageModel, adapter: Path) -> str:
    """What becomes of an adapter for a model that is divided already."""
    try:
        return f"{lm.with_adapter(adapter)}"
    except mlxgen.AdapterError as error:
        return "equal" if "load the model with it" in str(error) else str(error)


def main() -> None:
    cache, *folders = sys.argv[1:]
    for folder in map(Path, folders):
        adapter = folder / "adapter" if (folder / "adapter").exists() else None
        bits = 8 if (folder / "kv-bits-8").exists() else None
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        lm = mlxgen.load(folder, adapter=adapter, cache_dir=cache or None, kv_bits=bits)
        peak = mx.get_peak_memory() - before
        alone = mlxgen.load(folder, adapter=adapter, distributed=False, kv_bits=bits)
        for one, several in zip(told(alone, 1), told(lm, 1), strict=True):
            print(f"{lm.name}: {one[0]}: {'equal' if one == several else f'{one} {several}'}")
        print(f"{lm.name}: memory: {memory(lm, alone, peak)}")
        if adapter is not None:
            print(f"{lm.name}: another adapter: {with_adapter(lm, adapter)}")
        elif cache:
            print(f"{lm.name}: disk: {read_again(lm, folder, cache)}")


if __name__ == "__main__":
    main()
