from __future__ import annotations

import copy
import logging
import pickle
import threading
import time
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError, PromptError
from mlxgen.tokens import Vocabulary, in_common
from tests.fakes import KINDS, alphabet_tokenizer, byte_level_tokenizer

from ..effort import tries

VOCABULARIES = {kind: Vocabulary.of(make()) for kind, make in KINDS.items()}
BYTE_LEVEL = VOCABULARIES["byte-level"]
SENTENCEPIECE = VOCABULARIES["sentencepiece"]
SPELLING = [BYTE_LEVEL, SENTENCEPIECE, VOCABULARIES["sentencepiece without strip"]]


def id_of(vocabulary: Vocabulary, text: str) -> int:
    return int(vocabulary.tokenizer.convert_tokens_to_ids(text))


def joined(vocabulary: Vocabulary, tokens: list[int]) -> bytes:
    return b"".join(map(vocabulary.piece, tokens))


# ---- one vocabulary of one tokenizer ------------------------------------------------------


def test_a_tokenizer_has_one_vocabulary() -> None:
    wrapper = byte_level_tokenizer()
    vocabulary = Vocabulary.of(wrapper)
    assert Vocabulary.of(wrapper) is vocabulary
    assert Vocabulary.of(vocabulary) is vocabulary
    assert vocabulary.tokenizer is wrapper


def test_a_tokenizer_that_is_not_mlx_lms_is_wrapped_once() -> None:
    raw = byte_level_tokenizer()._tokenizer
    vocabulary = Vocabulary.of(raw)
    assert Vocabulary.of(raw) is vocabulary
    assert vocabulary.tokenizer._tokenizer is raw
    assert vocabulary.eos == {id_of(vocabulary, "<|endoftext|>")}


@pytest.mark.parametrize("thing", [None, "gpt2", 5, {}])
def test_what_is_not_a_tokenizer_is_refused(thing: Any) -> None:
    with pytest.raises(OptionError, match=r"mlx_lm\.load"):
        Vocabulary.of(thing)


def test_new_tokens_make_a_new_vocabulary() -> None:
    wrapper = byte_level_tokenizer()
    before = Vocabulary.of(wrapper)
    wrapper.add_eos_token("<|im_start|>")
    ends = Vocabulary.of(wrapper)
    assert ends.eos == before.eos | {id_of(before, "<|im_start|>")}
    wrapper.add_tokens(["<new>"])
    after = Vocabulary.of(wrapper)
    assert (after.size, after.piece(before.size)) == (before.size + 1, b"<new>")


def test_copies_of_a_tokenizer_do_not_share_its_vocabulary() -> None:
    wrapper = byte_level_tokenizer()
    vocabulary = Vocabulary.of(wrapper)
    for twin in (copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper))):
        twin.add_eos_token("a")
        assert Vocabulary.of(twin) is not vocabulary
        assert len(Vocabulary.of(twin).eos) == 3
    assert Vocabulary.of(wrapper) is vocabulary


def test_what_holds_a_vocabulary_can_be_copied_and_pickled() -> None:
    assert copy.deepcopy([BYTE_LEVEL])[0] is BYTE_LEVEL
    assert copy.copy(BYTE_LEVEL) is BYTE_LEVEL
    twin = pickle.loads(pickle.dumps(BYTE_LEVEL))
    assert list(twin.pieces) == list(BYTE_LEVEL.pieces)


