"""Every way to ask for a text, and hooks that are written down as what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mlxgen import PostSamplingResult, Session
from mlxgen.engine.chunk import Chunk
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker

Hook = Callable[[PostSamplingResult], None]
Said = tuple[str, tuple[Token, ...], str | None]


def folded(chunks: Iterable[Chunk]) -> str:
    """What a reader has who deletes what is retracted."""
    text = ""
    for chunk in chunks:
        text = text[: len(text) - chunk.retract] + chunk.text
    return text


def asks(wishes: Mapping[Any, Mapping[str, Any]]) -> Hook:
    """A hook that asks for these at a position, or at a position and attempt, or for a letter."""

    def hook(result: PostSamplingResult) -> None:
        position, token = result.position, chr(result.sampled_token)
        for key in (position, (position, result.attempt), token):
            for name, value in wishes.get(key, {}).items():
                setattr(result, name, value)

    return hook


def in_session(speaker: Speaker, prompt: Sequence[Token] = PROMPT, **options: Any) -> Said:
    """What a session says whose caller runs the model."""
    session, text = Session(speaker.tokenizer, prompt=prompt, **options), ""
    while session.finish_reason is None:
        if forced := session.forced():
            text += session.push_token(forced[0]).text
            continue
        wanted: Any = speaker.model.script(tuple(session.history))
        if not isinstance(wanted, Mapping):
            wanted = {token: -float(rank) for rank, token in enumerate(wanted)}
        logits = np.full(speaker.vocabulary.size, -50.0, np.float32)
        logits[list(wanted)] = list(wanted.values())
        text += session.push_logits(logits).text
    assert text == session.text
    return text, tuple(session.tokens), session.finish_reason


def in_every_way(speaker: Speaker, prompt: Sequence[Token] = PROMPT, **options: Any) -> Said:
    """What a text says, whichever way it is asked for."""
    lm = speaker.lm
    once = lm.generate(prompt, draft="off", **options)
    said = once.text, tuple(once.tokens), once.finish_reason
    for draft in ("ngram", "auto"):
        chunks = list(lm.stream(prompt, draft=draft, **options))
        assert folded(chunks) == once.text and chunks[-1].finish_reason == once.finish_reason
        assert [c.token for c in chunks if c.token is not None] == list(once.tokens) or any(
            chunk.retract for chunk in chunks
        )
    for each in lm.batch([prompt] * 3, **options).run():
        assert (each.text, tuple(each.tokens), each.finish_reason) == said
    return said
