"""Which bytes of each token are in which part of the reply.

Each byte of a token belongs to a character, and each character to a span of content, reasoning,
calls or marks. Invariant: the bytes that all tokens have in a part, joined and decoded as UTF-8,
are the text of that part, wherever stops, marks and characters fall.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...chat.splitter import Kind, Span
from ...engine import Chunk
from ...text import TextDecoder
from ...tokens import Token


@dataclass(slots=True)
class Reported:
    """A token, and what was delivered of it.

    ``start`` to ``stop`` are the characters that became complete with it, and ``text`` those of
    them that were delivered. ``data`` has each of its bytes with the character that it belongs to,
    ``parts`` the delivered bytes in each part.
    """

    chunk: Chunk
    start: int
    stop: int
    data: Sequence[tuple[int, int]]
    parts: dict[Kind, bytes] = field(default_factory=dict)
    text: str = ""

    @property
    def kind(self) -> Kind | None:
        """The first part that it has bytes in."""
        return next(iter(self.parts), None)

    @property
    def end(self) -> int:
        """Where the last character of which it has bytes ends."""
        return self.data[-1][1] + 1 if self.data else self.stop

    def cover(self, span: Span, end: int) -> None:
        """A span, up to the character ``end``, was delivered."""
        self.text += span.text[max(0, self.start - span.start) : max(0, self.stop - span.start)]
        data = bytes(byte for byte, place in self.data if span.start <= place < end)
        if data:
            self.parts[span.kind] = self.parts.get(span.kind, b"") + data


class TokenReport:
    """Tokens and spans in, both in order; out come the tokens whose bytes all have a place.

    ``decoder`` has taken the tokens before the first.
    """

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._waiting: deque[Reported] = deque()

    def add(self, chunk: Chunk) -> None:
        """Add a token, before the span that its text is in."""
        if chunk.token is not None:
            start, data = self._decoder.end(), self._read(chunk.token)
            self._waiting.append(Reported(chunk, start, self._decoder.end(), data))

    def cover(self, span: Span) -> Iterator[Reported]:
        """A span was delivered."""
        waiting, end = self._waiting, span.start + len(span.text)
        if waiting:  # the text may end inside a character; the last token is where it ends
            waiting[-1].stop = max(waiting[-1].stop, end)
        for token in waiting:
            if token.start >= end:
                break
            token.cover(span, end)
        while waiting and waiting[0].end <= end:
            yield waiting.popleft()

    def finish(self) -> Iterator[Reported]:
        """The tokens that are left, with the delivered part of each."""
        while self._waiting:
            yield self._waiting.popleft()

    def _read(self, token: Token) -> list[tuple[int, int]]:
        """Each byte of a token with the place of its character."""
        data = []
        place, left = self._decoder.end(), self._decoder.pending(-1)
        for byte in self._decoder.piece(token):
            left += bytes((byte,))
            text, used = codecs.utf_8_decode(left, "replace", False)
            place, left = place + len(text), left[used:]
            data.append((byte, place if left else place - 1))
        self._decoder.advance(token)
        return data
