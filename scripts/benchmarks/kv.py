"""Quantised KV against that of floats: bytes, speed of a batch, and what it changes.

Owns these measurements. Must never know how keys and values are quantised. Invariant: both sides
are one model, and what differs is its KV alone.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import mlxgen
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler

from .alternate import Comparison, compare
from .batch import WARM_STEPS, prompt_of

ROWS = 16


def quantised(lm: mlxgen.LanguageModel, bits: int, start: int = 0) -> mlxgen.LanguageModel:
    """The same model with its KV in so many bits, from position ``start`` on."""
    return mlxgen.LanguageModel(
        lm.model,
        lm.tokenizer,
        name=lm.name,
        config=lm.config,
        kv_bits=bits,
        kv_quant_start=start,
        draft="off",
    )


class Found(NamedTuple):
    """Of 16 rows: bytes over those of floats, and seconds of the same steps."""

    share: float
    seconds: Comparison


def rows(
    lm: mlxgen.LanguageModel, other: mlxgen.LanguageModel, length: int, steps: int, turns: int
) -> Found:
    """Rows with ``length`` tokens each, whose prompts do not count, on both sides."""
    ours, theirs = _Rows(lm, length), _Rows(other, length)
    share = ours.nbytes / theirs.nbytes
    return Found(share, compare(lambda: ours.steps(steps), lambda: theirs.steps(steps), turns))


class _Rows:
    """Sixteen sequences that have run their prompts."""

    def __init__(self, lm: mlxgen.LanguageModel, length: int) -> None:
        self.scheduler = Scheduler(lm, Limits(keep_prefixes=False))
        options = {"max_tokens": None, "ignore_eos": True, "temperature": 0.7}
        for i in range(ROWS):
            prompt = prompt_of(length, i, lm.vocab_size)
            self.scheduler.submit(lm.prepare(prompt, Options.of({**options, "seed": i})))
        while self.scheduler.stats().running < ROWS:
            self.scheduler.step()
        self.steps(WARM_STEPS)
        self.nbytes = self.scheduler.stats().kv_bytes

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.scheduler.step()


class Change(NamedTuple):
    """The largest difference of two models' logits, and the standard deviation of all of these."""

    largest: float
    deviation: float


def logits_changed(lm: mlxgen.LanguageModel, other: mlxgen.LanguageModel, length: int) -> Change:
    """Made-up tokens through both, in one pass."""
    tokens = mx.array([prompt_of(length, 1, lm.vocab_size)])
    ours, theirs = (np.array(each.model(tokens, cache=each.make_cache())) for each in (lm, other))
    return Change(float(np.abs(ours - theirs).max()), float(theirs.std()))


# ---- perplexity


def perplexity(lm: mlxgen.LanguageModel, count: int) -> float:
    """Of the demo model's answers to ``count`` prompts that training never shows."""
    loss, answered = 0.0, 0
    for prompt, answer in _held_out(lm.tokenizer, count):
        logits = lm.model(mx.array([[*prompt, *answer[:-1]]]), cache=lm.make_cache())[0]
        each = nn.losses.cross_entropy(logits[len(prompt) - 1 :], mx.array(answer))
        loss += float(np.array(each).sum())
        answered += len(answer)
    return math.exp(loss / answered)


@cache
def _held_out(tokenizer: Any, count: int) -> list[tuple[list[int], list[int]]]:
    """Passages to copy, records to make of sentences, and stories to tell: their tokens."""
    from demo_model import copying, records, stories  # what trains the demo model, in scripts

    makers = (
        copying.exam,
        lambda rng: records.exam(rng, rng.choice(records.SHAPES), records.KNOWN)[0],
        stories.training,
    )
    chance = random.Random("perplexity")
    made = [makers[i % len(makers)](chance) for i in range(count)]
    return [
        tuple(tokenizer.encode(text, add_special_tokens=False) for text in (d.prompt(), d.reply()))
        for d in made
    ]
