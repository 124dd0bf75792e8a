"""Model families that mlx-lm has no parser for: small templates after theirs, and their answers.

Each of ``makers.json`` has a template, written anew and as short as what it is to show allows, and
its added tokens; the text of an answer with its ``thought``, what was ``said``, and how many of
``test_families.CALLS`` it makes; and, if its template tells calls, how it writes a ``past`` one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from tokenizers import AddedToken

from mlxgen.chat.dialect import Dialect
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

MAKERS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "makers.json").read_text(encoding="utf-8")
)


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
