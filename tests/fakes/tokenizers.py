"""Tiny tokenizers of every kind, made in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    NaiveStreamingDetokenizer,
    SPMStreamingDetokenizer,
    TokenizerWrapper,
)
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

WORDS = (
    "the", "th", "he", "in", "ing", "er", "so", "sad", "tp", "http", "://", "https", "ab", "abc",
    "de", "def", "cd", " the", " so", " a", " b", "  ", "\n\n", "{\"", "\": ", "é", "ñ", "中",
    "<", "</", "\r\n",
)  # fmt: skip
"""Texts that the fakes have a token for, besides single bytes."""

SPLIT_BYTES = (
    b"\xf0\x9f", b"\x98\x80", b"\x98", b"\xe4\xb8", b"\xad", b"\xadA", b" \xf0\x9f", b"\xc3",
    b"\xa9 so", b"\xff",
)  # fmt: skip
"""Bytes that begin or end inside a character and have a token of their own in the fakes."""


def byte_level_tokenizer() -> TokenizerWrapper:
    """A byte-level BPE tokenizer with merges, a chat template, added and special tokens.

    Ids: 256 bytes, then the merged tokens, then ``<|endoftext|>`` (end), ``<|im_start|>``,
    ``<|im_end|>`` (special, a second end), ``<tool_call>``, ``</tool_call>`` (added, not
    special).
    """
    vocabulary, merges = _bpe(_spelled(word.encode()) for word in WORDS)
    for data in SPLIT_BYTES:
        vocabulary.setdefault(_spelled(data), len(vocabulary))
    tokenizer = _byte_level(vocabulary, merges)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _TOOL_TOKENS])
    return _wrap(tokenizer, BPEStreamingDetokenizer, "<|endoftext|>", ["<|im_end|>"])


def sentencepiece_tokenizer(*, strip: bool = True) -> TokenizerWrapper:
    """A SentencePiece-style BPE tokenizer (as Llama 2's; ``strip=False``: as Gemma's).

    Ids: ``<unk>``, ``<s>`` (begin), ``</s>`` (end), 256 byte-fallback tokens, characters and
    merged tokens, then ``<tool_call>`` and ``</tool_call>`` (added, not special). Prompts
    get ``<s>`` and, with ``strip``, a leading space.
    """
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    marked = [word.replace(" ", "▁") for word in WORDS]
    vocabulary, merges = _bpe(marked, vocabulary, [chr(code) for code in range(0x21, 0x7F)])
    model = models.BPE(
        vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    marks: Any = normalizers.Replace(" ", "▁")
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), marks])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = marks
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _TOOL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return _wrap(tokenizer, SPMStreamingDetokenizer, "</s>", bos_token="<s>", unk_token="<unk>")


def metaspace_tokenizer() -> TokenizerWrapper:
    """A Unigram tokenizer with a Metaspace decoder (as T5's), without byte fallback."""
    pieces = ["</s>", "<unk>", "▁", *(chr(code) for code in range(0x21, 0x7F)), "▁the", "▁a", "ing"]
    scores = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=1, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    return _wrap(tokenizer, NaiveStreamingDetokenizer, "</s>", unk_token="<unk>")


def wordpiece_tokenizer() -> TokenizerWrapper:
    """A WordPiece tokenizer (as BERT's): neither bytes nor marks for spaces."""
    words = ["[UNK]", "[SEP]", "the", "a", "so", "sad", "##ing", "##s", ".", ",", "é"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    return _wrap(tokenizer, NaiveStreamingDetokenizer, "[SEP]", unk_token="[UNK]")


def alphabet_tokenizer(extra: Sequence[str] = ()) -> TokenizerWrapper:
    """A byte-level tokenizer whose token ``n`` is byte ``n``, and then the ``extra`` strings.

    ``extra[i]`` is token ``256 + i``; the end token ``<|end|>`` comes last. ``encode`` takes
    an extra string wherever it occurs (the earlier in the list first), else single bytes.
    """
    vocabulary = {_spelled(bytes([byte])): byte for byte in range(256)}
    for text in extra:
        vocabulary[_spelled(text.encode())] = len(vocabulary)
    if len(vocabulary) != 256 + len(extra):
        raise ValueError("extra strings must be different and at least two bytes long")
    merges: list[tuple[str, str]] = []
    tokenizer = _byte_level(vocabulary, merges, use_regex=False)
    tokens = [_spelled(text.encode()) for text in extra]
    if tokens:
        # With ignore_merges, a piece that is a token becomes that token.
        pattern = "|".join(re.escape(token) for token in tokens)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                pre_tokenizers.Split(Regex(pattern), "isolated"),
            ]
        )
    tokenizer.add_special_tokens(["<|end|>"])
    return _wrap(tokenizer, BPEStreamingDetokenizer, "<|end|>")


KINDS: dict[str, Callable[[], TokenizerWrapper]] = {
    "byte-level": byte_level_tokenizer,
    "sentencepiece": sentencepiece_tokenizer,
    "sentencepiece without strip": partial(sentencepiece_tokenizer, strip=False),
    "metaspace": metaspace_tokenizer,
    "wordpiece": wordpiece_tokenizer,
}


_TOOL_TOKENS = ("<tool_call>", "</tool_call>")


_NAMES = bytes_to_unicode()


def _spelled(data: bytes) -> str:
    """Bytes in the alphabet of byte-level tokenizers."""
    return "".join(_NAMES[byte] for byte in data)


def _bpe(
    words: Any, vocabulary: dict[str, int] | None = None, alphabet: Sequence[str] | None = None
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Merges that build every word from the left, and the vocabulary with what they make."""
    if vocabulary is None:
        vocabulary = {}
        alphabet = [_spelled(bytes([byte])) for byte in range(256)]
    words = list(words)
    for char in [*(alphabet or ()), *(char for word in words for char in word)]:
        vocabulary.setdefault(char, len(vocabulary))
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(2, len(word) + 1):
            pair = (word[: end - 1], word[end - 1])
            if pair not in merges:
                merges.append(pair)
                vocabulary.setdefault(word[:end], len(vocabulary))
    return vocabulary, merges


def _byte_level(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], *, use_regex: bool = True
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrap(
    tokenizer: Tokenizer, detokenizer: Any, end: str, ends: Sequence[str] = (), **names: str
) -> TokenizerWrapper:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, clean_up_tokenization_spaces=False, **names
    )
    fast.chat_template = CHAT_TEMPLATE
    ids = [fast.convert_tokens_to_ids(text) for text in (end, *ends)]
    return TokenizerWrapper(fast, detokenizer, eos_token_ids=ids)
