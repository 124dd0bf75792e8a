"""The last answer, as something that can be taken back, steered and compared.

Owns which of its versions is shown, and places in it: by number of tokens, by text, by a token's
number. Must never know a terminal or a command. Invariant: the stream of the answer stands after
the version that is shown; what cannot be done raises and changes nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ..engine import Chunk
from ..errors import FilterError, OptionError, RewindError, StateError
from ..tokens import Token, Vocabulary
from ..words import counted
from .answer import Answer
from .branches import Branches
from .conversation import Exchange

_BYTE = re.compile(r"\\x([0-9a-f]{2})")


class Last:
    """See the module. ``exchange`` is what the conversation has of it. A place is a number of
    tokens, after which it is."""

    def __init__(self, answer: Answer, vocabulary: Vocabulary, branches: Branches) -> None:
        self.answer = answer
        self.branches = branches
        self._vocabulary = vocabulary
        self.exchange: Exchange | None = None
        self.rewound = False  # and nothing was put there since

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Its tokens that have a text of their own: without an end token."""
        chunks = self.answer.chunks
        if chunks and (chunks[-1].token is None or chunks[-1].token in self._vocabulary.eos):
            return chunks[:-1]
        return chunks

    @property
    def shown(self) -> str:
        """The text of all tokens as a person sees it."""
        return "".join(self.answer.texts(self.answer.chunks))

    def last(self, count: int) -> int:
        """Before the last ``count`` tokens."""
        have = len(self.chunks)
        if not 0 <= count <= have:
            raise RewindError(
                f"the answer has {counted(have, 'token')}; take back at most {have}", have
            )
        return have - count

    def before(self, text: str) -> int:
        """Before the last occurrence of a text: the token in which that begins."""
        at = "".join(chunk.text for chunk in self.chunks).rfind(text)
        if not text or at < 0:
            raise OptionError("/rewind", f"the answer has no {text!r}; /tokens shows its tokens")
        ends = list(accumulate(len(chunk.text) for chunk in self.chunks))
        index = bisect_right(ends, at)
        while index and not self.chunks[index - 1].text:  # its text came with a later token
            index -= 1
        return index

    def at(self, number: int) -> int:
        """Before a token by its number, from 1, as ``/tokens`` shows it."""
        have = len(self.chunks)
        if not 1 <= number <= have:
            raise OptionError(f"@{number}", f"the answer has the tokens @1 to @{have}")
        return number - 1

    def rewind(self, place: int) -> str:
        """Keep what is before a place; returns the text that is gone."""
        kept = self.answer.chunks[:place]
        gone = "".join(self.answer.texts(self.chunks)[place:])
        self.answer.move(kept)
        self.branches.leaves(self.answer.chunks)
        self.rewound = True
        return gone

    def put(self, place: int, text: str, *, exact: bool = False) -> None:
        """Put a text at a place, to go on after it.

        A likely token of the place is taken as it is. Otherwise the text gets the space with which
        the token that was there begins, unless it is ``exact``. Raises ``OptionError`` if it is not
        allowed there.
        """
        old = self._there(place)
        tokens, spelled = self._spelled(text, old, exact=exact)
        try:
            self.answer.move(self.answer.chunks[:place], tokens)
        except FilterError as error:
            raise OptionError(
                "/instead", f"{spelled!r} is not allowed at token {place + 1}: {error}"
            ) from error
        self.branches.leaves(self.answer.chunks)
        self.rewound = False

    def go_to(self, number: int) -> None:
        """Show another version."""
        version = self.branches.version(number)
        try:
            self.answer.move(version)
        except (FilterError, StateError) as error:
            raise OptionError(
                "/branches",
                f"branch {number} is not possible under the settings with which this answer was "
                f"begun: {error}",
            ) from error
        self.branches.goes_to(number)
        self.rewound = False

    def text(self, number: int) -> str:
        """The text of a version as a person sees it."""
        return "".join(self.answer.texts(self.branches.version(number)))

    def _there(self, place: int) -> Chunk | None:
        """The token at a place, or the one that was there in a version that has the same before."""
        if place < len(self.answer.chunks):
            return self.answer.chunks[place]
        before = self.answer.tokens
        for version in reversed(self.branches.all.values()):
            if len(version) > place and [chunk.token for chunk in version[:place]] == before:
                return version[place]
        return None

    def _spelled(self, text: str, old: Chunk | None, *, exact: bool) -> tuple[list[Token], str]:
        if not exact and old is not None:
            pieces = [old.token, *(token for token, _ in old.top)]
            for token in pieces:
                if token is not None and self.piece(token).strip() == text:
                    return [token], self.piece(token)
            if old.token is not None and self.piece(old.token)[:1].isspace():
                text = self.piece(old.token)[0] + text
        tokens = self._vocabulary.continue_with(text.encode())
        if not tokens:
            raise OptionError("/instead", "expected a text or a token to put there, got nothing")
        return tokens, text

    def piece(self, token: Token) -> str:
        """The text of a token; bytes that are a part of a character are written as ``<0xF0>``."""
        piece = self._vocabulary.piece(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            text = piece.decode("utf-8", "backslashreplace")
            return _BYTE.sub(lambda byte: f"<0x{byte[1].upper()}>", text)
