"""What a copy shares with its original: values, and what its class says by name."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mlxgen.forks import forked


@dataclass
class Part:
    field: Any

    def fork(self) -> Part:
        return forked(self)


@dataclass(slots=True)
class Slotted:
    tokens: Any
    table: Any = None


def test_a_field_that_nobody_thought_of_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Part\.field is a ndarray"):
        Part(np.zeros(1)).fork()
    with pytest.raises(TypeError, match=r"Slotted\.table is a object"):
        forked(Slotted([1], object()))


@pytest.mark.whole
@pytest.mark.parametrize("value", [[1], {1: 2}, {1}, deque([1]), Part([1])])
def test_fields_are_copied_or_shared_or_given_by_name(value: Any) -> None:
    table = object()
    part = Slotted(value, table)
    twin = forked(part, shared=("table",))
    assert twin.table is table and twin.tokens == value and twin.tokens is not value
    given = forked(part, table=5)
    assert given.table == 5 and part.table is table
    inner = Part(Part([1]))
    assert inner.fork().field.field is not inner.field.field
