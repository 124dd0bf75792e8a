from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import RewindError
from mlxgen.text import TextDecoder
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import KINDS, alphabet_tokenizer

from ..effort import tries
from .laws import check_laws, operations

VOCABULARIES = {kind: Vocabulary.of(make()) for kind, make in KINDS.items()}
VOCABULARIES["alphabet"] = Vocabulary.of(alphabet_tokenizer(["ab", " so", "é中"]))
BYTE_LEVEL = VOCABULARIES["byte-level"]
SENTENCEPIECE = VOCABULARIES["sentencepiece"]


def run(vocabulary: Vocabulary, tokens: list[Token], *, strip: bool = True, skip: int = 0) -> str:
    decoder = TextDecoder(vocabulary, strip=strip, skip=skip)
    text, data = "", b""
    for token in tokens:
        data += decoder.piece(token)
        text += decoder.advance(token)
    assert decoder.text == text
    assert decoder.end(len(tokens)) == len(text)
    assert data.decode("utf-8", "replace") == text + decoder.flush()
    return text + decoder.flush()


def spell(vocabulary: Vocabulary, *pieces: bytes) -> list[Token]:
    tokens = [vocabulary.token_of(piece) for piece in pieces]
    assert None not in tokens
    return [token for token in tokens if token is not None]


def whole_characters(vocabulary: Vocabulary) -> st.SearchStrategy[list[Token]]:
    """Tokens where byte-fallback tokens, if any, come as whole characters."""
    byte_tokens = {
        vocabulary.piece(token): token
        for token in range(vocabulary.size)
        if str(vocabulary.tokenizer.convert_ids_to_tokens(token)).startswith("<0x")
    }
    others = sorted(set(range(vocabulary.size)).difference(byte_tokens.values()))
    run = st.sampled_from(others).map(lambda token: [token])
    if byte_tokens:
        spelled = st.characters(codec="utf-8").map(
            lambda char: [byte_tokens[bytes([byte])] for byte in char.encode()]
        )
        run = st.one_of(run, spelled)
    return st.lists(run, max_size=12).map(lambda runs: [token for run in runs for token in run])


@pytest.mark.parametrize("kind", VOCABULARIES)
@given(st.data())
@settings(max_examples=tries(80))
def test_text_is_what_the_tokenizer_decodes(kind: str, data: st.DataObject) -> None:
    vocabulary = VOCABULARIES[kind]
    tokens = data.draw(whole_characters(vocabulary))
    kept = [token for token in tokens if token not in vocabulary.eos]
    expected = vocabulary.tokenizer.decode(kept, clean_up_tokenization_spaces=False)
    assert run(vocabulary, tokens) == expected
    assert vocabulary.decode(tokens) == expected


@pytest.mark.parametrize("kind", VOCABULARIES)
@given(st.data())
@settings(max_examples=tries(40))
def test_a_part_that_was_rewound_is_a_fresh_part(kind: str, data: st.DataObject) -> None:
    vocabulary = VOCABULARIES[kind]
    tokens = st.integers(0, vocabulary.size + 2)
    if vocabulary is BYTE_LEVEL:  # many unfinished characters
        parts = spell(BYTE_LEVEL, b"\xf0\x9f", b"\x98", b"\x80", b"a", b"\xff")
        tokens = st.one_of(tokens, st.sampled_from(parts))
    skip = data.draw(st.sampled_from([0, 0, 2, 5]))
    strip = data.draw(st.booleans())

    def view(decoder: TextDecoder) -> object:
        ends = [decoder.end(n) for n in range(len(decoder) + 1)]
        pendings = [decoder.pending(n) for n in range(len(decoder) + 1)]
        return decoder.text, ends, pendings, decoder.flush()

    check_laws(
        lambda: TextDecoder(vocabulary, strip=strip, skip=skip),
        lambda decoder, token: decoder.advance(token),
        view,
        data.draw(operations(tokens)),
    )


