"""Primitives in the graph of a decode step: ours, and mlx-lm's for the same model.

Owns how graphs are counted. A GPU launches at least one kernel for each primitive that is not a
view, so fewer of them are speed on any GPU, and they can be counted without one. What a GPU has a
kernel for counts as one primitive, although a CPU computes it with many.

Also counts the bytes of keys and values that a step copies, beside those that it reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import mlx.core as mx

import mlxgen
from mlxgen.engine.kv.layers import arrays_in

from . import kit
from .kit import (
    TINY,
    Figure,
    at_most,
    ours,
    ours_together,
    prompt_of,
    theirs,
    theirs_together,
    tiny,
)

WARM = 12  # steps until all rows run, and the look-ahead with them
LENGTH = 70  # tokens of the shortest prompt
KV_PLACES = 64  # the least that keys and values have on their third axis; states have fewer
VIEWS = {"AsStrided", "Broadcast", "CustomTransforms", "Depends", "ExpandDims", "Flatten"}
VIEWS |= {"Reshape", "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"}
UPDATES = {"SliceUpdate", "DynamicSliceUpdate", "Scatter", "ScatterAxis"}
READS = {"Matmul", "AddMM", "QuantizedMatmul", "ScaledDotProductAttention"}
_LABEL = re.compile(r'label ="([^"]*)"')


def figures() -> Iterator[Figure]:
    """Nothing is timed here."""
    for name in TINY:
        lm = tiny(name)
        cases = {**ALONE, **TOGETHER, **RAGGED}
        if name != "qwen3_next":  # mlx-lm has no drafts there
            cases["single, a draft model"] = DRAFTED
        for what, case in cases.items():
            if what not in RAGGED:
                own, other = counts(lm, case)
                more = 4 if what in ALONE else 0.1 * other.primitives
                text = f"{own.primitives} and {own.kernels} kernels; mlx-lm {other.primitives}"
                text += f" and {other.kernels}"
                most = int(other.primitives + more)
                yield at_most(f"{name}, {what}: primitives", own.primitives, most, text)
            share, peer = (share_copied(lm, side) for side in case[:2])
            found = f"{100 * share:.0f} %, mlx-lm's {100 * peer:.0f} %"
            what = f"{name}, {what}: KV copied, of that read"
            yield Figure(what, found, "at most mlx-lm's", share <= peer, share)
    lm, rows, length = tiny("llama"), 4, 2_900
    layer = rows * length * 2 * 4 * 64  # keys and values of 64 numbers of 4 bytes
    share, peer = (
        memory_beyond(lm, made, rows, length) / layer for made in (many_of_ours, many_of_theirs)
    )
    what = "llama, 4 rows of 2,900 tokens: memory of steps beyond what is held, over a layer's KV"
    yield at_most(what, share, 0.25, f"{share:.2f}, mlx-lm's {peer:.2f}")


class Count(NamedTuple):
    """The primitives of a step, and those of them that launch a kernel."""

    primitives: int
    kernels: int


def count(steps: Callable[[], object]) -> Count:
    """The primitives of what ``steps`` submits."""
    found: list[str] = []
    with kernels_of_a_gpu() as made, _submitted(lambda arrays: found.extend(names(arrays))):
        steps()
    views = sum(name in VIEWS for name in found)
    return Count(len(found), len(found) - views + len(made))


def names(arrays: list[mx.array]) -> list[str]:
    """Those of the primitives in the graph that makes ``arrays``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        mx.export_to_dot(str(path), *arrays)
        return _LABEL.findall(path.read_text(encoding="utf-8"))


def traffic(step: Callable[[], object]) -> tuple[int, int]:
    """The bytes of keys and values that the next step which runs the model copies and reads.

    Updates of a buffer in place, as MLX makes them while nobody else holds it, copy nothing. Use
    what made the step no more: an export leaves arrays in the middle of its graph unevaluated.
    """
    copied = read = 0

    def look(arrays: list[mx.array]) -> None:
        nonlocal copied, read
        held: set[str] = set()

        def visit(entry: dict[str, Any]) -> None:
            nonlocal copied, read
            if entry["type"] == "constants":
                held.update(name for name, array in entry["constants"] if _is_kv(array))
            if entry["type"] != "primitive":
                return
            name, inputs = entry["name"], entry["inputs"]
            if name in READS or name == "Depends":
                # Attention: a stand-in for it looks at keys and values after its first input
                rest = inputs if name in READS else inputs[1:]
                read += sum(_bytes(each) for each in rest if each[0] in held)
            same = name in VIEWS or name in UPDATES
            if name in READS or not any(each[0] in held for each in inputs[: 1 if same else None]):
                return
            held.update(each[0] for each in entry["outputs"])
            copied += 0 if same else sum(map(_bytes, entry["outputs"]))

        mx.export_function(visit, lambda: arrays)

    mx.disable_compile()  # what was compiled cannot be exported
    try:
        with kernels_of_a_gpu(), mock.patch.object(mx, "contiguous", _copy):
            for _ in range(WARM):
                step()  # nothing is left of what was built before
            with _submitted(look):
                while not read:
                    step()
    finally:
        mx.enable_compile()
    return copied, read


