"""Log-probabilities as JSON: for chats, for completions, and with everything about each token.

Invariant: the bytes of a part's entries, joined, are that part of the reply.
"""

from __future__ import annotations

import codecs
import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...chat.splitter import Kind
from ...engine import Chunk, PromptScore
from ...tokens import Token, Vocabulary
from .token_report import Reported

LOWEST = -9999.0
"""What stands for the log-probability of the impossible, which JSON cannot say."""

_PARTS = {"content": "content", "reasoning": "reasoning", "call": "tool_call", "mark": "mark"}


class TokenWriter:
    """Writes tokens as JSON. ``opens_text``: the first one loses its leading space."""

    def __init__(self, vocabulary: Vocabulary, *, opens_text: bool) -> None:
        self._vocabulary = vocabulary
        self._opens = opens_text

    def chat_entry(self, token: Reported, kind: Kind) -> dict[str, Any]:
        """An entry of a chat's log-probabilities, for the bytes that the token has there."""
        data = token.parts[kind]
        return {
            **_spelled(data),
            "logprob": _logprob(token.chunk.logprob),
            "top_logprobs": [
                {**_spelled(self._piece(other, token.chunk)), "logprob": _logprob(logprob)}
                for other, logprob in token.chunk.top
            ],
        }

    def full_entry(self, token: Reported) -> dict[str, Any]:
        """Everything about a token, whatever part of the reply it is in.

        An alternative that the filters do not allow says so; the others say nothing of it.
        """
        chunk = token.chunk
        assert chunk.token is not None
        return {
            "index": chunk.index,
            "id": chunk.token,
            **_spelled(self._piece(chunk.token, chunk)),
            "part": _PARTS[token.kind] if token.kind is not None else None,
            "logprob": None if chunk.logprob is None else _logprob(chunk.logprob),
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
                }
                for other, reason, by in chunk.rejected
            ],
        }

    def legacy(self, tokens: Sequence[Reported], offset: int) -> dict[str, Any]:
        """The four lists of a completion; ``offset`` is where its text starts.

        Tokens without text in the answer, such as an end token, are among them: evaluators leave
        the generated tokens out by their number.
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
        texts = [decoder.decode(self._vocabulary.piece(score.token)) for score in scores]
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
        """The alternatives by their text, always including the token itself."""
        assert scored.token is not None
        named: dict[str, float] = {}
        for token, logprob in ((scored.token, scored.logprob), *scored.top):
            named.setdefault(_text(self._piece(token, scored)), _logprob(logprob))
        return named

    def _piece(self, token: Token, at: Chunk | PromptScore) -> bytes:
        """The bytes of a token in this place."""
        if self._opens and isinstance(at, Chunk) and at.index == 0:
            return self._vocabulary.opening(token)
        return self._vocabulary.piece(token)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _spelled(data: bytes) -> dict[str, Any]:
    return {"token": _text(data), "bytes": list(data)}


def _logprob(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        return LOWEST
    return max(value, LOWEST)
