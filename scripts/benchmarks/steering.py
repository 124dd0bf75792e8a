"""What filters, stops and hooks cost, and what taking tokens back costs.

Owns the measurements of constrained decoding. Must never know how filters work. Invariant:
a cost is given for each forward pass, as forced runs change how many tokens one brings.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlxgen
from mlxgen.filters import Constraint, Filter, Replay, tokens_of
from mlxgen.tokens import Vocabulary

from .alternate import Comparison, Spread, compare, measure
from .single import PROMPT, timed

LONG = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 2000}

RECORDS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "city": {"type": "string", "maxLength": 30},
        },
        "required": ["name", "age", "city"],
        "additionalProperties": False,
    },
    "order": {
        "type": "object",
        "properties": {
            "item": {"enum": ["book", "lamp", "chair", "kettle", "umbrella"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 99},
            "paid": {"type": "boolean"},
            "notes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        },
        "required": ["item", "count", "paid", "notes"],
        "additionalProperties": False,
    },
    "address": {
        "type": "object",
        "properties": {
            "street": {"type": "string", "maxLength": 40},
            "number": {"type": "string", "pattern": "^[0-9]{1,4}[a-z]?$"},
            "postcode": {"type": "string", "pattern": "^[0-9]{4} [A-Z]{2}$"},
            "country": {"enum": ["Netherlands", "Belgium", "Germany", "France"]},
        },
        "required": ["street", "number", "postcode", "country"],
        "additionalProperties": False,
    },
}


def read_text(result: mlxgen.PostSamplingResult) -> None:
    """A hook that looks at the text and never minds."""
    result.resample = "\0" in result.text_after


def read_probability(result: mlxgen.PostSamplingResult) -> None:
    """A hook that looks at the token's probability and never minds."""
    result.resample = result.sampled_prob < 0.0


def overhead(
    lm: mlxgen.LanguageModel,
    hook: Callable[[mlxgen.PostSamplingResult], None],
    passes: int,
    turns: int,
) -> Comparison:
    """Seconds a forward pass with a schema, two stops and a hook, against none of them."""

    def plain() -> float:
        return per_pass(lm, passes)

    def steered() -> float:
        return per_pass(
            lm,
            passes,
            filters=[mlxgen.JsonSchema(LONG)],
            stop=["\n\nUser:", "<|never|>"],
            hooks=[hook],
        )

    return compare(steered, plain, turns)


def free_text(lm: mlxgen.LanguageModel, tokens: int, turns: int) -> Comparison:
    """Seconds of a stream under an expression that any text matches, against one without."""

    def run(**options: Any) -> float:
        stream = lm.stream(PROMPT, max_tokens=tokens, ignore_eos=True, seed=1, **options)
        return timed(iter(stream), tokens)

    return compare(lambda: run(filters=[mlxgen.Regex("(.|\n)*")]), run, turns)


_SETTLED = 40  # tokens after which a stream knows whether filters force runs


def per_pass(lm: mlxgen.LanguageModel, passes: int, **options: Any) -> float:
    """Seconds for each forward pass of a stream that has been running for a while."""
    stream = lm.stream(PROMPT, max_tokens=None, ignore_eos=True, seed=1, **options)
    with stream:
        while stream.usage.completion_tokens < _SETTLED:
            next(stream)
        start, before = time.perf_counter(), stream.usage.forward_passes
        while stream.usage.forward_passes < before + passes:
            next(stream)
        done = stream.usage.forward_passes - before
        return (time.perf_counter() - start) / done


def walk(constraint: Constraint, seed: int = 0) -> Callable[[], object]:
    """A work that computes one mask; every call of it first takes a random allowed token."""
    chance = random.Random(seed)

    def work() -> float:
        if constraint.ended():
            constraint.rewind(0)
        mask = constraint.mask()
        allowed = [int(t) for t in tokens_of(mask)] if mask is not None else [65]
        ordinary = [t for t in allowed if t not in constraint.vocabulary.eos]
        constraint.advance(chance.choice(ordinary))
        start = time.perf_counter()
        constraint.mask()
        return time.perf_counter() - start

    return work


def mask_times(
    vocabulary: Vocabulary, make: Callable[[dict[str, Any]], Any], count: int
) -> tuple[float, float]:
    """Median and 99th percentile of a mask in microseconds, over the bench's schemas."""
    times: list[float] = []
    for schema in RECORDS.values():
        work = walk(Constraint([make(schema)], vocabulary, vocabulary.size))
        times += [float(str(work())) * 1e6 for _ in range(count)]
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


class ForwardOnly:
    """Any filter without its verbs for going back: what replay is the last resort for."""

    def __init__(self, inner: Filter) -> None:
        self._inner = inner
        self.fill, self.advance = inner.fill, inner.advance
        self.can_end, self.reset = inner.can_end, inner.reset


class CopyOnly(ForwardOnly):
    """Any filter that can be copied but not rewound."""

    def fork(self) -> CopyOnly:
        return CopyOnly(self._inner.fork())  # type: ignore[attr-defined]


def rewind_times(
    vocabulary: Vocabulary, wrap: Callable[[Filter], Filter], length: int, back: int = 8
) -> Spread:
    """Microseconds to rewind a filter by ``back`` tokens after ``length`` tokens of history."""
    bound = mlxgen.Regex("([a-z]+ )*").bind(vocabulary, vocabulary.size)
    part = Replay(wrap(bound))
    letters = [vocabulary.token_of(bytes([b])) for b in b"abcdefgh "]
    run = [letters[i % 9] for i in range(length)]
    for token in run:
        assert token is not None
        part.advance(token)
    times = []
    for _ in range(60 if length < 1000 else 20):
        times.append(measure(lambda: part.rewind(length - back)) * 1e6)
        for token in run[-back:]:
            assert token is not None
            part.advance(token)
    return Spread.of(times)


def passes_per_token(
    lm: mlxgen.LanguageModel, prompts: Sequence[tuple[Any, dict[str, Any]]], most: int = 160
) -> float:
    """Forward passes for each generated token over records."""
    passes = tokens = 0
    for prompt, schema in prompts:
        # The spaces that json.dumps and most models write, and no others: these are forced.
        spec = mlxgen.JsonSchema(schema, whitespace=None, separators=(", ", ": "))
        result = lm.generate(prompt, filters=[spec], max_tokens=most, seed=3)
        if result.finish_reason == "filter":
            json.loads(result.text)
        passes += result.usage.forward_passes
        tokens += result.usage.completion_tokens
    return passes / tokens
