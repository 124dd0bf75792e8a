"""Many sequences: ``lm.batch`` against mlx-lm's ``BatchGenerator``.

Both sides get the same model, prompts and settings, and generate as many tokens; ours makes text of
them, too.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mlx_lm.sample_utils import make_sampler

import mlxgen

from .kit import (
    WIDE,
    Comparison,
    Figure,
    Spread,
    at_least,
    compare,
    demo,
    ours_together,
    prompt_of,
    random_llama,
    theirs_together,
    timed,
)

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
WARM = 8  # tokens of each row before it is timed under a schema

_PROPERTIES = json.loads(Path(__file__).with_name("records.json").read_text(encoding="utf-8"))
RECORDS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    for properties in _PROPERTIES.values()
]


def figures(turns: int) -> Iterator[Figure]:
    models: tuple[tuple[str, Callable[[], mlxgen.LanguageModel], int, int], ...] = (
        ("demo", demo, 40, turns),
        ("150k vocabulary", lambda: random_llama(WIDE, 64, 2), 12, max(2, turns // 2)),
        ("long forward", lambda: random_llama(8_000, 512, 8), 12, max(2, turns // 2)),
    )
    peer = "tokens per second over mlx_lm.BatchGenerator's"
    for name, make, tokens, times in models:
        lm = make()
        for rows in (1, 4, 16, 32):
            ratio = speed(lm, rows, tokens, times).ratio
            yield at_least(f"{name}, {rows} rows: {peer}", ratio.median, 1.0, ratio)
        ratio = speed(lm, 16, tokens, times, MIXED).ratio
        what = f"{name}, 16 rows with 16 different samplers: {peer}"
        yield at_least(what, ratio.median, 1.5, ratio)
        by_token, share = constrained(lm, 16, 4 * tokens, times)
        what = f"{name}, 16 rows with a JSON schema each: tokens per second over unconstrained"
        yield at_least(what, by_token.median, 0.85, f"{by_token}, {share:.2f} passes a token")


def speed(
    lm: mlxgen.LanguageModel,
    rows: int,
    tokens: int,
    turns: int,
    settings: Sequence[dict[str, Any]] = ALIKE,
) -> Comparison:
    """Seconds in which both sides generate ``tokens`` for each of ``rows`` short prompts."""
    prompts = [prompt_of(8, i) for i in range(rows)]

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
    return compare(
        lambda: timed(ours_together(lm, prompts, tokens, settings, draft="off"), rows * tokens),
        lambda: timed(theirs_together(lm.model, prompts, tokens, samplers=chosen), rows * tokens),
        turns,
    )


def constrained(
    lm: mlxgen.LanguageModel, rows: int, tokens: int, turns: int
) -> tuple[Spread, float]:
    """Rows with a schema each over rows without: tokens a second, and passes for each token.

    All rows run all the time: those with a schema would be done sooner with as many tokens.
    """
    prompts = [prompt_of(8, i) for i in range(rows)]
    style = {"whitespace": None, "separators": (", ", ": ")}  # those of json.dumps, so forced
    filters: Any = [{"filters": [records(i, 200, **style)]} for i in range(rows)]

    def run(steered: bool) -> tuple[float, float]:
        """Tokens a second of all rows after their first ones, and passes for each token."""
        limits = mlxgen.Limits(keep_prefixes=False)
        each = filters if steered else None
        with lm.batch(
            prompts, each=each, limits=limits, max_tokens=None, temperature=0.7, seed=1
        ) as chunks:
            for _ in range(WARM * rows):
                next(chunks)
            before, start = chunks.stats, time.perf_counter()
            while chunks.stats.completion_tokens < before.completion_tokens + tokens * rows:
                next(chunks)
            seconds, after = time.perf_counter() - start, chunks.stats
        made = after.completion_tokens - before.completion_tokens
        return made / seconds, (after.forward_passes - before.forward_passes) / made

    run(True), run(False)
    ratios, shares = [], []
    for turn in range(turns):
        found = {steered: run(steered) for steered in ((True, False), (False, True))[turn % 2]}
        ratios.append(found[True][0] / found[False][0])
        shares.append(found[True][1])
    return Spread.of(ratios), statistics.median(shares)


def records(number: int, least: int, **style: Any) -> mlxgen.JsonSchema:
    """An array of at least so many records of a kind."""
    schema = RECORDS[number % len(RECORDS)]
    return mlxgen.JsonSchema({"type": "array", "items": schema, "minItems": least}, **style)