def test_derived_things_are_built_once_whoever_asks() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    built: list[int] = []

    def build() -> None:
        time.sleep(0.01)
        built.append(1)

    threads = [threading.Thread(target=vocabulary.derived, args=("key", build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]


# ---- facts ----------------------------------------------------------------------------------


def test_facts_of_tokenizers() -> None:
    assert BYTE_LEVEL.size == len(BYTE_LEVEL.tokenizer) == len(BYTE_LEVEL.pieces) == 305
    assert BYTE_LEVEL.special == BYTE_LEVEL.eos | {id_of(BYTE_LEVEL, "<|im_start|>")}
    tools = {id_of(BYTE_LEVEL, text) for text in ("<tool_call>", "</tool_call>")}
    assert BYTE_LEVEL.added == BYTE_LEVEL.special | tools
    for token in (-1, BYTE_LEVEL.size, BYTE_LEVEL.size + 10_000):  # logits are often wider
        assert BYTE_LEVEL.piece(token) == BYTE_LEVEL.opening(token) == b""
        assert not BYTE_LEVEL.is_ordinary(token)
    assert SENTENCEPIECE.eos == {2}
    assert SENTENCEPIECE.special == {0, 1, 2}
    assert SENTENCEPIECE.strips_space
    assert not VOCABULARIES["sentencepiece without strip"].strips_space
    assert VOCABULARIES["metaspace"].strips_space


@pytest.mark.parametrize(
    ("kind", "text", "piece", "opening"),
    [
        ("byte-level", "Ġso", b" so", b" so"),
        ("byte-level", "<tool_call>", b"<tool_call>", b"<tool_call>"),
        ("sentencepiece", "▁so", b" so", b"so"),
        ("sentencepiece", "▁▁", b"  ", b" "),
        ("sentencepiece", "<0x20>", b" ", b""),
        ("sentencepiece", "<0xE4>", b"\xe4", b"\xe4"),
        ("sentencepiece", "<s>", b"<s>", b"<s>"),
        ("sentencepiece without strip", "▁so", b" so", b" so"),
        ("metaspace", "▁the", b" the", b"the"),
        ("metaspace", "▁", b" ", b""),
        ("wordpiece", "so", b" so", b"so"),
        ("wordpiece", "##ing", b"ing", b"##ing"),
    ],
)
def test_pieces(kind: str, text: str, piece: bytes, opening: bytes) -> None:
    vocabulary = VOCABULARIES[kind]
    token = id_of(vocabulary, text)
    assert (vocabulary.piece(token), vocabulary.opening(token)) == (piece, opening)


# ---- finding tokens by their bytes ----------------------------------------------------------


@pytest.mark.parametrize("vocabulary", SPELLING)
@given(st.data())
@settings(max_examples=tries(80))
def test_tokens_are_found_by_the_start_of_their_bytes(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    piece = data.draw(st.sampled_from([b"\xff", b"\xff\xff", b"zzz", *vocabulary.pieces]))
    prefix = piece[: data.draw(st.integers(0, len(piece)))]
    ordinary = [t for t in range(vocabulary.size) if vocabulary.is_ordinary(t)]
    starting = vocabulary.starting_with(prefix)
    assert starting.dtype == np.int32
    assert sorted(starting) == [t for t in ordinary if vocabulary.piece(t).startswith(prefix)]
    spelling = [t for t in ordinary if vocabulary.piece(t) == prefix]
    assert sorted(vocabulary.spelling(prefix)) == spelling
    token = vocabulary.token_of(prefix)
    assert token in spelling if spelling else token is None


def test_a_token_of_its_own_is_found_before_a_byte_fallback_token() -> None:
    assert SENTENCEPIECE.token_of(b"A") == id_of(SENTENCEPIECE, "A")
    assert SENTENCEPIECE.spelling(b"A").tolist() == [
        id_of(SENTENCEPIECE, "A"),
        id_of(SENTENCEPIECE, "<0x41>"),
    ]


# ---- prompts ----------------------------------------------------------------------------------


def test_a_raw_prompt_gets_one_begin_token() -> None:
    begin = id_of(SENTENCEPIECE, "<s>")
    assert SENTENCEPIECE.encode("so")[0] == begin
    assert SENTENCEPIECE.encode("<s> so").count(begin) == 1
    assert begin not in SENTENCEPIECE.encode("so", special=False)
    assert BYTE_LEVEL.encode("so") == BYTE_LEVEL.encode("so", special=False)


def test_nobody_is_warned_of_a_text_beyond_the_tokenizers_own_limit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = byte_level_tokenizer()
    tokenizer.model_max_length = 3
    tokenizer.encode("far more than that")
    assert "longer than the specified maximum" in caplog.text
    caplog.clear()
    tokenizer.deprecation_warnings.clear()
    vocabulary = Vocabulary.of(tokenizer)
    vocabulary.encode("far more than that")
    vocabulary.tokenizer._tokenizer("far more than that")
    assert not caplog.text


# ---- text in the middle of a sequence ------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", SPELLING)
@given(st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode)))
@settings(max_examples=tries(150))
def test_any_bytes_can_be_continued_with(vocabulary: Vocabulary, data: bytes) -> None:
    tokens = vocabulary.continue_with(data)
    assert joined(vocabulary, tokens) == data
    assert all(map(vocabulary.is_ordinary, tokens))


def test_a_continuation_is_what_the_whole_text_would_have() -> None:
    whole = BYTE_LEVEL.encode("the http so")
    assert BYTE_LEVEL.continue_with(b"the http so") == whole
    assert SENTENCEPIECE.continue_with(b" the http so") == SENTENCEPIECE.encode("the http so")[1:]


@pytest.mark.parametrize("text", ["<|im_end|>", "</s>", "<s>", "<tool_call>", "<0x41>"])
def test_the_names_of_tokens_are_spelled_out(text: str) -> None:
    for vocabulary in SPELLING:
        tokens = vocabulary.continue_with(text.encode())
        assert joined(vocabulary, tokens) == text.encode()
        assert len(tokens) > 1


def test_bytes_inside_characters_are_continued_with_the_longest_tokens() -> None:
    tokens = BYTE_LEVEL.continue_with(b"\x98\x80 so \xf0\x9f")
    assert [BYTE_LEVEL.piece(t) for t in tokens] == [b"\x98\x80", b" so", b" ", b"\xf0\x9f"]
    tokens = BYTE_LEVEL.continue_with(b"https\xffhttps")
    assert [BYTE_LEVEL.piece(t) for t in tokens] == [b"https", b"\xff", b"https"]


def test_what_a_normaliser_would_change_is_spelled_as_it_is() -> None:
    from tokenizers import normalizers

    raw = byte_level_tokenizer()._tokenizer
    raw.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase()]
    )
    vocabulary = Vocabulary.of(raw)
    for text in ("ﬁ", "e\u0301", "HTTP"):
        assert joined(vocabulary, vocabulary.continue_with(text.encode())) == text.encode()


