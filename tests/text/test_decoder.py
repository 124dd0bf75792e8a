from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text import TextDecoder, Transcript
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import KINDS, alphabet_tokenizer

from ..effort import table, tries
from .laws import check_laws, operations, tokens_with

VOCABULARIES = {kind: Vocabulary.of(make()) for kind, make in KINDS.items()}
VOCABULARIES["alphabet"] = Vocabulary.of(alphabet_tokenizer(["ab", " so", "é中"]))
BYTE_LEVEL = VOCABULARIES["byte-level"]


def run(vocabulary: Vocabulary, tokens: list[Token]) -> str:
    decoder = TextDecoder(vocabulary)
    text, data = "", b""
    for token in tokens:
        data += decoder.piece(token)
        text += decoder.advance(token)
    assert decoder.text == text
    assert decoder.end(len(tokens)) == len(text)
    assert data.decode("utf-8", "replace") == text + decoder.flush()
    return text + decoder.flush()


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
        parts = tokens_with(BYTE_LEVEL, b"\xf0\x9f", b"\x98", b"\x80", b"a", b"\xff")
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


def test_each_token_gives_the_characters_that_it_completes() -> None:
    """The tokens of ``tests/data/decoded.jsonl`` have a character for each byte."""
    for case in table("decoded"):
        vocabulary = VOCABULARIES[case["tokenizer"]]
        convert = vocabulary.tokenizer.convert_tokens_to_ids
        decoder = TextDecoder(vocabulary, strip=case.get("strip", True), skip=case.get("skip", 0))
        found = []
        for text in case["tokens"]:
            token = vocabulary.token_of(text.encode("latin-1"))
            found.append(decoder.advance(convert(text) if token is None else token))
        assert (found, decoder.flush()) == (case["texts"], case.get("rest", "")), case


def test_a_character_belongs_to_the_token_that_holds_its_first_byte() -> None:
    transcript = Transcript(TextDecoder(BYTE_LEVEL))
    for token in tokens_with(BYTE_LEVEL, b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b"):
        transcript.advance(token)
    assert [transcript.token_at(offset) for offset in range(3)] == [0, 1, 4]
