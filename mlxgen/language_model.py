"""A model and its tokenizer, ready to generate.

Owns what is true of a loaded model whatever it generates: its vocabulary, the width of
its logits, its context, how its caches are made. Must never know where it came from
(``load`` does) or how a step works (``engine`` does). Invariant: everything that can be
wrong with a request is found here, before anything runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Unpack

import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from .engine.assembly import assemble, xtc_special
from .engine.chunk import Result, fold
from .engine.kv import KV, LayerCache
from .engine.lane import Lane
from .engine.options import GenerationOptions, Options
from .engine.prompt import AnyPrompt, Prompt
from .engine.stream import Stream
from .errors import OptionError, PromptError
from .sampling import Sampler
from .tokens import Vocabulary

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "n_positions",
    "n_ctx",
)


class LanguageModel:
    """A pair from ``mlx_lm.load``, with everything that mlxgen does with it.

    - ``model``, ``tokenizer``: the pair itself, usable with mlx-lm side by side.
    - ``name``: what to call it. ``config``: its ``config.json``, where known.
    - ``max_context``: the most tokens that prompt and answer may have together; by default
      what the configuration says, ``None`` where it says nothing.
    - ``kv_bits`` (2, 3, 4, 5, 6 or 8) and ``kv_group_size``: quantise the KV cache of plain
      attention layers.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        max_context: int | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        is_demo: bool = False,
    ) -> None:
        if kv_bits not in (None, 2, 3, 4, 5, 6, 8):
            raise OptionError("kv_bits", f"{kv_bits} is not one of 2, 3, 4, 5, 6, 8")
        self.model = model
        self.vocabulary = Vocabulary.of(tokenizer)
        self.tokenizer = self.vocabulary.tokenizer
        self.name = name or type(model).__module__.rpartition(".")[2]
        self.config: Mapping[str, Any] = config or vars(getattr(model, "args", None) or object)
        self.max_context = max_context or _context_of(self.config)
        self.is_demo = is_demo
        self._kv_bits = kv_bits
        self._kv_group_size = kv_group_size

    def __repr__(self) -> str:
        return (
            f"<LanguageModel {self.name}: {self.vocab_size} logits, {self.vocabulary.size} tokens>"
        )

    @cached_property
    def vocab_size(self) -> int:
        """The width of the logits; the tokenizer's vocabulary may be smaller or larger."""
        return int(self.model(mx.array([[0]]), cache=self.make_cache()).shape[-1])

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler that all generations of this model share."""
        return Sampler(self.vocab_size, xtc_special=xtc_special(self.vocabulary))

    def make_cache(self) -> list[LayerCache]:
        """Empty caches for one sequence, one for each layer."""
        caches = make_prompt_cache(self.model)
        if self._kv_bits is None:
            return list(caches)
        return [
            QuantizedKVCache(self._kv_group_size, self._kv_bits) if type(c) is KVCache else c
            for c in caches
        ]

    def stream(self, prompt: AnyPrompt, **options: Unpack[GenerationOptions]) -> Stream:
        """Generate; returns an iterator of ``Chunk`` that can be rewound and forked.

        ``prompt`` is raw text, a list of token ids, or a list of chat messages. See
        ``Options`` for the options. Raises ``OptionError``, ``PromptError`` or
        ``GrammarError`` for what is wrong with them, before anything runs.
        """
        return Stream(self._lane(prompt, Options.of(options)))

    def generate(self, prompt: AnyPrompt, **options: Unpack[GenerationOptions]) -> Result:
        """Generate to the end; the ``Result`` folds the chunks that ``stream`` gives."""
        checked = Options.of(options)
        with Stream(self._lane(prompt, checked)) as stream:
            chunks = tuple(stream)
            return fold(chunks, stream.usage, checked.prefix)

    def _lane(self, given: AnyPrompt, options: Options) -> Lane:
        options.check_vocabulary(self.vocab_size)
        prompt = Prompt.of(given, self.vocabulary)
        budget = self._budget(prompt, options)
        row = assemble(
            prompt,
            options,
            self.vocabulary,
            self.vocab_size,
            budget=budget,
            seed=options.seed if options.seed is not None else secrets.randbits(63),
            kv=KV(self.make_cache),
        )
        return Lane(self.model, row, self.sampler)

    def _budget(self, prompt: Prompt, options: Options) -> int:
        wanted = options.max_tokens if options.max_tokens is not None else 1 << 40
        if self.max_context is None:
            return wanted
        room = self.max_context - len(prompt.tokens)
        if room <= len(options.prefix):
            given = f"{len(prompt.tokens)} tokens"
            if options.prefix:
                given += f" and a prefix of {len(options.prefix)}"
            raise PromptError(
                f"the prompt has {given}, but the context of {self.name} holds "
                f"{self.max_context} with at least one to generate; shorten the prompt"
            )
        return min(wanted, room)


def _context_of(config: Mapping[str, Any]) -> int | None:
    nested = config.get("text_config")
    for level in (config, nested if isinstance(nested, Mapping) else {}):
        for key in _CONTEXT_KEYS:
            value = level.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return None
