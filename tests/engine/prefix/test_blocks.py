"""What stays in memory and in a folder, and what is found there: every line of
``tests/data/blocks.jsonl``.

A line has layers, and what is done and seen one after the other; ``open`` begins a new process on
the folder. ``0..9 5`` are nine tokens and another one. Numbers are exact, or the least and the
most; files are numbered as they were written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from mlxgen.engine.prefix.store import BlockStore
from tests.fakes.filled_caches import Ids, Make, plain_layers, state_layers, taken
from tests.fakes.small_blocks import use_blocks

from ..kit import fits
from .kit import PLENTY, files_in, gives, keep, size_of, store_in, write

TABLE = Path(__file__).parents[2] / "data" / "blocks.jsonl"
LINES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
LAYERS: dict[str, Make] = {
    "plain": plain_layers,
    "states": state_layers,
    "windows": lambda: [KVCache(), RotatingKVCache(max_size=8)],
}


def ids_of(text: str) -> Ids:
    ids: list[int] = []
    for word in text.split():
        first, _, last = word.partition("..")
        ids += range(int(first), int(last)) if last else [int(first)]
    return tuple(ids)


class Shelf:
    """A store, and a method for each thing that a line may do or see."""

    def __init__(self, path: Path, make: Make, memory: int) -> None:
        self.path, self.make = path, make
        self.store = BlockStore(make, memory)
        self.files: list[Path] = []
        self.size = 0

    def do(self, deed: list[Any]) -> None:
        verb, *given = deed
        getattr(self, verb)(*given)

    def open(self, limits: dict[str, Any] | None = None) -> None:
        """``disk``: so large a share of what was measured, and some bytes more."""
        memory, disk = PLENTY, PLENTY
        if limits is not None:
            share, more = limits.get("disk", (0, PLENTY))
            memory, disk = limits.get("memory", PLENTY), int(self.size * share) + more
        self.store = store_in(self.path, self.make, memory=memory, disk=disk)
        assert self.store.disk.disk_bytes == size_of(self.path) <= disk

    def write(self, ids: str, count: Any) -> None:
        assert fits(write(self.store, self.make, ids_of(ids)), count)
        new = {*files_in(self.path)} - {*self.files}
        self.files += sorted(new, key=lambda file: int(file.name.split(".")[2]))
        assert size_of(self.path) <= self.store.disk.disk_limit

    def keep(self, ids: str) -> None:
        keep(self.store, self.make, ids_of(ids))

    def flush(self) -> None:
        assert self.store.flush(20)

    def gives(self, ids: str, count: Any) -> None:
        assert fits(gives(self.store, ids_of(ids)), count)

    def match(self, ids: str, count: int) -> None:
        assert self.store.match(ids_of(ids)) == count

    def take(self, ids: str) -> None:
        assert taken(self.store, ids_of(ids)) is not None

    def shrink(self, by: int) -> None:
        self.store.shrink(self.store.nbytes - by)

    def held(self, wanted: dict[str, int]) -> None:
        assert {name: getattr(self.store, name) for name in wanted} == wanted

    # on disk

    def lose(self, number: int) -> None:
        self.files[number].unlink()

    def break_(self, number: int) -> None:
        file = self.files[number]
        file.write_bytes(file.read_bytes()[:30])

    def age(self) -> None:
        """As if they had been written long ago, one after the other."""
        for second, file in enumerate(self.files, 1):
            os.utime(file, (second, second))

    def date(self, later: float) -> None:
        when = time.time() + later  # the same for all of them
        for file in files_in(self.path):
            os.utime(file, (when, when))

    def measure(self) -> None:
        self.size = size_of(self.path)

    def count(self, count: int) -> None:
        assert len(files_in(self.path)) == count

    def left(self, numbers: list[int]) -> None:
        assert [n for n, file in enumerate(self.files) if file.exists()] == numbers


@pytest.mark.whole
@pytest.mark.parametrize("line", LINES, ids=[line["why"] for line in LINES])
def test_what_is_kept_is_what_will_be_of_use(
    line: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "blocks" in line:
        use_blocks(monkeypatch, line["blocks"])
    shelf = Shelf(tmp_path, LAYERS[line["layers"]], line.get("memory", PLENTY))
    for deed in line["do"]:
        shelf.do(deed)
