"""A chunk as a line of JSON, for programs that read the output of another one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine import Chunk, Usage
    from ..tokens import Token, Vocabulary


def json_line(chunk: Chunk, usage: Usage | None, vocabulary: Vocabulary) -> str:
    """A JSON object, always with the same keys; only the last chunk comes with its ``usage``.

    ``text`` is what was delivered with the chunk; ``token_text`` is the token's own text.
    """

    def spelled(token: Token) -> str:
        return vocabulary.piece(token).decode("utf-8", "replace")

    shown = {f.name: getattr(chunk, f.name) for f in fields(chunk)}
    shown["from_draft"] = chunk.from_draft
    shown["token_text"] = None if chunk.token is None else spelled(chunk.token)
    shown["logprob"] = _finite(chunk.logprob)
    shown["top"] = [
        {"token": token, "token_text": spelled(token), "logprob": _finite(logprob)}
        for token, logprob in chunk.top
    ]
    shown["rejected"] = [
        {"token": token, "token_text": spelled(token), "reason": reason, "by": by, "text": text}
        for token, reason, by, text in chunk.rejected
    ]
    shown["candidates"] = [
        {"token": token, "token_text": spelled(token), "prob": prob}
        for token, prob in chunk.candidates
    ]
    if usage is not None:
        drafts = {name: count._asdict() for name, count in usage.drafts.items()}
        shown["usage"] = asdict(usage) | {"drafts": drafts}
    return json.dumps(shown)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
