"""Primitives in the graph of a decode step: ours, and mlx-lm's for the same model.

Owns how graphs are counted. A GPU launches at least one kernel for each primitive that is not a
view, so fewer primitives mean speed on any GPU, and they can be counted without one. A function
with a GPU kernel of its own counts as one primitive, although a CPU computes it with many.

Also measures the memory that steps take beyond what is held, which shows what no graph does: MLX
copies a buffer instead of updating it in place while another pass still holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import mlx.core as mx

import mlxgen
from mlxgen.engine.kv.layers import arrays_in

from . import kit

WARM = 12  # steps until all rows run, and the look-ahead with them
LENGTH, LONG = 70, 600  # tokens of the shortest prompt
KV_BYTES = 2 * 2 * 32 * 4  # per token and layer: keys and values of two heads
COPIED = 0.45  # of a layer's KV: less than if its keys or values were copied
VIEWS = {"AsStrided", "Broadcast", "CustomTransforms", "Depends", "ExpandDims", "Flatten"}
VIEWS |= {"Reshape", "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"}
_LABEL = re.compile(r'label ="([^"]*)"')

ANY, FORCED = ({"filters": [mlxgen.Regex(pattern)]} for pattern in ("(.|\n)*", "([0-9]abcdefgh)*"))
NGRAM = {"draft": "ngram", "num_draft_tokens": 3}
ALONE: dict[str, Mapping[str, Any]] = {"single": {}, "single, masks": ANY}
TOGETHER: dict[str, tuple[int, Mapping[str, Any]]] = {
    "4 rows": (4, {}),
    "5 rows in 8 slots": (5, {}),
    "5 rows, masks": (5, ANY),
}
RAGGED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "5 rows, forced runs in every other": (FORCED, {}),
    "5 rows, drafts in every other": (NGRAM, {}),
    "5 rows, forced runs and drafts": (FORCED, NGRAM),
}
"""Options that rows take in turn, so that steps run more tokens of some rows than mlx-lm's do."""


def figures() -> Iterator[kit.Figure]:
    """Counts and bytes; nothing is timed."""
    for name in kit.TINY:
        for what, case in cases(kit.tiny(name)).items():
            if what in RAGGED:
                continue
            own, other = (count(tokens, case) for tokens in (case.ours(), case.theirs()))
            text = f"{own.primitives} and {own.kernels} kernels; mlx-lm {other.primitives}"
            text += f" and {other.kernels}"
            most = int(other.primitives + (4 if what in ALONE else 0.1 * other.primitives))
            yield kit.at_most(f"{name}, {what}: primitives", own.primitives, most, text)
        for what, case in long_cases(name).items():
            share, peer = (beyond(tokens, case) for tokens in (case.ours(), case.theirs()))
            what = f"{name}, {what}: memory of steps beyond what is held, over a layer's KV"
            limit = max(COPIED, round(1.1 * peer, 2))
            yield kit.at_most(what, share, limit, f"{share:.2f}, mlx-lm's {peer:.2f}")


def long_cases(name: str) -> dict[str, kit.Case]:
    """Cases whose KV is large compared with everything else that a step needs. States of recurrent
    layers, which are kept at each place of a forced run, are too large for that."""
    window = {"sliding_window": 1024} if name == "gemma3_text" else {}
    found = cases(kit.tiny(name, **window), LONG)
    if name == "qwen3_next":
        found = {what: case for what, case in found.items() if "forced" not in what}
    return found


