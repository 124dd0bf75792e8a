"""Ranks that are threads of one process, with channels between them and without MLX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Barrier
from typing import Any

from mlxgen.machines.channel import Channel
from mlxgen.machines.group import Group


@dataclass(frozen=True)
class Raw:
    """A group of MLX's, for what only asks which of its ranks this is."""

    number: int
    of: int

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return self.of


class Pretended(Group):
    """A rank of a group whose values go through a list that all ranks share."""

    _values: list[Any]
    _barrier: Barrier

    def __init__(self, rank: int, values: list[Any], barrier: Barrier) -> None:
        hosts = tuple(f"host-{each}" for each in range(len(values)))
        addresses = (("127.0.0.1",),) * len(values)
        super().__init__(None, rank, len(values), "ring", hosts, addresses)  # type: ignore[arg-type]
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_barrier", barrier)

    def exchange(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(10)
        gathered = list(self._values)
        self._barrier.wait(10)
        return gathered


def groups(size: int = 2) -> Sequence[Group]:
    values: list[Any] = [None] * size
    barrier = Barrier(size)
    return [Pretended(rank, values, barrier) for rank in range(size)]


@contextmanager
def channels(size: int = 2, **options: Any) -> Iterator[Sequence[Channel]]:
    """An open channel for each rank; they are closed at the end."""
    with ThreadPoolExecutor(size) as pool:
        opened = list(pool.map(lambda group: Channel.open(group, **options), groups(size)))
    try:
        yield opened
    finally:
        for channel in opened:
            channel.close()
