"""Models without weights, and chunks as an engine would deliver them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

import mlxgen
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.splitter import Marks
from mlxgen.engine.chunk import Alternative, Chunk, FinishReason, Usage
from mlxgen.server.ask import Ask
from mlxgen.server.engine.mailbox import Delivery
from mlxgen.server.errors import RequestError
from mlxgen.server.reply import Event, Reply, Sent
from mlxgen.server.served_model import ServedModel
from mlxgen.server.wire import to_text
from mlxgen.text import TextDecoder
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer

DEMO = Path(mlxgen.__file__).parent / "demo" / "model"
GAP_MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
HELLO = [{"role": "user", "content": "Hello"}]


def served(tokenizer: TokenizerWrapper, **changes: Any) -> ServedModel:
    """The model of a tokenizer, with nothing behind it."""
    vocabulary = Vocabulary.of(tokenizer)
    facts = {"name": "tiny", "vocab_size": vocabulary.size, "max_context": 2048, "recommended": {}}
    lm = SimpleNamespace(tokenizer=tokenizer, vocabulary=vocabulary, images=None, **facts)
    return replace(ServedModel.of(cast(Any, lm)), **changes)


@cache
def demo() -> ServedModel:
    """The demo model: it thinks, and calls tools in JSON between tags."""
    return served(load_tokenizer(DEMO))


@cache
def plain() -> ServedModel:
    """A model that neither thinks nor calls tools."""
    return served(byte_level_tokenizer())


@cache
def thinker() -> ServedModel:
    """A model whose marks are single tokens of the fake vocabulary, and that thinks."""
    marks = Marks(think_start="<think>", think_end="</think>")
    return with_dialect(plain(), marks=marks, tools=FORMATS["json_tools"])


@cache
def coder() -> ServedModel:
    """A model that can fill in a gap."""
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_special_tokens({"additional_special_tokens": list(GAP_MARKS)})
    return served(tokenizer)


def with_dialect(model: ServedModel, **changes: Any) -> ServedModel:
    """A model that writes otherwise."""
    return replace(model, dialect=replace(model.dialect, **changes))


def refused(parse: Callable[[Any, ServedModel], Ask], body: Any, model: ServedModel) -> Any:
    """The error that a body gives; it is one that a client can use."""
    with pytest.raises(RequestError) as info:
        parse(body, model)
    error = info.value
    assert 400 <= error.status < 500
    body = error.body()["error"]
    assert body["message"] and len(body["message"]) < 600
    assert set(body) == {"message", "type", "param", "code"}
    body["message"].encode()
    return error


def usage(prompt: int = 3, completion: int = 5, cached: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def chunks_of(
    tokens: Sequence[Token],
    vocabulary: Vocabulary,
    *,
    delays: Sequence[int] = (),
    finish: FinishReason = "stop",
    cut: int | None = None,
    first: int = 0,
    opens_text: bool = True,
    logprob: bool = False,
) -> list[Chunk]:
    """Chunks of tokens, as an engine delivers them.

    ``delays`` are characters that are held back after each token; ``cut`` is where a stop ends
    the text; the first ``first`` tokens are a prefix, which gets no chunks.
    """
    decoder = TextDecoder(vocabulary, strip=opens_text)
    ends = [0]
    for token in tokens:
        decoder.advance(token)
        ends.append(decoder.end(len(decoder)))
    text = decoder.text + decoder.flush()
    end = len(text) if cut is None else min(cut, len(text))
    sent = min(ends[first], end)
    chunks = []
    for i, token in enumerate(tokens[first:], start=first):
        is_last = i + 1 == len(tokens)
        delay = delays[i % len(delays)] if delays else 0
        upto = end if is_last else max(sent, min(end, ends[i + 1] - delay))
        top = (Alternative(token, -0.5), Alternative((token + 1) % 256, -2.0)) if logprob else ()
        chunks.append(
            Chunk(
                text[sent:upto],
                token,
                i,
                logprob=-0.5 if logprob else None,
                top=top,
                finish_reason=finish if is_last else None,
            )
        )
        sent = upto
    return chunks


def news(chunk: Chunk, index: int = 0, used: Usage | None = None) -> Delivery:
    """A chunk of a sequence, as the engine delivers it."""
    return Delivery(index, [chunk], used)


def whole_of(reply: Reply, events: Iterable[Sent]) -> Any:
    """The whole answer, of the events of a stream."""
    for event in events:
        assert isinstance(event, dict)
        reply.fold(event)
    return reply.whole()


def read_again(sent: Sequence[Sent]) -> list[Event]:
    """What a client reads of events."""
    return [json.loads(event if isinstance(event, str) else to_text(event)) for event in sent]


def without(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in names}
