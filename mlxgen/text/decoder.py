"""Tokens become text, one by one.

``TextDecoder`` knows which characters are complete after each token, and the bytes of the
one that is not. It knows no stops, and not where tokens come from or text goes.

Invariant: the text after any tokens, plus what ``flush`` gives, is the text of their joined
bytes (``Vocabulary.decode``). It is what the tokenizer's own ``decode`` gives, special
tokens included and end-of-sequence tokens left out, with one difference: if a run of
byte-fallback tokens of a SentencePiece tokenizer is not valid UTF-8, Hugging Face gives a
replacement character for each of its bytes, even those of valid characters; here what is
valid stays text.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from typing import Any

from ..errors import RewindError
from ..forks import forked
from ..tokens import Token, Vocabulary


class TextDecoder:
    """The text of a growing sequence of tokens.

    ``tokenizer`` is a ``Vocabulary`` or anything that ``Vocabulary.of`` takes. For tokens
    that continue a text, ``strip=False`` keeps the leading space that some tokenizers drop
    at its start. ``skip`` is the number of bytes to leave out at the start, which a healed
    prompt spells again; such tokens continue a text too.
    """

    __slots__ = (
        "_ends",
        "_left",
        "_parts",
        "_pendings",
        "_plain_from",
        "_skip",
        "_skipped",
        "_strip",
        "_texts",
        "_vocabulary",
    )

    def __init__(self, tokenizer: Any, *, strip: bool = True, skip: int = 0) -> None:
        self._vocabulary = Vocabulary.of(tokenizer)
        # Texts of the tokens that are whole characters, shared by a vocabulary's decoders.
        self._texts: dict[Token, str] = self._vocabulary.derived(TextDecoder, dict)
        self._strip = strip and not skip
        self._skip = skip
        self._parts: list[str] = []  # the text that each token completed
        # Before the first token and after each: complete characters, and the bytes of the next one.
        self._ends = [0]
        self._pendings = [b""]
        self._left = b""  # the last of _pendings
        # The start of a text is special: its leading space, and the bytes to skip.
        self._skipped: list[int] = []  # bytes skipped after each token of the start
        self._plain_from = -1 if self._strip or skip else 0  # first token after it; -1: none yet

    def advance(self, token: Token) -> str:
        """Takes a token; returns the text whose characters it completed."""
        text = self._texts.get(token)
        if text is None or self._left or self._plain_from < 0:
            text = self._decode(token)
        self._parts.append(text)
        self._ends.append(self._ends[-1] + len(text))
        self._pendings.append(self._left)
        return text

    def _decode(self, token: Token) -> str:
        piece = self.piece(token)
        if self._plain_from < 0:
            self._note_start(token)
            return self._complete(piece)
        if self._left:
            return self._complete(piece)
        text = self._complete(piece)
        if not self._left:
            self._texts[token] = text
        return text

    def _complete(self, piece: bytes) -> str:
        data = self._left + piece
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._left = data[used:]
        return text

    def piece(self, token: Token) -> bytes:
        """The bytes that a token adds to the text if it comes next."""
        piece = b"" if token in self._vocabulary.eos else self._vocabulary.piece(token)
        if self._plain_from >= 0 or not piece:
            return piece
        if self._strip:
            return self._vocabulary.opening(token)
        return piece[self._skip - (self._skipped[-1] if self._skipped else 0) :]

    def _note_start(self, token: Token) -> None:
        """Keep how many bytes are skipped after a token at the start, and whether it was the last.

        A token without bytes, such as an end token, is not.
        """
        size = 0 if token in self._vocabulary.eos else len(self._vocabulary.piece(token))
        skipped = min(self._skip, size + (self._skipped[-1] if self._skipped else 0))
        self._skipped.append(skipped)
        if size and skipped == self._skip:
            self._plain_from = len(self._skipped)

    def flush(self) -> str:
        """The text that the pending bytes give if the text ends here. Changes nothing."""
        return codecs.utf_8_decode(self._left, "replace", True)[0]

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` tokens; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} tokens", possible=len(self))
        del self._parts[to:], self._skipped[to:], self._ends[to + 1 :], self._pendings[to + 1 :]
        self._left = self._pendings[-1]
        if to < self._plain_from:
            self._plain_from = -1

    def fork(self) -> TextDecoder:
        """An independent copy."""
        return forked(self, shared=("_vocabulary", "_texts"))

    def __len__(self) -> int:
        """Tokens so far."""
        return len(self._parts)

    @property
    def text(self) -> str:
        """All complete characters."""
        return "".join(self._parts)

    def slice(self, start: int, stop: int) -> str:
        """``text[start:stop]`` for offsets from 0, in the time of that slice alone."""
        ends = self._ends
        stop = min(stop, ends[-1])
        if start >= stop:
            return ""
        if start == ends[-2]:
            return self._parts[-1][: stop - start]
        first = bisect_right(ends, start) - 1  # the token that holds the first character
        base = ends[first]
        parts = self._parts[first : bisect_left(ends, stop, first)]
        return "".join(parts)[start - base : stop - base]

    def end(self, n: int = -1) -> int:
        """Characters complete after the first ``n`` tokens, by default after all."""
        return self._ends[n]

    def pending(self, n: int) -> bytes:
        """Bytes of the unfinished character after the first ``n`` tokens."""
        return self._pendings[n]
