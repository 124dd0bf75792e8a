"""Small stand-ins that tests of every room share; nothing is downloaded."""

from .tokenizers import (
    KINDS,
    alphabet_tokenizer,
    byte_level_tokenizer,
    metaspace_tokenizer,
    sentencepiece_tokenizer,
    wordpiece_tokenizer,
)

__all__ = [
    "KINDS",
    "alphabet_tokenizer",
    "byte_level_tokenizer",
    "metaspace_tokenizer",
    "sentencepiece_tokenizer",
    "wordpiece_tokenizer",
]