def cases(lm: mlxgen.LanguageModel, length: int = LENGTH) -> dict[str, kit.Case]:
    """The cases whose steps are counted; prompts differ in length."""

    def batch(rows: int, *each: Mapping[str, Any]) -> kit.Case:
        prompts = [kit.prompt_of(length + 3 * i, i) for i in range(rows)]
        return kit.Case(lm, prompts, each=each)

    alone = kit.prompt_of(length, 0)
    found = {what: kit.Case(lm, alone, each=[options]) for what, options in ALONE.items()}
    found |= {what: batch(rows, options) for what, (rows, options) in TOGETHER.items()}
    found |= {what: batch(5, *each) for what, each in RAGGED.items()}
    if lm.name != "qwen3_next":  # mlx-lm has no drafts there
        options: Any = {"num_draft_tokens": 3}
        peers = {**options, "draft_model": lm.model}
        found[DRAFTED] = kit.Case(lm, alone, each=[{**options, "draft": lm}], peers=peers)
    return found


DRAFTED = "single, a draft model"


class Count(NamedTuple):
    """The number of primitives of a step, and of those that launch a kernel."""

    primitives: int
    kernels: int


def count(tokens: kit.Made, case: kit.Case) -> Count:
    """The primitives of a step of a case, or of many with a draft model."""
    found: list[str] = []

    def look(arrays: list[mx.array]) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "graph.dot"
            mx.export_to_dot(str(path), *arrays)
            found.extend(_LABEL.findall(path.read_text(encoding="utf-8")))

    with steps_of(tokens, case.rows) as step, _kernels_of_a_gpu() as made, _submitted(look):
        for _ in range(24 if case.peers else 1):
            step()
    return Count(len(found), len(found) - sum(name in VIEWS for name in found) + len(made))


def beyond(tokens: kit.Made, case: kit.Case) -> float:
    """The most bytes that steps take beyond what was held before them, over the bytes of one
    layer's keys and values."""
    places = sum(map(len, case.prompt)) if case.rows > 1 else len(case.prompt)  # type: ignore[arg-type]
    with steps_of(tokens, case.rows) as step:
        mx.synchronize()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        for _ in range(WARM):
            step()
        return (mx.get_peak_memory() - before) / (places * KV_BYTES)


@contextmanager
def steps_of(tokens: kit.Made, rows: int) -> Iterator[Callable[[], None]]:
    """Yields a function that takes the next token of each row, after the first ones."""

    def step() -> None:
        for _ in range(rows):
            next(tokens)

    try:
        for _ in range(WARM):
            step()
        yield step
    finally:
        tokens.close()


@contextmanager
def _submitted(look: Callable[[list[mx.array]], None]) -> Iterator[None]:
    """Passes arrays that are submitted or waited for to ``look``, while they are still a graph."""

    def after(evaluate: Callable[..., None]) -> Callable[..., None]:
        def seen(*trees: Any) -> None:
            arrays = list(arrays_in(trees))
            if arrays:
                look(arrays)
            evaluate(*trees)

        return seen

    with (
        mock.patch.object(mx, "eval", after(mx.eval)),
        mock.patch.object(mx, "async_eval", after(mx.async_eval)),
    ):
        yield


@contextmanager
def _kernels_of_a_gpu() -> Iterator[list[mx.array]]:
    """Replaces each function that is one kernel on a GPU by one primitive, whose result is wrong.

    Yields the list of these primitives.
    """
    made: list[mx.array] = []

    def single(x: mx.array, *others: Any) -> mx.array:
        inputs = [each for each in others if isinstance(each, mx.array)]
        made.append(mx.depends(x, inputs or [x]))
        return made[-1]

    def norm(x: mx.array, weight: mx.array | None, *rest: Any, **_: Any) -> mx.array:
        return single(x, weight, *rest)

    def rope(x: mx.array, dims: int, *, offset: Any, freqs: Any = None, **_: Any) -> mx.array:
        return single(x, offset, freqs)

    def attention(q: mx.array, k: mx.array, v: mx.array, **options: Any) -> mx.array:
        return single(q, k, v, options.get("mask"), options.get("sinks"))

    with (
        mock.patch.object(mx.fast, "rms_norm", norm),
        mock.patch.object(mx.fast, "layer_norm", norm),
        mock.patch.object(mx.fast, "rope", rope),
        mock.patch.object(mx.fast, "scaled_dot_product_attention", attention),
    ):
        yield made
