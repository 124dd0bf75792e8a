"""What a generation hands out."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from mlxgen import Chunk
from mlxgen.engine.chunk import chunk_of
from tests.fakes.speaking import PROMPT, endless


def test_the_repr_of_a_result_is_one_short_line() -> None:
    result = endless().lm.generate(PROMPT, max_tokens=200)
    assert repr(result).startswith("<Result 'abcdefgh")
    assert repr(result).endswith("…', 200 tokens, length>")
    assert len(repr(result)) < 100


def test_a_chunk_of_all_its_values_is_like_any_other() -> None:
    values: Any = (
        "text",
        7,
        3,
        -0.5,
        (),
        (),
        True,
        False,
        2,
        1,
        4,
        True,
        "stop",
        "end",
        (),
        (),
        (),
    )
    chunk = chunk_of(*values)
    assert type(chunk) is Chunk
    assert chunk == Chunk(*values)
    assert hash(chunk) == hash(Chunk(*values))
    assert replace(chunk, text="other") == Chunk("other", *values[1:])
    assert pickle.loads(pickle.dumps(chunk)) == chunk
    with pytest.raises(FrozenInstanceError):
        chunk.text = "changed"  # type: ignore[misc]
    with pytest.raises(TypeError):
        chunk_of(*values[:-1])
