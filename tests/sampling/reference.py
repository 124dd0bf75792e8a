"""What sampling means, written again in NumPy and float64, and batches in which every kind of row
is there."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from mlxgen.sampling import CANDIDATES, Change, Draw, DrawRow, Lookback, SamplingSettings, Want
from mlxgen.sampling.race import chance

TABLE = Path(__file__).parents[1] / "data" / "sampling.jsonl"
Floats = npt.NDArray[np.float64]
SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.2, 1.0, 1.9]),
    top_p=st.sampled_from([1.0, 1.0, 0.999]) | st.floats(0.01, 1),
    top_k=st.sampled_from([0, 0, 127, 128, 129, 400]) | st.integers(0, 200),
    min_p=st.just(0.0) | st.floats(0, 1),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 0.5, 2.0]),
    min_k=st.sampled_from([-1.0, -1.0, 0.0, 45.0, 1e6]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.001, 0.004, 0.008]) | st.floats(0, 0.5),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, 119), st.floats(-5, 5), max_size=4),
)
UNCHANGED: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
}
"""With these, logits are drawn from as they are."""


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def reference(
    logits: npt.NDArray[np.floating],
    settings: SamplingSettings,
    *,
    prompt: Sequence[int] = (),
    generated: Sequence[int] = (),
    allowed: npt.NDArray[np.bool_] | None = None,
    xtc: bool = False,
    special: Sequence[int] = (),
    target: float | None = None,
) -> Floats:
    """The final distribution [vocab]; ``xtc``: whether this draw excludes top choices; ``target``:
    the probability near which tokens are preferred."""
    x = np.array(logits, dtype=np.float64)
    for token, bias in settings.logit_bias.items():
        x[token] += bias
    for token in {*prompt, *generated}:
        penalty = settings.repetition_penalty
        x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
    for token, count in Counter(generated).items():
        x[token] -= settings.presence_penalty + count * settings.frequency_penalty
    floor, _ = floor_of(x, settings)
    if allowed is not None:
        x[~allowed] = -np.inf
    if settings.temperature == 0:
        return softmax(x)
    if settings.top_p < 1:
        x = keep_top_p(x, settings.top_p)
    if settings.min_p > 0:
        x = np.where(x >= x.max() + math.log(settings.min_p), x, -np.inf)
    x = np.where(x >= x.max() + floor, x, -np.inf)
    if xtc:
        probs = softmax(x)
        over = np.flatnonzero(probs > settings.xtc_threshold)
        if len(over):
            out = probs > probs[over].min()
            out[list(special)] = False
            x[out] = -np.inf
    if 0 < settings.top_k < len(x):
        order = np.lexsort((np.arange(len(x)), -x))
        x[order[settings.top_k :]] = -np.inf
    shares = softmax((x - x.max()) / settings.temperature)
    if target is None:
        return shares
    distance = np.abs(shares - target) / 0.2
    weights = np.where(shares > 0, np.exp(-10 * distance**2 / (1 + distance)), 0.0)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def reference_and_whether_sure(
    logits: npt.NDArray[np.floating], settings: SamplingSettings, **options: Any
) -> tuple[Floats, bool]:
    """The reference, and whether limits a little further would leave the same tokens.

    Where they would not, float32 may rightly disagree with float64.
    """
    expected = reference(logits, settings, **options)
    nearby = [reference(logits, _moved(settings, by), **options) for by in (-5e-6, 5e-6)]
    sure = floor_of(np.array(logits, dtype=np.float64), settings)[1]
    return expected, sure and all(np.array_equal(each > 0, expected > 0) for each in nearby)


def _moved(settings: SamplingSettings, by: float) -> SamplingSettings:
    return replace(
        settings,
        top_p=min(settings.top_p + by, 1.0) if settings.top_p < 1 else 1.0,
        min_p=min(settings.min_p * (1 + by), 1.0),
        top_n_sigma=settings.top_n_sigma * (1 + by),
        xtc_threshold=min(settings.xtc_threshold * (1 + by), 0.5),
    )


def floor_of(x: Floats, settings: SamplingSettings) -> tuple[float, bool]:
    """How far below the highest a token may lie by top-nσ and min-k, and whether the steepest drop
    is steeper than any other by more than rounding."""
    finite, floor, sure = x[np.isfinite(x)], -math.inf, True
    if settings.top_n_sigma > 0:
        floor = -settings.top_n_sigma * float(finite.std())
    if settings.min_k >= 0:
        ordered = np.sort(np.concatenate([finite, np.full(len(x) - len(finite), finite.min())]))
        ordered = ordered[::-1]
        drops = -np.diff(ordered) / np.arange(1, len(ordered))
        steepest = np.sort(drops)[::-1]
        sure = bool(steepest[0] > steepest[1] * (1 + 1e-4))
        least = settings.min_k / (ordered[0] - ordered[-1] + 1e-8)
        sure = sure and abs(least - round(least)) > 1e-3
        kept = min(max(int(drops.argmax()) + 1, int(least)), len(ordered))
        floor = max(floor, float(ordered[kept - 1] - ordered[0]) - 1e-6)
    return floor, sure


def keep_top_p(x: Floats, top_p: float) -> Floats:
    ordered = np.sort(x)[::-1]
    before = np.cumsum(softmax(ordered)) - softmax(ordered)
    return np.where(x >= ordered[np.flatnonzero(before < top_p)[-1]], x, -np.inf)


def excludes(row: DrawRow) -> bool:
    """Whether a row's draw excludes top choices."""
    return chance(row.seed, row.position, row.attempt).xtc < row.settings.xtc_probability


