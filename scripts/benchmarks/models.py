"""The models that are measured: random weights of real architectures, and tokenizers to match.

Owns their shapes. Must never know what is measured. Invariant: the same name and seed give
the same model; nothing is downloaded. They draft nothing unless they are told to.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mlxgen

from .architectures import random_model

WIDE = 151_936
SYLLABLES = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er")]
_SIGNS = ['{"', '":', '": "', '", "', '"}', "},", "},{", "[", '["', '"]', "]", '""', ", ", ": "]


def demo() -> mlxgen.LanguageModel:
    """The bundled model."""
    return mlxgen.load(draft="off")


def random_llama(
    vocab_size: int, hidden: int, layers: int, *, seed: int = 0, name: str = "random"
) -> mlxgen.LanguageModel:
    """A float32 Llama of random weights with a made-up tokenizer of ``vocab_size`` tokens."""
    model = random_model(
        "llama",
        seed,
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=3 * hidden,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    return mlxgen.LanguageModel(model, fake_tokenizer(vocab_size, seed), name=name, draft="off")


TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"sliding_window": 64},
    "qwen3_next": {},
}
"""Architectures: plain attention, sliding windows, and a recurrent state in every other layer."""


def tiny(name: str, layers: int = 4) -> mlxgen.LanguageModel:
    """A small model of random weights of an architecture of ``TINY``."""
    model = random_model(
        name,
        vocab_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=8192,
        **TINY[name],
    )
    return mlxgen.LanguageModel(model, fake_tokenizer(512), name=name, draft="off")


def fake_tokenizer(size: int, seed: int = 0) -> TokenizerWrapper:
    """A byte-level tokenizer of made-up words, numbers and JSON signs, with one end token."""
    names = byte_names()
    tokens: dict[str, int] = {names[b]: b for b in range(256)}

    def add(text: str) -> None:
        if len(tokens) < size - 1:
            tokens.setdefault("".join(names[b] for b in text.encode()), len(tokens))

    for sign in _SIGNS:
        add(sign)
    for number in range(1000):
        add(str(number))
    chance = random.Random(seed)
    for length in itertools.count(1):
        for _ in range(min(20_000, len(SYLLABLES) ** length)):
            word = "".join(chance.choices(SYLLABLES, k=length))
            for form in (word, " " + word, word.capitalize()):
                add(form)
        if len(tokens) >= size - 1:
            break
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)


def byte_names() -> list[str]:
    """The character by which byte-level tokenizers name each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]
