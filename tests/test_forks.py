"""What a copy shares with its original: values, and what its class says by name."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mlxgen.forks import forked


class Part:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:  # for type checkers
        raise AttributeError(name)

    def fork(self) -> Part:
        return forked(self)


@dataclass(slots=True)
class Slotted:
    tokens: list[int]
    table: Any = None


def test_a_copy_and_its_original_do_not_see_each_other() -> None:
    inner = Part(tokens=[1])
    part = Part(tokens=[1], seen={1: "a"}, sent=deque([1]), banned={1}, inner=inner, name="a")
    twin = part.fork()
    twin.tokens.append(2)
    twin.seen[2] = "b"
    twin.sent.append(2)
    twin.banned.add(2)
    twin.inner.tokens.append(2)
    assert (part.tokens, part.seen, part.sent, part.banned) == ([1], {1: "a"}, deque([1]), {1})
    assert inner.tokens == [1] and twin.name == "a"


def test_a_field_that_nobody_thought_of_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Part\.row is a ndarray"):
        Part(row=np.zeros(1)).fork()
    with pytest.raises(TypeError, match=r"Slotted\.table is a object"):
        forked(Slotted([1], object()))


def test_fields_are_shared_or_given_by_name() -> None:
    table = object()
    part = Slotted([1], table)
    twin = forked(part, shared=("table",))
    assert twin.table is table and twin.tokens == [1] and twin.tokens is not part.tokens
    given = forked(part, table=5)
    assert given.table == 5 and part.table is table
