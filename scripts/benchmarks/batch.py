"""Many sequences: ``lm.batch`` against mlx-lm's ``BatchGenerator``.

Both sides get the same model, prompts and settings, and generate the same number of tokens; ours
also decodes them to text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlxgen

from . import kit
from .architectures import read

MODELS: Any = (
    ("demo", mlxgen.load, 40, 1),
    ("150k vocabulary", lambda: kit.random_llama(kit.WIDE, 64, 2), 12, 2),
    ("long forward", lambda: kit.random_llama(8_000, 512, 8), 12, 2),
)
"""Each with the tokens of a row, and a divisor for the number of turns."""
ALIKE = [{"temperature": 0.7}]
MIXED = [{**each, "min_p": 0.002 * i} for i, each in enumerate(kit.SAMPLERS)]
WARM = 8  # tokens of each row before it is timed under a schema
RECORDS: list[Any] = list(read("records").values())


def figures(turns: int) -> Iterator[kit.Figure]:
    for name, make, tokens, less in MODELS:
        lm, times = make(), max(2, turns // less)

        def over(rows: int, each: Sequence[Mapping[str, Any]]) -> kit.Spread:
            prompts = [kit.prompt_of(8, i) for i in range(rows)]
            return kit.Case(lm, prompts, tokens, each).timed(times).ratio  # noqa: B023

        peer = "tokens per second over mlx_lm.BatchGenerator's"
        for rows in (1, 4, 16, 32):
            yield kit.at_least(f"{name}, {rows} rows: {peer}", over(rows, ALIKE), 1.0)
        what = f"{name}, 16 rows with 16 different samplers: {peer}"
        yield kit.at_least(what, over(16, MIXED), 1.5)
        by_token, share = constrained(lm, 16, 4 * tokens, times)
        what = f"{name}, 16 rows with a JSON schema each: tokens per second over unconstrained"
        yield kit.at_least(what, by_token, 0.85, f"{by_token}, {share:.2f} passes a token")


def constrained(
    lm: mlxgen.LanguageModel, rows: int, tokens: int, turns: int
) -> tuple[kit.Spread, float]:
    """Rows with a schema each over rows without: tokens per second, and passes per token.

    All rows run all the time; otherwise, forced tokens would let rows with a schema end sooner.
    """
    prompts = [kit.prompt_of(8, i) for i in range(rows)]
    style = {"whitespace": None, "separators": (", ", ": ")}  # those of json.dumps, so forced
    held: Any = [{"filters": [records(i, 200, **style)]} for i in range(rows)]
    limits = mlxgen.Limits(keep_prefixes=False)
    options: dict[str, Any] = {"max_tokens": None, "temperature": 0.7, "seed": 1}
    shares = []

    def seconds(each: Any) -> float:
        """Seconds per token, after the first ones of all rows."""
        with lm.batch(prompts, each=each, limits=limits, **options) as chunks:
            for _ in range(WARM * rows):
                next(chunks)
            before, start = chunks.stats, time.perf_counter()
            while chunks.stats.completion_tokens < before.completion_tokens + tokens * rows:
                next(chunks)
            took, after = time.perf_counter() - start, chunks.stats
        made = after.completion_tokens - before.completion_tokens
        if each is not None:
            shares.append((after.forward_passes - before.forward_passes) / made)
        return took / made

    found = kit.compare(lambda: seconds(held), lambda: seconds(None), turns)
    return found.ratio, statistics.median(shares)


def records(number: int, least: int, **style: Any) -> mlxgen.JsonSchema:
    """An array of at least ``least`` records of one kind."""
    properties = RECORDS[number % len(RECORDS)]
    record = {"type": "object", "properties": properties, "additionalProperties": False}
    record["required"] = list(properties)
    return mlxgen.JsonSchema({"type": "array", "items": record, "minItems": least}, **style)
