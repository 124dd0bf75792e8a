"""Reports on tokens: which bytes of each are in which part of the reply, and how likely it was.

Each byte of a token belongs to a character, and each character to a span of content, reasoning,
calls or marks. Invariant: the bytes of all tokens in a part, joined and decoded as UTF-8, are the
text of that part, wherever stops, marks and characters fall.
"""

from __future__ import annotations

import codecs
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..chat.marks import Kind
from ..chat.splitter import Span
from ..engine import Chunk, PromptScore
from ..text import TextDecoder
from ..tokens import Token, Vocabulary

LOWEST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot represent."""

_PARTS = {"content": "content", "reasoning": "reasoning", "call": "tool_call", "mark": "mark"}


@dataclass(slots=True)
class Reported:
    """A token, and its delivered part.

    ``start`` to ``stop`` are the characters that the token completed, and ``text`` those of them
    that were delivered. ``data`` has each byte with the place of its character, and ``parts`` the
    delivered bytes in each part.
    """

    chunk: Chunk
    start: int
    stop: int
    data: Sequence[tuple[int, int]]
    parts: dict[Kind, bytes] = field(default_factory=dict)
    text: str = ""

    @property
    def kind(self) -> Kind | None:
        """The first part that the token has bytes in."""
        return next(iter(self.parts), None)

    @property
    def end(self) -> int:
        """The end of the last character that the token has bytes of."""
        return self.data[-1][1] + 1 if self.data else self.stop

    def cover(self, span: Span, end: int) -> None:
        """Note that a span, up to the character ``end``, was delivered."""
        self.text += span.text[max(0, self.start - span.start) : max(0, self.stop - span.start)]
        data = bytes(byte for byte, place in self.data if span.start <= place < end)
        if data:
            self.parts[span.kind] = self.parts.get(span.kind, b"") + data


class TokenReport:
    """Tokens and spans in, both in order; tokens whose bytes are all covered by spans out.

    ``decoder`` has taken the tokens before the first one.
    """

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._waiting: deque[Reported] = deque()

    def add(self, chunk: Chunk) -> None:
        """Add a token, before the span that contains its text."""
        if chunk.token is not None:
            start, data = self._decoder.end(), self._read(chunk.token)
            self._waiting.append(Reported(chunk, start, self._decoder.end(), data))

    def cover(self, span: Span) -> Iterator[Reported]:
        """Note that a span was delivered; return the tokens that are now complete."""
        waiting, end = self._waiting, span.start + len(span.text)
        if waiting:  # text that ends inside a character ends in the last token
            waiting[-1].stop = max(waiting[-1].stop, end)
        for token in waiting:
            if token.start >= end:
                break
            token.cover(span, end)
        while waiting and waiting[0].end <= end:
            yield waiting.popleft()

    def finish(self) -> Iterator[Reported]:
        """The remaining tokens, with the delivered part of each."""
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


@dataclass(frozen=True, slots=True)
class TokenWriter:
    """Writes tokens as JSON. ``opens_text``: the first one loses its leading space."""

    vocabulary: Vocabulary
    opens_text: bool

    def chat_entry(self, token: Reported, kind: Kind) -> dict[str, Any]:
        """An entry of a chat's log-probabilities, for the token's bytes in the part ``kind``."""
        data = token.parts[kind]
        return {
            **_spelled(data),
            "logprob": _logprob(token.chunk.logprob),
            "prob": token.chunk.prob,
            "top_logprobs": [
                {**_spelled(self._piece(other, token.chunk)), "logprob": _logprob(logprob)}
                for other, logprob in token.chunk.top
            ],
        }

    def full_entry(self, token: Reported) -> dict[str, Any]:
        """Everything about a token, whatever part of the reply it is in.

        Only alternatives that the filters do not allow have ``allowed``, which is false.
        """
        chunk = token.chunk
        assert chunk.token is not None
        return {
            "index": chunk.index,
            "id": chunk.token,
            **_spelled(self._piece(chunk.token, chunk)),
            "part": _PARTS[token.kind] if token.kind is not None else None,
            "logprob": None if chunk.logprob is None else _logprob(chunk.logprob),
            "prob": chunk.prob,
            "top_logprobs": [
                {
                    "id": other,
                    **_spelled(self._piece(other, chunk)),
                    "logprob": _logprob(logprob),
                    **({"allowed": False} if other in chunk.forbidden else {}),
                }
                for other, logprob in chunk.top
            ],
            "forced": chunk.forced,
            "from_draft": chunk.from_draft,
            "drafter": chunk.drafter,
            "attempts": chunk.attempts,
            "rejected": [
                {
                    "id": other,
                    **_spelled(self._piece(other, chunk)),
                    "reason": reason,
                    "by": by or None,
                    **({"text": text} if text else {}),
                }
                for other, reason, by, text in chunk.rejected
            ],
        }

    def legacy(self, tokens: Sequence[Reported], offset: int) -> dict[str, Any]:
        """The four lists of a completion; ``offset`` is where its text starts.

        They include tokens without text in the answer, such as an end token: evaluators drop the
        generated tokens by counting them.
        """
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [_logprob(token.chunk.logprob) for token in tokens],
            "top_logprobs": [self._named(token.chunk) for token in tokens],
            "text_offset": [offset + token.start for token in tokens],
        }

    def echoed(self, scores: Sequence[PromptScore], echo: str) -> dict[str, Any]:
        """The four lists for the tokens of a prompt that is returned as ``echo``."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self.vocabulary.piece(score.token)) for score in scores]
        # The tokenizer may have put a begin token, or a space, before the text.
        before = max(0, sum(map(len, texts)) - len(echo))
        ends = itertools.accumulate(map(len, texts), initial=0)
        return {
            "tokens": texts,
            "token_logprobs": [
                None if score.rank is None else _logprob(score.logprob) for score in scores
            ],
            "top_logprobs": [
                None if score.rank is None else self._named(score) for score in scores
            ],
            "text_offset": [max(0, end - before) for end in ends][: len(texts)],
        }

    def prompt(self, scores: Sequence[PromptScore]) -> list[dict[str, Any] | None]:
        """Each token of a prompt with its alternatives, by token id, as in vLLM."""
        entries: list[dict[str, Any] | None] = []
        for score in scores:
            if score.rank is None:
                entries.append(None)
                continue
            ranked = [(rank, *other) for rank, other in enumerate(score.top, start=1)]
            ranked.append((score.rank, score.token, score.logprob or 0.0))
            entries.append(
                {
                    str(token): {
                        "logprob": _logprob(logprob),
                        "rank": rank,
                        "decoded_token": _text(self._piece(token, score)),
                    }
                    for rank, token, logprob in ranked
                }
            )
        return entries

    def _named(self, scored: Chunk | PromptScore) -> dict[str, float]:
        """The alternatives by text, always including the token itself."""
        assert scored.token is not None
        named: dict[str, float] = {}
        for token, logprob in ((scored.token, scored.logprob), *scored.top):
            named.setdefault(_text(self._piece(token, scored)), _logprob(logprob))
        return named

    def _piece(self, token: Token, at: Chunk | PromptScore) -> bytes:
        """The bytes of a token at this position."""
        if self.opens_text and isinstance(at, Chunk) and at.index == 0:
            return self.vocabulary.opening(token)
        return self.vocabulary.piece(token)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _spelled(data: bytes) -> dict[str, Any]:
    return {"token": _text(data), "bytes": list(data)}


def _logprob(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        return LOWEST
    return max(value, LOWEST)
