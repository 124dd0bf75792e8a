"""``scripts/bench``: runs the measurements and prints what was wanted and what was found.

Owns the list of measurements and their report. Must never measure anything itself.
Invariant: every figure is printed with the target that it is held against, met or not.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any, NamedTuple

import mlx.core as mx
from rich.console import Console
from rich.table import Table

import mlxgen
from mlxgen.tokens import Vocabulary

from . import single, steering
from .models import WIDE, fake_tokenizer, random_llama


class Figure(NamedTuple):
    """One measured figure; ``met`` is None where there is no target."""

    what: str
    found: str
    wanted: str = ""
    met: bool | None = None


def at_least(what: str, value: float, text: str, target: float) -> Figure:
    return Figure(what, text, f"at least {target:g}", value >= target)


def at_most(what: str, value: float, text: str, target: float, unit: str = "") -> Figure:
    return Figure(what, text, f"at most {target:g}{unit}", value <= target)


def run_single(turns: int) -> Iterator[Figure]:
    """The step loop of one sequence against mlx-lm's."""
    models: tuple[tuple[str, Callable[[], mlxgen.LanguageModel], int], ...] = (
        ("demo", mlxgen.load, 60),
        ("150k vocabulary", lambda: random_llama(WIDE, 64, 2), 20),
    )
    settings: tuple[tuple[str, float, float], ...] = (
        ("greedy", 0.0, 1.0),
        ("temperature 0.7", 0.7, 1.0),
        ("temperature 0.7, top-p 0.9", 0.7, 0.9),
    )
    for name, make, tokens in models:
        lm = make()
        for label, temperature, top_p in settings:
            ratio = single.streams(lm, tokens, turns, temperature, top_p).ratio
            what = f"{name}, {label}: tokens per second over mlx_lm.stream_generate's"
            yield at_least(what, ratio.median, str(ratio), 1.0)
        work = min(single.host_work(lm) for _ in range(3))
        yield at_most(f"{name}: host work a token outside MLX", work, f"{work:.1f} µs", 30, " µs")


def run_overhead(turns: int) -> Iterator[Figure]:
    """A schema, two stops and a hook together, where the forward pass is long."""
    lm = random_llama(WIDE, 512, 4)
    hooks = {"the text": steering.read_text, "the probability": steering.read_probability}
    for looks_at, hook in hooks.items():
        found = steering.overhead(lm, hook, 20, turns)
        cost = (1 / found.ratio.median - 1) * 100
        yield at_most(
            f"schema, two stops and a hook that looks at {looks_at}, per forward pass of "
            f"{found.theirs.median * 1e3:.0f} ms",
            cost,
            f"{cost:+.1f} % (speed over that without: {found.ratio})",
            3,
            " %",
        )


def run_masks(turns: int) -> Iterator[Figure]:
    """Masks of the bench's schemas, with three engines."""
    vocabulary = Vocabulary.of(fake_tokenizer(32_000))
    makers: tuple[tuple[str, Callable[[dict[str, Any]], Any], int], ...] = (
        ("llguidance", lambda schema: mlxgen.JsonSchema(schema), 60 * turns),
        ("outlines-core", lambda schema: mlxgen.OutlinesCore.json_schema(schema), 20 * turns),
        (
            "lm-format-enforcer",
            lambda schema: mlxgen.LMFormatEnforcer.json_schema(schema),
            6 * turns,
        ),
    )
    for name, make, count in makers:
        p50, p99 = steering.mask_times(vocabulary, make, count)
        text = f"p50 {p50:.1f} µs, p99 {p99:.0f} µs"
        what = f"mask over 32,000 tokens, {name}"
        if name == "llguidance":
            yield Figure(
                what, text, "p50 at most 50 µs, p99 at most 1000 µs", p50 <= 50 and p99 <= 1000
            )
        else:
            yield Figure(what, text)


def run_rewinds(turns: int) -> Iterator[Figure]:
    """Taking back 8 tokens of a filter after a short and after a long history."""
    vocabulary = Vocabulary.of(fake_tokenizer(32_000))
    for name, wrap in (
        ("native", lambda f: f),
        ("copyable", steering.CopyOnly),
        ("forward-only", steering.ForwardOnly),
    ):
        short = steering.rewind_times(vocabulary, wrap, 100)
        long = steering.rewind_times(vocabulary, wrap, 10_000)
        text = f"{short.median:.0f} µs after 100 tokens, {long.median:.0f} µs after 10,000"
        if name == "forward-only":
            text += f": {long.median / 9_992:.1f} µs a replayed token"
            yield Figure(f"rewind by 8, {name} filter", text)
        else:
            yield Figure(
                f"rewind by 8, {name} filter", text, "the same", long.median < 2 * short.median
            )


def run_passes(turns: int) -> Iterator[Figure]:
    """Forward passes for each token of JSON records."""
    lm = mlxgen.load()
    text = (resources.files("mlxgen") / "demo" / "schemas.json").read_text(encoding="utf-8")
    records = [
        (
            lm.vocabulary.chat(
                [{"role": "user", "content": record["prompt"]}], enable_thinking=False
            ),
            record["schema"],
        )
        for record in json.loads(text).values()
    ]
    found = steering.passes_per_token(lm, records)
    yield at_most("demo: forward passes a token, its record schemas", found, f"{found:.2f}", 0.7)
    wide = random_llama(32_000, 64, 2)
    prompts = [(single.PROMPT, schema) for schema in steering.RECORDS.values()]
    found = steering.passes_per_token(wide, prompts)
    yield Figure("random, 32,000 tokens: forward passes a token, bench's schemas", f"{found:.2f}")


MEASUREMENTS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "single": run_single,
    "overhead": run_overhead,
    "masks": run_masks,
    "rewinds": run_rewinds,
    "passes": run_passes,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--turns", type=int, default=15, help="alternations of each pair (15)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a missed target")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(MEASUREMENTS)
    if unknown or arguments.turns < 2:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--turns: give 2 or more")
    console = Console(width=150 if not sys.stdout.isatty() else None)
    console.print(f"mlxgen {mlxgen.__version__}, {mx.default_device()}, {platform.processor()}")
    missed = 0
    for name in arguments.names or MEASUREMENTS:
        table = Table("what", "found", "wanted", "", title=name, title_justify="left")
        for figure in MEASUREMENTS[name](arguments.turns):
            sign = "" if figure.met is None else "met" if figure.met else "missed"
            table.add_row(figure.what, figure.found, figure.wanted, sign)
            missed += figure.met is False
        console.print(table)
    return 1 if missed and arguments.strict else 0


if __name__ == "__main__":
    sys.exit(main())