def _copy(array: mx.array, *_: Any) -> mx.array:
    return array + 0  # a copy that can be exported


def _is_kv(array: mx.array) -> bool:
    return array.ndim == 4 and array.shape[2] >= KV_PLACES


def _bytes(node: tuple[str, tuple[int, ...], mx.Dtype]) -> int:
    return math.prod(node[1]) * node[2].size


@contextmanager
def _submitted(look: Callable[[list[mx.array]], None]) -> Iterator[None]:
    """Shows the arrays that are submitted or waited for, while they are a graph."""

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
def kernels_of_a_gpu() -> Iterator[list[mx.array]]:
    """Puts one primitive for each function that is one on a GPU; what it computes is wrong.

    The list has those that were made.
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


# ---- steps -------------------------------------------------------------------------------------

Steps: TypeAlias = AbstractContextManager[Callable[[], object]]
ANY = mlxgen.Regex("(.|\n)*")
FORCED = mlxgen.Regex("([0-9]abcdefgh)*")
MOST = 10_000  # tokens of mlx-lm's, which nobody waits for


@contextmanager
def steps_of(tokens: kit.Made, rows: int = 1) -> Iterator[Callable[[], object]]:
    """The next token of each row, after the first ones."""

    def step() -> None:
        for _ in range(rows):
            next(tokens)

    with closing(tokens):
        for _ in range(WARM):
            step()
        yield step


def ours_alone(lm: mlxgen.LanguageModel, **options: Any) -> Steps:
    return steps_of(ours(lm, prompt_of(LENGTH, 0), None, **options))


def theirs_alone(lm: mlxgen.LanguageModel, **options: Any) -> Steps:
    return steps_of(theirs(lm, prompt_of(LENGTH, 0), MOST, **options))


def many_of_ours(
    lm: mlxgen.LanguageModel, rows: int, *each: dict[str, Any], length: int = LENGTH
) -> Steps:
    """Prompts differ in length, and rows have the options by turns."""
    return steps_of(ours_together(lm, _prompts(rows, length), None, each or ({},)), rows)


def many_of_theirs(lm: mlxgen.LanguageModel, rows: int, *, length: int = LENGTH) -> Steps:
    return steps_of(theirs_together(lm.model, _prompts(rows, length), MOST), rows)


def _prompts(rows: int, length: int) -> list[list[int]]:
    return [prompt_of(length + 3 * i, i) for i in range(rows)]


# ---- cases -------------------------------------------------------------------------------------

Made: TypeAlias = Callable[[mlxgen.LanguageModel], Steps]
NGRAM = {"draft": "ngram", "num_draft_tokens": 3}


class Case(NamedTuple):
    """A kind of step of ours, mlx-lm's nearest one, and how many steps to count."""

    ours: Made
    theirs: Made
    steps: int = 1


def _rows(count: int, *each: dict[str, Any]) -> Case:
    return Case(lambda lm: many_of_ours(lm, count, *each), lambda lm: many_of_theirs(lm, count))


ALONE = {
    "single": Case(ours_alone, theirs_alone),
    "single, masks": Case(lambda lm: ours_alone(lm, filters=[ANY]), theirs_alone),
}
DRAFTED = Case(
    lambda lm: ours_alone(lm, draft=lm, num_draft_tokens=3),
    lambda lm: theirs_alone(lm, draft_model=lm.model, num_draft_tokens=3),
    steps=24,
)
"""Tokens with a draft model, which mlx-lm has for some architectures."""
TOGETHER = {
    "4 rows": _rows(4),
    "5 rows in 8 slots": _rows(5),
    "5 rows, masks": _rows(5, {"filters": [ANY]}),
}
RAGGED = {
    "5 rows, forced runs in every other": _rows(5, {"filters": [FORCED]}, {}),
    "5 rows, drafts in every other": _rows(5, NGRAM, {}),
    "5 rows, forced runs and drafts": _rows(5, {"filters": [FORCED]}, NGRAM),
}
"""Steps that run more tokens of some rows than mlx-lm's does."""


def counts(lm: mlxgen.LanguageModel, case: Case) -> tuple[Count, Count]:
    """The primitives of our steps, and of theirs."""
    found = []
    for side in (case.ours, case.theirs):
        with side(lm) as step:
            found.append(count(lambda: [step() for _ in range(case.steps)]))
    return found[0], found[1]


def share_copied(lm: mlxgen.LanguageModel, made: Made) -> float:
    """Bytes of keys and values that a step copies, over those that it reads."""
    with made(lm) as step:
        copied, read = traffic(step)
    return copied / read


def memory_beyond(
    lm: mlxgen.LanguageModel, made: Callable[..., Any], rows: int, length: int
) -> int:
    """The most bytes that steps of long rows take beyond what is held before them.

    It tells what no graph does: MLX copies a buffer that is to be updated in place while somebody
    else holds it, say a pass that has not ended.
    """
    with made(lm, rows, length=length) as step:
        mx.synchronize()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        for _ in range(WARM):
            step()
        return mx.get_peak_memory() - before
