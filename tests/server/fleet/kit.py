"""Fleets without real models, and folders with tiny ones that each say one letter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from mlxgen.engine import Stats
from mlxgen.server.engine.boot import Ask, Engine
from mlxgen.server.errors import RequestError
from mlxgen.server.fleet import fleet as module
from mlxgen.server.fleet.catalogue import Catalogue, Entry
from mlxgen.server.fleet.fleet import Fleet
from mlxgen.server.jobs import Workers
from mlxgen.server.settings import Settings
from tests.fakes.checkpoints import write_checkpoint
from tests.fakes.tokenizers import byte_level_tokenizer
from tests.server.fakes import WAIT, FakeScheduler
from tests.server.kit import plain

MIB = 1 << 20
LEAST = 128 * MIB
"""What every model needs besides its weights."""
NOTHING = Stats(**dict.fromkeys(Stats.__dataclass_fields__, 0) | {"drafts": {}})  # type: ignore[arg-type]


class Scheduler(FakeScheduler):
    def stats(self) -> Any:
        return replace(NOTHING, steps=self.steps, running=len(self.handles))

    def follow(self, plan: Any) -> None:
        """Nothing is held."""


class FakeModel:
    """A model without weights, and its own runtime; ``shares`` are the plans that it was told to go
    by."""

    def __init__(self, name: str, weight_bytes: int) -> None:
        self.name = name
        self.weight_bytes = weight_bytes
        self.shares: list[tuple[int, int]] = []
        self.memory = SimpleNamespace(caches=0)
        self.prepare_all: Any = None
        self.runtime = self

    def share_memory(self, weights: int, sharers: int) -> None:
        self.shares.append((weights, sharers))


class Yard:
    """A fleet of models called ``a``, ``b``, ... with so many MiB of weights.

    ``room``: how many MiB fit beside what each of them needs. ``broken``: names of models that
    cannot be loaded. ``bases``: whose weights some of them share.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        *,
        room: int,
        most: int,
        bases: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        names = "abcdefgh"
        self.sizes = dict(zip(names, sizes, strict=False))
        self.broken: set[str] = set()
        self.hold: asyncio.Event | None = None
        self.began: list[str] = []
        self.models: dict[str, FakeModel] = {}
        entries = tuple(
            Entry(name=name, source=f"/models/{name}", base=(bases or {}).get(name))
            for name in self.sizes
        )
        self.catalogue = Catalogue(entries)
        device = (room * MIB + most * LEAST) * 16 // 15 + 16
        self.failures: list[BaseException] = []
        self.fleet = Fleet(
            self.catalogue,
            Settings(models=tuple(self.sizes), **settings),
            Workers(),
            boots=self._boots,
            failed=self.failures.append,
            device=device,
        )

    def _boots(self, entry: Entry, ask: Ask | None) -> Any:
        def boot() -> Any:
            size = self.sizes[entry.name] * MIB
            base = None if ask is None else ask(size)
            assert (None if base is None else base.name) == entry.base
            self.began.append(entry.name)
            if entry.name in self.broken:
                raise ValueError("no such tensor")
            lm: Any = FakeModel(entry.name, size)
            self.models[entry.name] = lm
            model = replace(plain(), name=entry.name)
            return Scheduler(), Engine(lm, model)

        return boot

    def entry(self, name: str) -> Entry:
        return self.catalogue.named(name)

    async def use(self, name: str) -> Any:
        async with asyncio.timeout(WAIT):
            return await self.fleet.use(self.entry(name))

    def release(self, name: str) -> None:
        self.fleet.release(self.entry(name))

    async def used(self, name: str) -> None:
        """Use a model for a moment."""
        serving = await self.use(name)
        assert serving.model.name == name
        self.release(name)

    @property
    def states(self) -> dict[str, str]:
        return {name: each.status.value for name, each in self.fleet.members.items()}

    @property
    def loaded(self) -> str:
        return "".join(name for name, state in self.states.items() if state == "loaded")

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not what():
                await asyncio.sleep(0.002)


def with_yard(
    test: Callable[[Yard], Awaitable[None]], sizes: Iterable[int] = (1, 1, 1), **options: Any
) -> None:
    """Run a test with a fleet, all of which ends afterwards."""

    async def run() -> None:
        yard = Yard(sizes, **{"room": 100, "most": 2, **options})
        try:
            await test(yard)
        finally:
            assert await yard.fleet.close()
        assert not yard.failures

    with patch.object(module, "_free_memory", lambda: None):  # there is nothing to free
        asyncio.run(run())


async def refused(waiting: Awaitable[Any]) -> RequestError:
    """The error of a request."""
    try:
        async with asyncio.timeout(WAIT):
            await waiting
    except RequestError as error:
        return error
    raise AssertionError("it was answered")


def write_letter(folder: Path, letter: str) -> Path:
    """A model that answers with one letter, again and again."""
    tokenizer = byte_level_tokenizer()
    (token,) = tokenizer.encode(letter, add_special_tokens=False)

    def change(model: Any, config: dict[str, Any]) -> None:
        table = mx.full(model.model.embed_tokens.weight.shape, 0.1)
        table[token] = 1.0  # the rest of a pass changes nothing
        model.model.embed_tokens.weight = table
        for layer in model.model.layers:
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.weight = mx.zeros_like(part.weight)

    return write_checkpoint(folder, tokenizer, change=change)
