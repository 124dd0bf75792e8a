"""Which bytes of a token are in which part of a reply."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.chat.splitter import Kind, Span
from mlxgen.engine.chunk import Chunk
from mlxgen.server.told_tokens import Reported, TokenReport
from mlxgen.text import TextDecoder
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer
from tests.fakes.tokenizers import SPLIT_BYTES

BYTES = Vocabulary.of(byte_level_tokenizer())
SPLIT = [int(BYTES.spelling(data)[0]) for data in SPLIT_BYTES]
PIECES = Vocabulary.of(sentencepiece_tokenizer())


def report(
    tokens: list[int], spans: list[tuple[Kind, int]], vocabulary: Vocabulary = BYTES, first: int = 0
) -> list[Reported]:
    """All that is reported of tokens, with the text cut into spans of these lengths."""
    decoder = TextDecoder(vocabulary)
    for token in tokens:
        decoder.advance(token)
    text, at = decoder.text + decoder.flush(), decoder.end(first)
    decoder.rewind(first)
    out = TokenReport(decoder)
    reported: list[Reported] = []
    for i, token in enumerate(tokens[first:]):
        out.add(Chunk("", token, first + i))
    for kind, length in spans:
        reported += out.cover(Span(kind, text[at : at + length], at))
        at += length
    return [*reported, *out.finish()]


def test_the_leading_space_that_a_decoder_drops_is_no_part_of_the_token() -> None:
    token = PIECES.token_of(b" the")
    assert token is not None
    assert report([token], [("content", 3)], PIECES)[0].parts == {"content": b"the"}


@given(
    st.lists(st.integers(0, BYTES.size - 1) | st.sampled_from(SPLIT), max_size=12),
    st.lists(st.tuples(st.sampled_from(["content", "reasoning", "mark"]), st.integers(1, 5))),
    st.integers(0, 3),
    st.integers(0, 40),
    st.sampled_from([BYTES, PIECES]),
)
def test_the_bytes_of_a_part_joined_are_its_text(
    tokens: list[int],
    wanted: list[tuple[Kind, int]],
    first: int,
    cut: int,
    vocabulary: Vocabulary,
) -> None:
    tokens = [token % vocabulary.size for token in tokens]
    first = min(first, len(tokens))
    decoder = TextDecoder(vocabulary)
    for token in tokens:
        decoder.advance(token)
    while first and decoder.pending(first):  # then bytes of the first character are the prefix's
        first -= 1
    start = decoder.end(first)
    whole = (decoder.text + decoder.flush())[start:]
    text = whole[:cut]
    spans: list[tuple[Kind, int]] = []
    left = len(text)
    for kind, length in [*wanted, ("content", max(1, left))]:
        if left:
            spans.append((kind, min(length, left)))
            left -= spans[-1][1]
    reported = report(tokens, spans, vocabulary, first)
    assert [token.chunk.token for token in reported] == tokens[first:]
    for kind in ("content", "reasoning", "mark"):
        at, part = 0, ""
        for name, length in spans:
            part += text[at : at + length] if name == kind else ""
            at += length
        data = b"".join(token.parts.get(kind, b"") for token in reported)
        # Bytes of broken characters may make others, where spans of a part come together or end.
        unbroken = "\N{REPLACEMENT CHARACTER}" not in text
        if unbroken or (text == whole and len({name for name, _ in spans}) == 1):
            assert data.decode("utf-8", "replace") == part
    assert "".join(token.text for token in reported) == text
    for each in reported:  # no part has an end, or what a stop cut off
        assert (each.kind is None) is not any(each.parts.values())
