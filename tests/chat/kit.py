"""Formats of models, and texts in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from random import Random
from typing import Any

from hypothesis import strategies as st

from mlxgen.chat.answer import AnswerReader
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.calls.reader import ToolReader
from mlxgen.chat.dialect import Dialect
from mlxgen.chat.events import (
    CallArguments,
    CallStarted,
    ChatEvent,
    Ended,
    Mark,
    Reasoning,
    Retracted,
    Shown,
    Text,
    joined,
)
from mlxgen.chat.marks import HARMONY, Marks, Reading
from mlxgen.engine import Chunk, FinishReason, Usage
from mlxgen.filters import Constraint, EndSearch
from mlxgen.filters import tokens_of as allowed_by
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer

STYLES = sorted(FORMATS)
"""The names of all formats of calls."""


@cache
def plain() -> Dialect:
    """That of a model that neither thinks nor calls tools."""
    return Dialect.of(Vocabulary.of(byte_level_tokenizer()))


def calls_of(reader: ToolReader, text: str) -> list[tuple[str, Any]]:
    """The calls in a whole text."""
    reading = Reading(marks=HARMONY if reader.format.thought else Marks(), tools=reader)
    events = said_in(events_of(chunks([text]), reading))
    names = [event.name for event in events if isinstance(event, CallStarted)]
    given = [json.loads(event.text) for event in events if isinstance(event, CallArguments)]
    return list(zip(names, given, strict=True))


def chunks(pieces: Sequence[str], finish: FinishReason | None = "stop") -> list[Chunk]:
    """A token for each piece, and the last one with the reason."""
    made = [Chunk(piece, 7, index) for index, piece in enumerate(pieces)]
    return made if finish is None else [*made, Chunk("", 7, len(made), finish_reason=finish)]


def events_of(chunks: Iterable[Chunk], reading: Reading) -> list[ChatEvent]:
    """What is left of the events of an answer once all was taken back that was; neighbours of a
    kind are one."""
    reader, left = AnswerReader(reading, "call-{}".format), list[Shown]()
    *events, ended = [event for chunk in chunks for event in reader.push(chunk, Usage())[0]]
    assert isinstance(ended, Ended)
    for event in events:
        if not isinstance(event, Retracted):
            assert not isinstance(event, Ended)
            left = [*joined([*left, event])]
        elif (last := left.pop()) != (back := event.event):
            assert isinstance(last, Reasoning | Text | Mark | CallArguments)
            assert type(back) is type(last) and last.text.endswith(back.text)
            left.append(type(last)(last.text[: len(last.text) - len(back.text)]))
    return [*left, ended]


def said_in(events: Sequence[ChatEvent]) -> list[ChatEvent]:
    """The events but marks and the end."""
    return [*joined([e for e in events if not isinstance(e, Mark | Retracted | Ended)])]


def tokens_of(text: str, vocabulary: Vocabulary) -> list[Token]:
    """Tokens that spell a text, added tokens taken for their names."""
    added = {vocabulary.piece(t).decode(): t for t in vocabulary.added if vocabulary.piece(t)}
    for name, token in added.items():
        if name in text:
            before, _, after = text.partition(name)
            return [*tokens_of(before, vocabulary), token, *tokens_of(after, vocabulary)]
    return vocabulary.continue_with(text.encode())


def takes(spec: Any, vocabulary: Vocabulary, text: str) -> bool:
    """Whether a specification allows a text, as a whole."""
    filter, tokens = spec.bind(vocabulary, vocabulary.size), tokens_of(text, vocabulary)
    if filter.validate(tokens) < len(tokens):
        return False
    for token in tokens:
        filter.advance(token)
    return bool(filter.can_end())


def tool(name: str = "get_weather", **properties: Any) -> dict[str, Any]:
    """A function with required string parameters, or those that are given."""
    schema = {
        "type": "object",
        "properties": properties or {"city": {"type": "string"}},
        "required": list(properties or ["city"]),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def pieces_of(text: str, sizes: Sequence[int]) -> list[str]:
    """A text in pieces of these sizes, over and over."""
    pieces, at, i = [], 0, 0
    while at < len(text):
        size = max(1, sizes[i % len(sizes)]) if sizes else len(text)
        pieces.append(text[at : at + size])
        at, i = at + size, i + 1
    return pieces


SIZES = st.lists(st.integers(1, 7), max_size=6)


def walk(
    constraint: Constraint, vocabulary: Vocabulary, seed: int, closing: str = ""
) -> list[Token]:
    """A text that no model would write: any token that is allowed, and at last a way to the end."""
    tokens: list[Token] = []
    random = Random(seed)
    while not constraint.can_end():
        assert len(tokens) < 1000
        mask = constraint.mask()
        allowed = allowed_by(mask).tolist() if mask is not None else list(range(256))
        run = [random.choice([token for token in allowed if token not in vocabulary.eos])]
        if len(tokens) > 40 + seed:
            run = EndSearch(constraint).find(400) or run
        if len(tokens) > 20 + seed:  # no search finds the end of what is free until a tag comes
            tag = tokens_of(closing, vocabulary)
            run = tag if tag and constraint.validate(tag) == len(tag) else run
        for token in run:
            constraint.advance(token)
        tokens += run
    return tokens
