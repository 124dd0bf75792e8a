"""A server inside of this process, asked over HTTP, and models for it that each say one letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx

from mlxgen.server.app import make_app
from mlxgen.server.service import Service
from mlxgen.server.settings import Settings
from tests.fakes.checkpoints import write_checkpoint
from tests.fakes.tokenizers import byte_level_tokenizer

WAIT = 30.0  # seconds after which a test fails instead of hanging
LEAST = 128 << 20
"""The bytes that every model needs besides its weights."""


class Inside:
    """The server, and a client of it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        transport = httpx.ASGITransport(app=make_app(service), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=WAIT
        )

    async def say(self, model: str | None = None, **more: Any) -> httpx.Response:
        body = {"prompt": "x", "max_tokens": 3, "temperature": 0, "model": model, **more}
        return await self.http.post("/v1/completions", json=body)

    async def said(self, model: str | None = None, **more: Any) -> str:
        answer = await self.say(model, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    async def listed(self) -> dict[str, dict[str, Any]]:
        """What ``/v1/models`` says, by name."""
        data = (await self.http.get("/v1/models")).json()["data"]
        return {each["id"]: each for each in data}

    async def states(self) -> dict[str, str]:
        return {name: each["status"]["value"] for name, each in (await self.listed()).items()}

    async def loaded(self) -> set[str]:
        return {name for name, state in (await self.states()).items() if state == "loaded"}

    async def unload(self, model: str, *, again: bool = False) -> None:
        """``again``: ask until it is done."""
        async with asyncio.timeout(WAIT):
            answer = await self.http.post("/v1/models/unload", json={"model": model})
            while again and not answer.is_success:
                await asyncio.sleep(0.01)
                answer = await self.http.post("/v1/models/unload", json={"model": model})
        assert answer.json() == {"success": True}
        await self.until(model, "unloaded")

    async def until(self, model: str, state: str) -> None:
        async with asyncio.timeout(WAIT):
            while (await self.states())[model] != state:
                await asyncio.sleep(0.005)

    async def figure(self, name: str) -> float:
        """A figure of ``/metrics``."""
        page = (await self.http.get("/metrics")).text
        return float(page.split(f"\nmlxgen_{name} ")[1].split()[0])


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }


@asynccontextmanager
async def serving(
    *, boot: Any = None, fits: int | None = None, ready: bool = True, **settings: Any
) -> AsyncIterator[Inside]:
    """A server on a device on which so many models fit; unless ``ready`` it has not loaded one."""
    device = None if fits is None else (fits * LEAST + (64 << 20)) * 16 // 15
    service = Service(Settings(**settings), boot, device=device)
    inside = Inside(service)
    if ready:
        service.start()
    async with inside.http:
        try:
            if ready:
                async with asyncio.timeout(WAIT):
                    await service.became_ready
            yield inside
        finally:
            assert await service.close()


def run(test: Callable[[Inside], Awaitable[None]], **settings: Any) -> None:
    async def scene() -> None:
        async with serving(**settings) as inside:
            await test(inside)

    asyncio.run(scene())


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


def write_letter_adapter(root: Path, letter: str) -> Path:
    """An adapter with which any of these models answers with another letter."""
    model, folder = write_letter(root / f"says-{letter}", letter), root / f"{letter}-adapter"
    tensors: Any = mx.load(str(model / "model.safetensors"))
    table = "model.embed_tokens.weight"
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), {table: tensors[table]})
    kind = {"fine_tune_type": "full", "num_layers": 1, "lora_parameters": {}}
    (folder / "adapter_config.json").write_text(json.dumps(kind))
    return folder
