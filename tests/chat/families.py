"""Chat formats of well-known families, over tiny tokenizers.

Those of ``families.json`` are what mlx-lm and transformers know. Each of ``makers.json``, for which
mlx-lm has no parser, has a template, written anew and as short as what it is to show allows, and
its added tokens; the text of an answer with its ``thought``, what was ``said``, and how many of the
calls of ``asked.json`` it makes; and, if its template tells calls, how it writes a ``past`` one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from tokenizers import AddedToken

from mlxgen.chat.dialect import Dialect
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer
from tests.fakes.tokenizers import metaspace_tokenizer

HERE = Path(__file__).parent
MAKERS: dict[str, dict[str, Any]] = json.loads((HERE / "makers.json").read_text(encoding="utf-8"))
ASKED: dict[str, Any] = json.loads((HERE / "asked.json").read_text(encoding="utf-8"))
_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "bytes": byte_level_tokenizer,
    "pieces": sentencepiece_tokenizer,
    "pieces, no space": partial(sentencepiece_tokenizer, strip=False),
    "metaspace": metaspace_tokenizer,
}


class Family(NamedTuple):
    """A chat format; ``control`` are the texts of its control tokens."""

    name: str
    vocabulary: Vocabulary
    control: tuple[str, ...]


def _family(
    name: str, *, tokenizer: str, template: list[str], special: list[str], plain: list[str]
) -> Family:
    made: Any = _TOKENIZERS[tokenizer]()._tokenizer
    backend = made.backend_tokenizer
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in plain])
    made.chat_template = "\n".join(template)
    return Family(name, Vocabulary.of(made), (*special, *plain))


@cache
def families() -> tuple[Family, ...]:
    """All of them."""
    known = json.loads((HERE / "families.json").read_text())
    return tuple(_family(name, **made) for name, made in known.items())


@cache
def vocabulary_of(name: str) -> Vocabulary:
    """Tokens of bytes and of a family's marks, with its template."""
    made, tokenizer = MAKERS[name], byte_level_tokenizer()._tokenizer
    tokens = [AddedToken(text, normalized=False) for text in made["tokens"]]
    tokenizer.backend_tokenizer.add_special_tokens(tokens)
    tokenizer.chat_template = "\n".join(made["template"])
    assert _infer_tool_parser(tokenizer) is None, "mlx-lm has a parser for it"
    return Vocabulary.of(TokenizerWrapper(tokenizer))


@cache
def dialect_of(name: str) -> Dialect:
    return Dialect.of(vocabulary_of(name))
