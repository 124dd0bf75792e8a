from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import TextDecoder, Transcript
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import KINDS, alphabet_tokenizer

from ..effort import tries
from .laws import check_laws, operations

VOCABULARIES = {kind: Vocabulary.of(make()) for kind, make in KINDS.items()}
VOCABULARIES["alphabet"] = Vocabulary.of(alphabet_tokenizer(["ab", " so", "é中"]))
BYTE_LEVEL = VOCABULARIES["byte-level"]


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


NEXT = ["<0xC3>", "<0xA9>", "<0xE4>", "<0xB8>"]


@pytest.mark.parametrize(
    ("kind", "pieces", "options", "texts"),
    [  # peers 1: a last piece glued to the next character, and no replacement character
        (
            "byte-level",
            [b"\xe4\xb8", b"\xadA", b"\xf0\x9f", b"\x98\x80"],
            {},
            ["", "中A", "", "😀"],
        ),
        ("byte-level", [b"\xf0\x9f", b"\x98", b"\x80"], {}, ["", "", "😀"]),
        ("byte-level", [b"a", b"\xf0\x9f"], {}, ["a", "", "\ufffd"]),
        ("byte-level", ["<|im_start|>", b"a", "<|im_end|>"], {}, ["<|im_start|>", "a", ""]),
        ("byte-level", [b"ht", b"tp", b"://"], {"skip": 3}, ["", "p", "://"]),
        ("sentencepiece", ["</s>", b" the", b" the"], {}, ["", "the", " the"]),
        ("sentencepiece", [b" the", b" the"], {"strip": False}, [" the", " the"]),
        # the one difference from Hugging Face, which replaces each byte of such a run
        ("sentencepiece", NEXT, {}, ["", "é", "", "", "\ufffd"]),
    ],
)
def test_each_token_gives_the_characters_that_it_completes(
    kind: str, pieces: list[str | bytes], options: dict[str, Any], texts: list[str]
) -> None:
    """A text more than tokens is what is left at the end, however often it is asked."""
    vocabulary = VOCABULARIES[kind]
    convert = vocabulary.tokenizer.convert_tokens_to_ids
    tokens = [
        int(convert(each) if isinstance(each, str) else vocabulary.spelling(each)[0])
        for each in pieces
    ]
    decoder = TextDecoder(vocabulary, **options)
    found = [decoder.advance(token) for token in tokens]
    assert decoder.flush() == decoder.flush()
    assert [*found, decoder.flush()][: len(texts)] == texts
    assert len(texts) > len(tokens) or not decoder.flush()
    decoder.rewind(1)
    assert [decoder.advance(token) for token in tokens[1:]] == found[1:]


def test_a_character_belongs_to_the_token_that_holds_its_first_byte() -> None:
    transcript = Transcript(TextDecoder(BYTE_LEVEL))
    for token in spell(BYTE_LEVEL, b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b"):
        transcript.advance(token)
    assert [transcript.token_at(offset) for offset in range(3)] == [0, 1, 4]