@given(st.lists(st.integers(0, BYTE_LEVEL.size - 1), max_size=20), st.integers(0, 40), st.data())
@settings(max_examples=tries(100))
def test_a_slice_is_a_slice_of_the_text(
    tokens: list[Token], start: int, data: st.DataObject
) -> None:
    decoder = TextDecoder(BYTE_LEVEL)
    for token in tokens:
        decoder.advance(token)
    stop = data.draw(st.integers(0, 50))
    assert decoder.slice(start, stop) == decoder.text[start:stop]


# ---- what the peers get wrong -----------------------------------------------------------


def test_peers_1_a_last_piece_glued_to_the_next_character_gives_no_replacement_character() -> None:
    tokens = spell(BYTE_LEVEL, b"\xe4\xb8", b"\xadA", b"\xf0\x9f", b"\x98\x80")
    decoder = TextDecoder(BYTE_LEVEL)
    assert [decoder.advance(token) for token in tokens] == ["", "中A", "", "😀"]
    assert decoder.flush() == ""


def test_a_character_that_is_never_finished_is_replaced_by_flush_only() -> None:
    decoder = TextDecoder(BYTE_LEVEL)
    (half,) = spell(BYTE_LEVEL, b"\xf0\x9f")
    assert decoder.advance(half) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == "\ufffd"
    assert decoder.text == ""
    rest = spell(BYTE_LEVEL, b"\x98\x80")
    assert decoder.advance(rest[0]) == "😀"


def test_end_tokens_give_no_text_and_special_tokens_do() -> None:
    vocabulary = BYTE_LEVEL
    start = vocabulary.tokenizer.convert_tokens_to_ids("<|im_start|>")
    (a,) = spell(vocabulary, b"a")
    decoder = TextDecoder(vocabulary)
    for end in sorted(vocabulary.eos):
        assert decoder.advance(end) == ""
    assert decoder.advance(start) == "<|im_start|>"
    assert decoder.advance(a) == "a"


def test_an_end_token_does_not_use_up_the_leading_space() -> None:
    (the,) = spell(SENTENCEPIECE, b" the")
    (end,) = SENTENCEPIECE.eos
    assert run(SENTENCEPIECE, [end, the, the]) == "the the"


def test_a_continuation_keeps_the_leading_space() -> None:
    (the,) = spell(SENTENCEPIECE, b" the")
    assert run(SENTENCEPIECE, [the, the], strip=False) == " the the"


def test_an_invalid_run_of_byte_tokens_keeps_its_valid_characters() -> None:
    """The one difference from Hugging Face, which replaces each byte of such a run."""
    names = ["<0xC3>", "<0xA9>", "<0xE4>", "<0xB8>"]
    tokens = SENTENCEPIECE.tokenizer.convert_tokens_to_ids(names)
    assert SENTENCEPIECE.tokenizer.decode(tokens) == "\ufffd" * 4
    assert run(SENTENCEPIECE, tokens) == "é\ufffd"


def test_bytes_that_a_healed_prompt_spells_again_are_left_out() -> None:
    tokens = spell(BYTE_LEVEL, b"ht", b"tp", b"://")
    assert run(BYTE_LEVEL, tokens, skip=3) == "p://"
    decoder = TextDecoder(BYTE_LEVEL, skip=3)
    assert [decoder.advance(token) for token in tokens] == ["", "p", "://"]
    decoder.rewind(1)
    assert [decoder.advance(token) for token in tokens[1:]] == ["p", "://"]


def test_rewinding_forward_does_nothing_and_before_the_start_is_refused() -> None:
    decoder = TextDecoder(BYTE_LEVEL)
    decoder.advance(65)
    decoder.rewind(1)
    decoder.rewind(7)
    assert len(decoder) == 1
    with pytest.raises(RewindError) as caught:
        decoder.rewind(-1)
    assert caught.value.possible == 1
    assert len(decoder) == 1