def spread(vocab: int, seed: int, *, scale: float = 2.0) -> npt.NDArray[np.float32]:
    """Logits [vocab] like a language model's: a few high, a long low tail."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(4, vocab) * scale).astype(np.float32)


def words_of(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Allowed tokens [vocab] as packed words."""
    bits = np.zeros(-(-len(allowed) // 32) * 32, dtype=np.uint8)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.int32)


def changes_of(
    settings: SamplingSettings, prompt: Iterable[int], generated: Iterable[int]
) -> tuple[Change, ...]:
    """What the penalties of settings change after these tokens."""
    lookback = Lookback(list(prompt), settings, lambda token: b"")
    for token in generated:
        lookback.advance(token)
    change = lookback.penalties()
    return () if change is None else (change,)


def rows_for(settings: SamplingSettings, count: int, seed: int = 0) -> list[DrawRow]:
    """One row for each position from 0 on."""
    return [DrawRow(settings, seed, position) for position in range(count)]


def repeat(logits: npt.NDArray[np.floating], count: int) -> mx.array:
    return mx.broadcast_to(mx.array(logits)[None], (count, len(logits)))


def listed(array: mx.array) -> list[Any]:
    """The numbers of an array, as lists."""
    return list(np.array(array).tolist())


def is_likely(observed: npt.NDArray[np.int64], expected: Floats) -> bool:
    """Pearson's chi-square test at one in 100,000; ``expected`` are probabilities.

    Bins that expect less than 8 are joined; the quantile is Wilson and Hilferty's.
    """
    total = observed.sum()
    order = np.argsort(expected)
    seen, wished = [0.0], [0.0]
    for count, probability in zip(observed[order], expected[order], strict=True):
        if wished[-1] >= 8:
            seen.append(0.0)
            wished.append(0.0)
        seen[-1] += count
        wished[-1] += probability * total
    freedom = len(seen) - 1
    if freedom == 0:
        return True
    statistic = sum((s - w) ** 2 / w for s, w in zip(seen, wished, strict=True))
    normal = 4.2649  # exceeded by one in 100,000
    term = 2 / (9 * freedom)
    return bool(statistic < freedom * (1 - term + normal * math.sqrt(term)) ** 3)


# Batches

EVERYTHING = Want(prob=True, candidates=CANDIDATES, logprob=True, top=5)
SPECIAL = [2, 9]


def options_for(law: str) -> list[dict[str, Any]]:
    """The settings with which something is tried."""
    lines = map(json.loads, TABLE.read_text(encoding="utf-8").splitlines())
    found = [line["options"] for line in lines if line["law"] == law]
    for each in found:
        if "logit_bias" in each:
            each["logit_bias"] = {int(id): bias for id, bias in each["logit_bias"].items()}
    return found


MIXED = options_for("batches")


def mixed_rows(vocab: int, seed: int = 0) -> list[DrawRow]:
    """A row of every kind, every third with a mask, some with a temperature of their own."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, options in enumerate(MIXED):
        settings = SamplingSettings(**options)
        before, after = rng.integers(0, vocab, 30 + i).tolist(), rng.integers(0, vocab, 9).tolist()
        changes = changes_of(settings, before, after)
        if i % 4 == 1:  # and others, of other tokens
            ids, less = rng.permutation(vocab)[: i + 1], rng.random(i + 1) * 5
            changes += (Change(ids, np.ones(i + 1), less),)
        rows.append(
            DrawRow(
                settings,
                seed=seed * 100 + i,
                position=i * 7,
                attempt=i % 2,
                words=words_of(rng.random(vocab) < 0.5) if i % 3 == 0 else None,
                changes=changes,
                temperature=1.3 if i == 2 else None,
                target=options.get("adaptive_target"),
            )
        )
    return rows


def fields_of(draw: Draw) -> dict[str, mx.array]:
    return {name: array for name, array in draw._asdict().items() if array is not None}


def assert_same(left: Draw, right: Draw) -> None:
    """The same tokens, and nearly the same numbers, in every field that both have."""
    first, second = fields_of(left), fields_of(right)
    for name in first.keys() & second.keys():
        one, other = np.array(first[name]), np.array(second[name])
        assert np.allclose(one, other, rtol=1e-4, atol=1e-7), name


def logits_for(vocab: int, count: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.stack([spread(vocab, seed) for seed in range(count)])).astype(dtype)
