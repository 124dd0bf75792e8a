"""From tokens to text, one token at a time.

``TextDecoder`` tracks the characters that are complete after each token, and the bytes of the
unfinished one. It does not know stops, nor where tokens come from or text goes.

Invariant: the text after any tokens, plus what ``flush`` gives, is the text of their joined bytes
(``Vocabulary.decode``). It equals the tokenizer's own ``decode``, special tokens included and
end-of-sequence tokens left out, with one exception: if a run of byte-fallback tokens of a
SentencePiece tokenizer is not valid UTF-8, Hugging Face gives a replacement character for each byte
of the run, even for those of valid characters; here valid characters stay text.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Any, TypeAlias

from ..forks import Steps
from ..tokens import Token, Vocabulary

_Step: TypeAlias = tuple[int, str, bytes, int]
"""The number of complete characters, those that the token completed, the bytes of the unfinished
one, and how many bytes were skipped at the start, or ``_PLAIN`` after it. The start lasts until a
token with bytes has ended it, past the leading space and the bytes to skip."""
_PLAIN = -1  # in place of the skipped bytes, after the start
_END, _TEXT = itemgetter(0), itemgetter(1)


class TextDecoder(Steps[_Step]):
    """The text of a growing sequence of tokens.

    ``tokenizer`` is a ``Vocabulary`` or anything that ``Vocabulary.of`` takes. For tokens that
    continue a text, ``strip=False`` keeps the leading space that some tokenizers drop at the start
    of one. ``skip``: how many bytes to leave out at the start, which token healing spells again;
    such tokens continue a text, too.
    """

    __slots__ = ("_skip", "_strip", "_texts", "_vocabulary")

    _TABLES = ("_vocabulary", "_texts")

    def __init__(self, tokenizer: Any, *, strip: bool = True, skip: int = 0) -> None:
        self._vocabulary = Vocabulary.of(tokenizer)
        # Texts of the tokens that are whole characters, shared by a vocabulary's decoders.
        self._texts: dict[Token, str] = self._vocabulary.derived(TextDecoder, dict)
        self._strip = strip and not skip
        self._skip = skip
        super().__init__((0, "", b"", 0 if self._strip or skip else _PLAIN))

    def advance(self, token: Token) -> str:
        """Takes a token; returns the characters that it completed."""
        end, _, left, skipped = self._steps[-1]
        text = None if left or skipped >= 0 else self._texts.get(token)
        if text is None:
            data = left + self.piece(token)
            text, used = codecs.utf_8_decode(data, "replace", False)
            if skipped >= 0:
                skipped = self._passed(token, skipped)
            elif not left and used == len(data):
                self._texts[token] = text
            left = data[used:]
        self._steps.append((end + len(text), text, left, skipped))
        return text

    def piece(self, token: Token) -> bytes:
        """The bytes that a token would add to the text if it came next."""
        skipped = self._steps[-1][3]
        piece = b"" if token in self._vocabulary.eos else self._vocabulary.piece(token)
        if skipped < 0 or not piece:
            return piece
        return self._vocabulary.opening(token) if self._strip else piece[self._skip - skipped :]

    def _passed(self, token: Token, skipped: int) -> int:
        """The bytes skipped after a token at the start, or ``_PLAIN`` if it ends the start.

        A token without bytes, such as an end token, never does.
        """
        size = 0 if token in self._vocabulary.eos else len(self._vocabulary.piece(token))
        skipped = min(self._skip, skipped + size)
        return _PLAIN if size and skipped == self._skip else skipped

    def flush(self) -> str:
        """The text that the pending bytes give if the text ends here. Changes nothing."""
        return codecs.utf_8_decode(self._steps[-1][2], "replace", True)[0]

    @property
    def text(self) -> str:
        """All complete characters."""
        return "".join(map(_TEXT, self._steps))

    def slice(self, start: int, stop: int) -> str:
        """``text[start:stop]`` for offsets from 0, in time that depends on the slice alone."""
        steps = self._steps
        stop = min(stop, steps[-1][0])
        if start >= stop:
            return ""
        first = len(steps) - 1  # the token that holds the first character
        if start < steps[-2][0]:
            first = bisect_right(steps, start, key=_END)
        base = steps[first - 1][0]
        last = bisect_left(steps, stop, first, key=_END) + 1
        return "".join(map(_TEXT, steps[first:last]))[start - base : stop - base]

    def end(self, n: int = -1) -> int:
        """Characters complete after the first ``n`` tokens, by default after all."""
        return self._steps[n][0]

    def pending(self, n: int) -> bytes:
        """Bytes of the unfinished character after the first ``n`` tokens."""
        return self._steps[n][2]
