"""Which bytes of each token are in which part of the reply.

Each byte of a token belongs to a character, and each character to a span of content, reasoning,
calls or marks. Invariant: the bytes that all tokens have in a part, joined and decoded as UTF-8,
are the text of that part, wherever stops, marks and characters fall.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...chat.splitter import Kind
from ...engine import Chunk
from ...tokens import Token, Vocabulary


class Reported(NamedTuple):
    """A token that has been delivered, or never will be.

    ``kind`` is the first part that it has bytes in, None for none. ``parts`` has its bytes
    in each; ``text`` are the characters that became complete with it.
    """

    chunk: Chunk
    kind: Kind | None
    parts: dict[Kind, bytes]
    start: int
    text: str


class _Waiting:
    """A token whose characters are not all delivered. ``first`` to ``end`` are the characters
    that it has bytes of; ``places`` the character of each byte, None if it is whole text."""

    __slots__ = ("chunk", "data", "end", "first", "parts", "places", "start", "text")

    def __init__(
        self, chunk: Chunk, data: bytes, start: int, text: str, places: list[int] | None
    ) -> None:
        self.chunk = chunk
        self.data = data
        self.start = start  # characters complete before it
        self.text = text
        self.places = places
        self.first = places[0] if places else start
        self.end = places[-1] + 1 if places else start + len(text)
        self.parts: dict[Kind, bytes] = {}

    def cover(self, kind: Kind, start: int, end: int) -> None:
        """Mark the characters from ``start`` to ``end`` as this kind."""
        if self.places is None:
            data = self.text[max(0, start - self.start) : max(0, end - self.start)].encode()
        else:
            pairs = zip(self.data, self.places, strict=True)
            data = bytes(byte for byte, place in pairs if start <= place < end)
        if data:
            self.parts[kind] = self.parts.get(kind, b"") + data

    def reported(self, covered: int) -> Reported:
        kind = next(iter(self.parts), None)
        text = self.text[: max(0, covered - self.start)]
        return Reported(self.chunk, kind, self.parts, self.start, text)


class TokenReport:
    """Tokens and spans in, both in order; out come the tokens whose bytes all have a place.

    ``opens_text`` and ``skip`` are those of the decoder: whether a leading space is dropped,
    and how many bytes of the prompt are spelled again. ``prefix`` are tokens before the first.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        opens_text: bool,
        skip: int = 0,
        prefix: Iterable[Token] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._opens = opens_text and not skip
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = b""  # the bytes of an unfinished character
        self._chars = 0  # characters complete so far
        self._covered = 0
        self._waiting: deque[_Waiting] = deque()
        for token in prefix:
            self._read(token)

    def add(self, chunk: Chunk) -> None:
        """Add a token, before the span that its text is in."""
        if chunk.token is None:
            return
        start = self._chars
        data, text, places = self._read(chunk.token)
        self._waiting.append(_Waiting(chunk, data, start, text, places))

    def cover(self, kind: Kind, start: int, end: int) -> Iterator[Reported]:
        """The characters from ``start`` to ``end`` were delivered as this kind."""
        self._covered = end
        if self._open and end > self._chars and self._waiting:
            # The text ended inside a character; the last token is where it ended.
            tail = self._open.decode("utf-8", "replace")
            self._waiting[-1].text += tail
            self._chars, self._open = self._chars + len(tail), b""
        for waiting in self._waiting:
            if waiting.first >= end:
                break
            waiting.cover(kind, start, end)
        while self._waiting and self._waiting[0].end <= end:
            yield self._waiting.popleft().reported(end)

    def finish(self) -> Iterator[Reported]:
        """The tokens that are left, with the delivered part of each."""
        while self._waiting:
            yield self._waiting.popleft().reported(self._covered)

    def _piece(self, token: Token) -> bytes:
        """The bytes of a token that the decoder uses."""
        if token in self._vocabulary.eos:
            return b""
        piece = self._vocabulary.piece(token)
        if self._opens and piece:
            self._opens = False
            return self._vocabulary.opening(token)
        cut = min(self._skip, len(piece))
        self._skip -= cut
        return piece[cut:]

    def _read(self, token: Token) -> tuple[bytes, str, list[int] | None]:
        """A token's bytes, the text complete with it, and the character of each byte."""
        data = self._piece(token)
        if not self._open:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                self._chars += len(text)
                return data, text, None
        parts: list[str] = []
        places: list[int] = []
        for byte in data:
            given = self._decoder.decode(bytes((byte,)))
            self._chars += len(given)
            parts.append(given)
            self._open = self._decoder.getstate()[0]
            places.append(self._chars if self._open else self._chars - 1)
        return data, "".join(parts), places
