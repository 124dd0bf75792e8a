"""Drafts: passes a token, speed against mlx-lm's speculative decoding, and what they cost in vain.

Owns the measurements of speculation. Must never know how drafts are made. Invariant: both
sides get the same models, prompts and greedy settings, and generate as many tokens.
"""

from __future__ import annotations

import random
from importlib import resources
from pathlib import Path
from typing import Any

from mlx_lm import stream_generate

import mlxgen
from mlxgen.engine.history import History
from mlxgen.engine.request.request import Request
from mlxgen.engine.speculation.appetite import Appetite
from mlxgen.engine.speculation.guess import Guess

from .alternate import Comparison, compare
from .single import PROMPT, timed


def demo_pair() -> tuple[mlxgen.LanguageModel, mlxgen.LanguageModel]:
    """The demo model and its draft."""
    return mlxgen.load(), mlxgen.load(Path(str(resources.files("mlxgen") / "demo" / "draft")))


def chat(text: str) -> mlxgen.Chat:
    return mlxgen.Chat([{"role": "user", "content": text}], template={"enable_thinking": False})


COPY = chat(
    "Repeat this text: The red fox went to the river and saw a small boat. "
    "The red fox went to the river."
)
STORY = chat("Tell me a story about a fox.")


def passes(lm: mlxgen.LanguageModel, prompt: Any, **options: Any) -> float:
    """Forward passes of the main model for each generated token."""
    result = lm.generate(prompt, **options)
    return result.usage.forward_passes / len(result.tokens)


def record_passes(lm: mlxgen.LanguageModel, records: list[tuple[Any, Any]], draft: Any) -> float:
    """The same over JSON records with their schemas, forced runs included."""
    total = tokens = 0
    for prompt, schema in records:
        spec = mlxgen.JsonSchema(schema, whitespace=None, separators=(", ", ": "))
        result = lm.generate(prompt, filters=[spec], max_tokens=160, temperature=0, draft=draft)
        total += result.usage.forward_passes
        tokens += len(result.tokens)
    return total / tokens


def against_mlx_lm(
    lm: mlxgen.LanguageModel, draft: mlxgen.LanguageModel, prompt: Any, tokens: int, turns: int
) -> Comparison:
    """Seconds for the tokens after the first one, both with the draft model, greedy."""
    ids = list(lm.prepare(prompt, mlxgen.engine.Options.of({})).history)

    def ours() -> float:
        options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return timed(lm.stream(ids, draft=draft, **options), tokens)

    def theirs() -> float:
        lm.tokenizer.eos_token_ids = []
        try:
            stream = stream_generate(
                lm.model,
                lm.tokenizer,
                ids,
                max_tokens=tokens,
                draft_model=draft.model,
                num_draft_tokens=3,
            )
            return timed(stream, tokens)
        finally:
            lm.tokenizer.eos_token_ids = list(lm.vocabulary.eos)

    return compare(ours, theirs, turns)


class Wrong:
    """A drafter whose tokens never stand: what drafting costs in vain."""

    def __init__(self, vocab_size: int) -> None:
        self._chance = random.Random(0)
        self._size = vocab_size

    most = 8

    def propose(self, request: Request, count: int) -> Guess | None:
        return Guess([self._chance.randrange(self._size) for _ in range(count)])

    def missing(self, history: History) -> int:
        return 0

    def follow(self, history: History, count: int) -> None:
        """There is no model."""

    nbytes = 0

    def nbytes_at(self, length: int) -> int:
        return 0

    def fork(self) -> Wrong:
        return self

    def restart(self) -> None:
        """It holds nothing."""


def in_vain(lm: mlxgen.LanguageModel, tokens: int, turns: int) -> Comparison:
    """Seconds with drafts that never stand, against none."""
    options: dict[str, Any] = {
        "max_tokens": tokens,
        "temperature": 0.7,
        "ignore_eos": True,
        "seed": 1,
    }

    def drafting() -> float:
        stream = lm.stream(PROMPT, **options)
        stream._handle.drafter = Wrong(lm.vocab_size)
        stream._handle.appetite = Appetite(Wrong.most)
        return timed(stream, tokens)

    return compare(drafting, lambda: timed(lm.stream(PROMPT, **options), tokens), turns)
