"""Chat formats of well-known families, in ``families.json``, over tiny tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken

from mlxgen import Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer
from tests.fakes.tokenizers import metaspace_tokenizer

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
    known = json.loads((Path(__file__).parent / "families.json").read_text())
    return tuple(_family(name, **made) for name, made in known.items())