def test_what_no_token_can_spell_is_an_error() -> None:
    with pytest.raises(PromptError, match="no token for the bytes"):
        VOCABULARIES["metaspace"].continue_with("a中".encode())


# ---- the fakes --------------------------------------------------------------------------------


def test_the_alphabet_tokenizer_has_all_bytes_and_the_given_pieces() -> None:
    vocabulary = Vocabulary.of(alphabet_tokenizer(["de", " so", "é中", "def"]))
    assert [vocabulary.piece(token) for token in range(256)] == [bytes([b]) for b in range(256)]
    assert vocabulary.piece(256) == b"de"
    assert vocabulary.size == 256 + 4 + 1
    assert vocabulary.encode("xdefé中 so") == [120, 256, 102, 258, 257]
    with pytest.raises(ValueError, match="two bytes"):
        alphabet_tokenizer(["a"])


class OnlyBatches:
    """The part of a fast tokenizer that works without holding the GIL."""

    def __init__(self, inner: Any) -> None:
        self.encode_batch_fast = inner.encode_batch_fast


def test_other_threads_run_while_much_text_is_tokenized() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    vocabulary.__dict__["inner"] = OnlyBatches(vocabulary.inner)
    assert joined(vocabulary, vocabulary.continue_with(b"https so")) == b"https so"


# ---- sequences ----

TOKENS = st.lists(st.integers(0, 1), max_size=9)


@given(one=TOKENS, other=TOKENS, shared=TOKENS)
def test_what_two_sequences_have_in_common_is_their_longest_common_prefix(
    one: list[int], other: list[int], shared: list[int]
) -> None:
    first, second = [*shared, *one], [*shared, *other]
    pairs = zip(first, second, strict=False)
    length = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert in_common(first, second) == length
    assert in_common(bytes(first), bytes(second)) == length
