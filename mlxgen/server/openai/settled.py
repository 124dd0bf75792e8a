"""What is left of a text of which parts were taken back, as if they had never been there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...engine import Chunk, Usage, fold
from ...text import TextDecoder
from ...tokens import Token


def settled(
    chunks: Sequence[Chunk], decoder: TextDecoder, prefix: tuple[Token, ...] = ()
) -> Iterator[Chunk]:
    """The chunks of all tokens that stayed, each with its own text.

    ``decoder`` has taken the ``prefix``, of which the chunks have no text.
    """
    whole = fold(chunks, Usage(), prefix)
    start, at = decoder.end(), 0
    for place, chunk in enumerate(whole.chunks, 1):
        if chunk.token is not None:
            decoder.advance(chunk.token)
        end = len(whole.text) if place == len(whole.chunks) else decoder.end() - start
        text = whole.text[at:end]
        at += len(text)
        yield replace(chunk, text=text, retract=0)
