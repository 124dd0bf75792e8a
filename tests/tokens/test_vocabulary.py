from __future__ import annotations

import copy
import logging
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError, PromptError
from mlxgen.tokens import Vocabulary, in_common
from tests.fakes import KINDS, byte_level_tokenizer

from ..effort import table, tries

VOCABULARIES = {kind: Vocabulary.of(make()) for kind, make in KINDS.items()}
BYTE_LEVEL = VOCABULARIES["byte-level"]
SENTENCEPIECE = VOCABULARIES["sentencepiece"]
SPELLING = [BYTE_LEVEL, SENTENCEPIECE, VOCABULARIES["sentencepiece without strip"]]


def id_of(vocabulary: Vocabulary, text: str) -> int:
    return int(vocabulary.tokenizer.convert_tokens_to_ids(text))


def joined(vocabulary: Vocabulary, tokens: list[int]) -> bytes:
    return b"".join(map(vocabulary.piece, tokens))


# ---- one vocabulary of one tokenizer ------------------------------------------------------


def test_a_tokenizer_has_one_vocabulary_until_its_tokens_or_ends_change() -> None:
    wrapper = byte_level_tokenizer()
    before = Vocabulary.of(wrapper)
    assert Vocabulary.of(wrapper) is Vocabulary.of(before) is before
    assert before.tokenizer is wrapper
    wrapper.add_eos_token("<|im_start|>")
    ends = Vocabulary.of(wrapper)
    assert ends.eos == before.eos | {id_of(before, "<|im_start|>")}
    wrapper.add_tokens(["<new>"])
    after = Vocabulary.of(wrapper)
    assert (after.size, after.piece(before.size)) == (before.size + 1, b"<new>")


def test_a_tokenizer_that_is_not_mlx_lms_is_wrapped_once_and_what_is_none_is_refused() -> None:
    raw = byte_level_tokenizer()._tokenizer
    vocabulary = Vocabulary.of(raw)
    assert Vocabulary.of(raw) is vocabulary
    assert vocabulary.tokenizer._tokenizer is raw
    assert vocabulary.eos == {id_of(vocabulary, "<|endoftext|>")}
    wrongs: list[Any] = [None, "gpt2", 5, {}]
    for wrong in wrongs:
        with pytest.raises(OptionError) as caught:
            Vocabulary.of(wrong)
        assert caught.value.field == "tokenizer"


def test_copies_of_a_tokenizer_have_vocabularies_of_their_own_and_those_of_one_have_one() -> None:
    wrapper = byte_level_tokenizer()
    vocabulary = Vocabulary.of(wrapper)
    for twin in (copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper))):
        twin.add_eos_token("a")
        assert Vocabulary.of(twin) is not vocabulary
        assert len(Vocabulary.of(twin).eos) == 3
    assert Vocabulary.of(wrapper) is vocabulary
    assert copy.deepcopy([vocabulary])[0] is copy.copy(vocabulary) is vocabulary
    assert list(pickle.loads(pickle.dumps(vocabulary)).pieces) == list(vocabulary.pieces)


def test_derived_things_are_built_once_whoever_asks() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    built: list[int] = []

    def build() -> None:
        time.sleep(0.01)
        built.append(1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: vocabulary.derived("key", build), range(4)))
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
    assert SENTENCEPIECE.eos == {2} and SENTENCEPIECE.special == {0, 1, 2}
    strips = {kind for kind, vocabulary in VOCABULARIES.items() if vocabulary.strips_space}
    assert {"sentencepiece", "metaspace"} <= strips
    assert strips.isdisjoint({"byte-level", "sentencepiece without strip"})


def test_bytes_of_a_token_within_a_text_and_at_its_start() -> None:
    """``tests/data/pieces.jsonl`` has a character for each byte."""
    for case in table("pieces"):
        vocabulary = VOCABULARIES[case["tokenizer"]]
        token = id_of(vocabulary, case["token"])
        assert vocabulary.piece(token) == case["piece"].encode("latin-1"), case
        assert vocabulary.opening(token) == case["opening"].encode("latin-1"), case


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
    names = vocabulary.tokenizer.convert_ids_to_tokens(vocabulary.spelling(prefix).tolist())
    assert names == sorted(names, key=lambda name: name.startswith("<0x"))  # byte tokens last
    token = vocabulary.token_of(prefix)
    assert token in spelling if spelling else token is None


# ---- text to tokens ---------------------------------------------------------------------------


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
    vocabulary = Vocabulary.of(tokenizer)
    vocabulary.encode("far more than that")
    vocabulary.tokenizer._tokenizer("far more than that")
    assert not caplog.text


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


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"\x98\x80 so \xf0\x9f", [b"\x98\x80", b" so", b" ", b"\xf0\x9f"]),
        (b"https\xffhttps", [b"https", b"\xff", b"https"]),
    ],
)
def test_parts_of_characters_are_spelled_with_the_longest_tokens(
    data: bytes, pieces: list[bytes]
) -> None:
    assert [BYTE_LEVEL.piece(token) for token in BYTE_LEVEL.continue_with(data)] == pieces


def test_what_is_spelled_like_a_token_or_changed_by_a_normaliser_stays_as_it_is() -> None:
    from tokenizers import normalizers

    raw = byte_level_tokenizer()._tokenizer
    raw.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase()]
    )
    names = ["<|im_end|>", "</s>", "<s>", "<tool_call>", "<0x41>"]
    for vocabulary in (*SPELLING, Vocabulary.of(raw)):
        for text in (*names, "ﬁ", "e\u0301", "HTTP"):
            tokens = vocabulary.continue_with(text.encode())
            assert joined(vocabulary, tokens) == text.encode()
            assert len(tokens) > 1 or text not in names
    unigram = VOCABULARIES["metaspace"].continue_with(b"</s>")  # of which it would make its end
    assert VOCABULARIES["metaspace"].special.isdisjoint(unigram)


def test_what_no_token_can_spell_is_an_error() -> None:
    with pytest.raises(PromptError):
        VOCABULARIES["metaspace"].continue_with("a中".encode())


class OnlyBatches:
    """The part of a fast tokenizer that works without holding the GIL."""

    def __init__(self, inner: Any) -> None:
        self.encode_batch_fast = inner.encode_batch_fast


def test_other_threads_run_while_much_text_is_tokenized() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    vocabulary.__dict__["inner"] = OnlyBatches(vocabulary.inner)
    assert joined(vocabulary, vocabulary.continue_with(b"https so")) == b"https so"


TOKENS = st.lists(st.integers(0, 1), max_size=9)


@given(one=TOKENS, other=TOKENS, shared=TOKENS)
def test_what_two_sequences_have_in_common_is_their_longest_common_prefix(
    one: list[int], other: list[int], shared: list[int]
) -> None:
    first, second = [*shared, *one], [*shared, *other]
    pairs = zip(first, second, strict=False)
    length = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert in_common(first, second) == in_common(bytes(first), bytes(second)) == length
