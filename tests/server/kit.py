"""Models without weights, and chunks as an engine would deliver them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

import mlxgen
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.marks import Marks
from mlxgen.engine.chunk import Alternative, Chunk, FinishReason
from mlxgen.loading.generation_config import SamplingChoice, sampling_defaults
from mlxgen.server.served_model import ServedModel
from mlxgen.text import TextDecoder
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer
from tests.fakes.tokenizers import CHAT_TEMPLATE

from ..chat.families import vocabulary_of

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


def templated(template: str, *added: str) -> ServedModel:
    """A model with this chat template and with added tokens, such as the marks of thoughts."""
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_tokens(list(added))
    tokenizer = TokenizerWrapper(tokenizer._tokenizer, eos_token_ids=tokenizer.eos_token_ids)
    tokenizer.chat_template = template.replace("CHAT", CHAT_TEMPLATE)
    return served(tokenizer)


def with_dialect(model: ServedModel, **changes: Any) -> ServedModel:
    """A model that writes otherwise."""
    return replace(model, dialect=replace(model.dialect, **changes))


def recommended(choice: SamplingChoice, **recommended: float) -> ServedModel:
    """The demo model, as if its makers had recommended how to sample it."""
    return replace(demo(), sampling=sampling_defaults(choice, recommended), sampling_choice=choice)


def coder() -> ServedModel:
    """A model that can fill in a gap."""
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_special_tokens({"additional_special_tokens": list(GAP_MARKS)})
    return served(tokenizer)


def loose() -> ServedModel:
    """The demo model, if no grammar knew its calls."""
    tools = demo().dialect.tools
    assert tools is not None
    return with_dialect(demo(), tools=replace(tools, enforced=False))


THINK = ("<think>", "</think>")
MAKERS = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
MODELS: Mapping[str, Callable[[], ServedModel]] = {
    "demo": demo,
    "plain": plain,
    "thinker": lambda: with_dialect(
        plain(),
        marks=Marks(think_start="<think>", think_end="</think>"),
        tools=FORMATS["json_tools"],
    ),
    "coder": coder,
    "pieces": lambda: served(sentencepiece_tokenizer()),
    "channels": lambda: served(vocabulary_of("gpt-oss").tokenizer),
    "headed": lambda: with_dialect(plain(), marks=replace(plain().dialect.marks, initial="header")),
    "loose": loose,
    # the demo model in another server
    "strict": lambda: replace(demo()),  # of a server that refuses unknown fields
    "budgeted": lambda: replace(demo(), thinking_budget=2000),
    "unbounded": lambda: replace(demo(), max_context=None),
    "recommended": lambda: recommended("model", **MAKERS),
    "recommended 0": lambda: recommended("model", temperature=0),
    "not recommended": lambda: recommended("model"),
    "greedy": lambda: recommended("greedy", **MAKERS),
    "openai": lambda: recommended("openai", **MAKERS),
    # chat templates
    "graded": lambda: templated("CHAT{{ reasoning_effort }}"),
    "tooled": lambda: templated("CHAT{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"),
    "remembers thoughts": lambda: templated("CHAT{{ messages[1].reasoning_content }}"),
    "remembers calls": lambda: templated(
        "CHAT{{ messages[1].tool_calls[0].function.arguments['pattern'] }}"
    ),
    "refuses": lambda: templated("{{ raise_exception('not today') }}"),
    "says nothing": lambda: templated("{{ '' }}"),
    "opens thoughts": lambda: templated(
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>", *THINK
    ),
    "shows thoughts": lambda: templated(
        "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
        "</think>{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<think>{% endif %}",
        *THINK,
    ),
}
"""The models of the tables of requests and answers."""


@cache
def model_of(name: str) -> ServedModel:
    return MODELS[name]()


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
