from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import FilterError
from mlxgen.text import Healer, heal_plan
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer

from ..effort import tries
from .laws import Operations, check_laws, operations, tokens_with

BYTE_LEVEL = Vocabulary.of(byte_level_tokenizer())
SENTENCEPIECE = Vocabulary.of(sentencepiece_tokenizer())
VOCABULARIES = [BYTE_LEVEL, SENTENCEPIECE]
TEXTS = st.text("htps:/ soade<é中", max_size=10)


@functools.cache
def ordinary(vocabulary: Vocabulary) -> dict[Token, bytes]:
    return {
        token: vocabulary.piece(token)
        for token in range(vocabulary.size)
        if vocabulary.piece(token) and token not in vocabulary.special
    }


# ---- what is taken back -------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(st.data())
@settings(max_examples=tries(100))
def test_the_plan_takes_back_as_much_as_one_token_can_spell_and_continue(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    text = data.draw(TEXTS)
    loose = data.draw(st.lists(st.sampled_from(sorted(ordinary(vocabulary))), max_size=3))
    prompt = [*vocabulary.encode(text), *loose]
    kept, removed = heal_plan(vocabulary, prompt)
    best = 0
    for count in range(1, min(8, len(prompt) - 1) + 1):
        last = prompt[-count:]
        if any(token not in ordinary(vocabulary) or token in vocabulary.added for token in last):
            break
        joined = b"".join(map(vocabulary.piece, last))
        if any(p.startswith(joined) and p != joined for p in ordinary(vocabulary).values()):
            best = count
    assert kept == prompt[: len(prompt) - best]
    assert removed == b"".join(map(vocabulary.piece, prompt[len(prompt) - best :]))


def test_the_first_token_and_added_tokens_stay_with_all_before_them() -> None:
    first = tokens_with(BYTE_LEVEL, b"ht", b"t", b"p")
    convert = BYTE_LEVEL.tokenizer.convert_tokens_to_ids
    for prompt in (first, first[:1], []):
        assert heal_plan(BYTE_LEVEL, prompt) == (prompt, b"")
    for border in ("<|im_start|>", "<tool_call>"):
        prompt = [*tokens_with(BYTE_LEVEL, b"a", b"h", b"t"), convert(border)]
        assert heal_plan(BYTE_LEVEL, prompt) == (prompt, b"")
        assert heal_plan(BYTE_LEVEL, [*prompt, *tokens_with(BYTE_LEVEL, b"t")]) == (prompt, b"t")


# ---- what may come instead ----------------------------------------------------------------


def test_peers_8_tokens_that_start_inside_a_character_are_compared_by_bytes() -> None:
    """The prompt ends in a space; a token that continues with half an emoji may replace it."""
    prompt = tokens_with(BYTE_LEVEL, b"a", b" ")
    kept, removed = heal_plan(BYTE_LEVEL, prompt)
    assert (kept, removed) == (prompt[:1], b" ")
    healer = Healer(BYTE_LEVEL, removed)
    (half,) = tokens_with(BYTE_LEVEL, b" \xf0\x9f")
    assert half in healer.candidates()
    assert healer.suffix(half) == b"\xf0\x9f"
    healer.advance(half)
    assert healer.done


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(st.data())
@settings(max_examples=tries(25))
def test_any_way_through_the_candidates_spells_the_removed_bytes_and_goes_on(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    choices = [b"http", b" so", b" so sad", b"\n", b"\xe4\xb8\xad", b"\xc3\xa9 "]
    removed = data.draw(st.sampled_from(choices))
    healer = Healer(vocabulary, removed)
    spelled = suffixes = b""
    while not healer.done:
        candidates = [int(token) for token in healer.candidates()]
        assert candidates
        for token in range(-1, vocabulary.size + 1):
            if token not in candidates:
                with pytest.raises(FilterError):
                    healer.advance(token)
        assert healer.remaining == (removed + suffixes)[len(spelled) :]
        token = data.draw(st.sampled_from(sorted(candidates)))
        suffixes += healer.suffix(token)
        healer.advance(token)
        spelled += vocabulary.piece(token)
    assert spelled == removed + suffixes


@pytest.mark.slow
def test_a_candidate_never_leads_to_a_dead_end() -> None:
    """``a`` would leave ``b``, which only byte tokens could spell; here there are none."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "ab": 1, "abc": 2, "</s>": 3}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    vocabulary = Vocabulary.of(fast)
    healer = Healer(vocabulary, b"ab")
    assert sorted(healer.candidates()) == [1, 2]
    with pytest.raises(FilterError):
        healer.advance(0)


@given(operations(st.integers(0, BYTE_LEVEL.size)))
@settings(max_examples=tries(100))
def test_a_healer_that_was_rewound_is_a_fresh_one(operations: Operations) -> None:
    def feed(healer: Healer, choice: int) -> Token:
        candidates = healer.candidates()
        token = int(candidates[choice % len(candidates)])
        healer.advance(token)
        return token

    check_laws(
        lambda: Healer(BYTE_LEVEL, b" so http"),
        feed,
        lambda healer: (len(healer), healer.remaining, healer.done, healer.candidates().tolist()),
        operations,
    )
