"""Tokenizers of every make: what their tokens are read as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import NewlineTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mlxgen.text import TextDecoder
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer

WORDS = ["</s>", "▁the", "▁a", "ing", "s", "▁", "<0xE4>", "<0xB8>", "<0xAD>", "h", "é"]


def made(vocabulary: Sequence[str], decoder: Any) -> Vocabulary:
    tokenizer = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(vocabulary)}, merges=[])
    )
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["</s>"])
    return Vocabulary.of(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))


def text_of(vocabulary: Vocabulary, tokens: Sequence[Token]) -> str:
    decoder = TextDecoder(vocabulary)
    return "".join([decoder.advance(token) for token in tokens]) + decoder.flush()


def decode(vocabulary: Vocabulary, tokens: Sequence[Token]) -> str:
    text: str = vocabulary.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
    return text


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Replace("▁", " "), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.BPEDecoder(suffix="s"),
        decoders.Fuse(),
        None,
    ],
    ids=str,
)
def test_whatever_the_decoder_the_text_of_pairs_is_what_it_decodes(decoder: Any) -> None:
    vocabulary = made(WORDS, decoder)
    plain = [token for token in range(1, len(WORDS)) if not WORDS[token].startswith("<0x")]
    differing = [
        (one, other)
        for one in plain
        for other in plain
        if text_of(vocabulary, [one, other]) != decode(vocabulary, [one, other])
    ]
    # BPEDecoder drops the space after the last token: a growing text cannot know.
    assert not differing or isinstance(decoder, decoders.BPEDecoder)


def test_added_tokens_outside_the_byte_alphabet_are_text() -> None:
    wrapper = byte_level_tokenizer()
    names = ["<｜begin▁of▁sentence｜>", "two words", "ab\tcd", "<é>"]
    wrapper.add_tokens([AddedToken(name) for name in names])
    vocabulary = Vocabulary.of(wrapper)
    tokens = [wrapper.convert_tokens_to_ids(name) for name in names]
    assert [vocabulary.piece(token).decode("utf-8", "replace") for token in tokens[:3]] == names[:3]
    assert text_of(vocabulary, tokens) == decode(vocabulary, tokens)


def test_ids_without_a_token_have_no_bytes() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"</s>": 0, "a": 1, "b": 7}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    vocabulary = Vocabulary.of(fast)
    assert vocabulary.size == 8
    assert list(vocabulary.pieces) == [b"</s>", b"a", b"", b"", b"", b"", b"", b"b"]


def test_a_tokenizer_that_edits_what_it_decodes_is_asked() -> None:
    raw = sentencepiece_tokenizer(strip=False)._tokenizer
    raw.add_tokens([AddedToken("<n>", normalized=False)])
    twin = NewlineTokenizer(tokenizer_object=raw.backend_tokenizer, eos_token="</s>")
    vocabulary = Vocabulary.of(twin)
    assert vocabulary.piece(twin.convert_tokens_to_ids("<n>")) == b"\n"


# ---- tokenizers written in Python -----------------------------------------------------------


class PythonTokenizer:
    """As much of a tokenizer without a fast backend as mlx-lm and mlxgen ask for."""

    eos_token_id = 0
    bos_token = None
    chat_template = None
    apply_chat_template = PreTrainedTokenizerBase.apply_chat_template

    def __init__(
        self,
        strings: Sequence[str | bytes | None],
        data: Callable[[Any], bytes],
        *,
        strips: bool = False,
    ) -> None:
        self.strings, self.data, self.strips = strings, data, strips

    def __len__(self) -> int:
        return len(self.strings)

    def get_vocab(self) -> dict[Any, int]:
        return {string: index for index, string in enumerate(self.strings) if string is not None}

    def convert_ids_to_tokens(self, ids: int | list[int]) -> Any:
        if isinstance(ids, list):
            return [self.convert_ids_to_tokens(token) for token in ids]
        if self.strings[ids] is None:
            raise KeyError(ids)
        return self.strings[ids]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.strings.index(char) for char in text if char in self.strings]

    def decode(self, tokens: list[int], **options: Any) -> str:
        data = b"".join(self.data(self.strings[token]) for token in tokens)
        return data.removeprefix(b" " if self.strips else b"").decode("utf-8", "replace")


def of_bytes(string: Any) -> bytes:
    """As Qwen 1: the strings are bytes."""
    return bytes(string)


def spelled(string: Any) -> bytes:
    """As Kimi: tiktoken, with strings in the byte-level alphabet."""
    return {"Ġso": b" so", "ä¸": b"\xe4\xb8", "Ń": b"\xad"}.get(string) or string.encode()


def marked(string: Any) -> bytes:
    """As the slow tokenizers over sentencepiece."""
    if string.startswith("<0x"):
        return bytes([int(string[3:5], 16)])
    return bytes(string.replace("▁", " ").encode())


def shouted(string: Any) -> bytes:
    """Nobody can guess what the strings mean."""
    return bytes(string.upper().encode())


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize(
    ("data", "strings", "pieces"),
    [
        (of_bytes, [b"<end>", b"a", b" so", b"\xe4\xb8", b"\xad"], None),
        (
            spelled,
            ["<end>", "a", "Ġso", "ä¸", "Ń", "<a b>", None],
            [b"<end>", b"a", b" so", b"\xe4\xb8", b"\xad", b"<a b>", b""],
        ),
        (
            marked,
            ["</s>", "a", "▁so", "<0xE4>", None, "é"],
            [b"</s>", b"a", b" so", b"\xe4", b"", "é".encode()],
        ),
        (shouted, ["<end>", "a", " so"], [b"<END>", b"A", b" SO"]),
    ],
)
def test_tokenizers_written_in_python(
    data: Callable[[Any], bytes], strings: list[Any], pieces: list[bytes] | None, strips: bool
) -> None:
    """``strips``: a text starts without its space."""
    vocabulary = Vocabulary.of(PythonTokenizer(strings, data, strips=strips))
    assert list(vocabulary.pieces) == (pieces or strings)
    assert vocabulary.strips_space is strips
    assert vocabulary.eos == {0} and not vocabulary.added
    assert text_of(vocabulary, [2, 2]) == vocabulary.tokenizer.decode([2, 2])
    if pieces is None:
        assert vocabulary.continue_with("a so中".encode()) == [1, 2, 3, 4]


SENTENCEPIECE = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
)


@pytest.mark.parametrize("decoder", [SENTENCEPIECE, None], ids=["SentencePiece's", "none"])
@pytest.mark.parametrize("added", ["<tool>", "[INST]", "größer"])
def test_a_tokenizer_of_bytes_is_one_whatever_its_decoder(added: str, decoder: Any) -> None:
    """Mistral's Tekken, as some converters write it, has the decoder of SentencePiece."""
    wrapper = byte_level_tokenizer()
    wrapper._tokenizer.add_tokens([added])
    text = f"Hello!\n How can I é中😀 {added} so"
    before = Vocabulary.of(wrapper).encode(text)
    wrapper._tokenizer.backend_tokenizer.decoder = decoder
    vocabulary = Vocabulary(wrapper)
    assert vocabulary.decode(before) == text_of(vocabulary, before) == text
    assert vocabulary.decode(vocabulary.continue_with(text.encode())) == text
