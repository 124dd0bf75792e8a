"""Several real models in one server, as its clients see them."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from mlxgen.loading.memory import device_name
from mlxgen.server import exchange as replying
from mlxgen.server.app import make_app
from mlxgen.server.fleet import fleet as module
from mlxgen.server.service import Service
from mlxgen.server.settings import Settings
from tests.server.fakes import WAIT
from tests.server.running import running

from .kit import LEAST, MIB, write_letter

LETTERS = {"one": "a", "two": "b", "owner/three": "c"}
APIS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "llama": ("/completion", {"prompt": "x"}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
    "responses": ("/v1/responses", {"input": "x"}),
}


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models, one of which cannot be loaded."""
    root = tmp_path_factory.mktemp("models")
    for name, letter in LETTERS.items():
        write_letter(root / name, letter)
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text('{"model_type": "llama"}')
    return root


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the machine so small that so many models fit."""

    def fits(count: int) -> None:
        device = (count * LEAST + 64 * MIB) * 16 // 15
        monkeypatch.setattr(module, "memory_limit", lambda: (device, "this machine has"))

    return fits


class Server:
    """A server in this process."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        self.service = service
        self.http = http

    async def say(self, model: str | None = None, **more: Any) -> httpx.Response:
        body = {"prompt": "x", "max_tokens": 3, "temperature": 0, "model": model, **more}
        return await self.http.post("/v1/completions", json=body)

    async def said(self, model: str | None = None, **more: Any) -> str:
        answer = await self.say(model, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    async def states(self) -> dict[str, str]:
        listed = (await self.http.get("/v1/models")).json()["data"]
        return {each["id"]: each["status"]["value"] for each in listed}

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not what():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    service = Service(Settings(**settings))
    service.start()
    transport = httpx.ASGITransport(app=make_app(service))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", timeout=WAIT
    ) as http:
        try:
            async with asyncio.timeout(WAIT):
                await service.became_ready
            yield Server(service, http)
        finally:
            assert await service.close()


def run(test: Callable[[Server], Awaitable[None]], **settings: Any) -> None:
    async def scene() -> None:
        async with serving(**settings) as server:
            await test(server)

    asyncio.run(scene())


def test_each_request_is_answered_by_the_model_that_it_names(shelf: Path) -> None:
    async def test(server: Server) -> None:
        assert await server.states() == {
            "two": "loaded",
            "gpt": "loaded",
            "broken": "unloaded",
            "one": "unloaded",
            "owner/three": "unloaded",
            "haiku": "unloaded",
        }
        wanted: dict[str | None, str] = {
            "one": "a",
            "owner/three": "c",
            "haiku": "c",
            "gpt": "b",
            "gpt-9": "b",
            None: "b",
            "": "b",
        }
        said = await asyncio.gather(*(server.said(name) for name in wanted))
        assert said == [letter * 3 for letter in wanted.values()]
        assert {*(await server.states()).values()} == {"loaded", "unloaded"}
        answer = (await server.say("haiku")).json()
        assert answer["model"] == "haiku" and (await server.say(None)).json()["model"] == "two"
        for path, body in APIS.values():
            whole = {"max_tokens": 3, "temperature": 0, "model": "one", **body}
            text = (await server.http.post(path, json=whole)).text
            assert "aaa" in text, path

    run(
        test,
        models=(str(shelf / "two"),),
        model_dirs=(str(shelf),),
        aliases=("gpt", "haiku=owner/three"),
    )


def test_the_limit_for_kv_is_for_all_loaded_models_together(shelf: Path) -> None:
    async def test(server: Server) -> None:
        fleet = server.service.fleet

        def figure(name: str) -> int:
            return int(getattr(fleet.stats(), name))

        for count, name in enumerate(LETTERS, 1):
            assert await server.said(name) == LETTERS[name] * 3
            each = 64 * MIB // count
            assert [one.lm.memory.caches for one in fleet.serving] == [each] * count
            await server.until(lambda all=count * each: figure("byte_limit") == all)  # type: ignore[misc]
        assert figure("weight_bytes") == sum(one.lm.runtime.weight_bytes for one in fleet.serving)

    run(test, model_dirs=(str(shelf),), cache_bytes=64 * MIB)


def test_what_is_asked_about_a_model_names_it(shelf: Path) -> None:
    async def test(server: Server) -> None:
        assert await server.states() == dict.fromkeys(["broken", *LETTERS], "unloaded")
        get, post = server.http.get, server.http.post
        props = (await get("/props", params={"model": "owner/three"})).json()
        assert props["model_alias"] == "owner/three"
        assert props["model_path"] == str(shelf / "owner" / "three")
        tokens = (await post("/tokenize", json={"prompt": "x", "model": "one"})).json()["tokens"]
        text = (await post("/detokenize", json={"tokens": tokens, "model": "one"})).json()
        assert text["content"] == "x"
        counted = {"messages": [{"role": "user", "content": "x"}], "model": "one"}
        assert (await post("/v1/messages/count_tokens", json=counted)).json()["input_tokens"] > 0
        slots = (await get("/slots", params={"model": "two"})).json()
        assert slots[0] == {"id": 0, "n_ctx": None, "is_processing": False}
        assert (await get("/v1/models/owner/three")).json()["status"] == {"value": "loaded"}
        assert (await get("/v1/models/one")).json()["max_model_len"] == 4096
        answer = await get("/v1/models/gpt-9")
        assert answer.status_code == 404 and "'one'" in answer.json()["error"]["message"]
        for path in ("/props", "/slots"):
            assert (await get(path, params={"model": "gpt-9"})).status_code == 404, path
        assert (await server.say("gpt-9")).status_code == 404
        assert (await get("/health")).json()["ready"]
        figures = (await get("/metrics")).text
        assert 'mlxgen_model_loaded{model="one"} 1.0' in figures
        assert 'mlxgen_model_loaded{model="two"} 0.0' in figures
        assert f'mlxgen_device_info{{name="{device_name()}"}} 1.0' in figures
        assert float(figures.split("\nmlxgen_held_bytes ")[1].split()[0]) > 0
        assert 'mlxgen_model_requests_total{model="one"} 3.0' in figures

    run(test, model_dirs=(str(shelf),), strict_model=True)


def test_models_are_loaded_and_unloaded_on_demand(
    shelf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: Server) -> None:
        for path in ("load", "unload"):
            answer = await server.http.post(f"/models/{path}", json={"model": "one"})
            assert answer.json() == {"success": True}
            assert await server.states() == {
                "broken": "unloaded",
                "one": "loaded" if path == "load" else "unloading",
                "two": "unloaded",
                "owner/three": "unloaded",
            }
        assert await server.said("one") == "aaa"
        async with server.service.fleet._room:
            loading = asyncio.create_task(server.said("two"))
            await server.until(lambda: bool(server.service.fleet.members["two"].waiters))
            answer = await server.http.post("/models/unload", json={"model": "two"})
            assert answer.status_code == 409
        assert await loading == "bbb"
        for body, status in (({"model": "gpt-9"}, 404), ({}, 400), ({"model": "broken"}, 503)):
            assert (await server.http.post("/models/load", json=body)).status_code == status

    with caplog.at_level(logging.INFO, "mlxgen.server"):
        run(test, model_dirs=(str(shelf),))
    for event in ("a model was loaded", "a model was unloaded", "a model cannot be loaded"):
        assert event in caplog.messages


def test_a_model_that_cannot_be_loaded_says_why_and_harms_no_other(shelf: Path) -> None:
    async def test(server: Server) -> None:
        answer = await server.say("broken")
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        error = answer.json()["error"]
        assert error["code"] == "model_not_loaded"
        assert "holds no weights" in error["message"]
        (told,) = [
            each["status"]
            for each in (await server.http.get("/v1/models")).json()["data"]
            if each["id"] == "broken"
        ]
        assert told["failed"] and "holds no weights" in told["reason"]
        assert await server.said("one") == "aaa"

    run(test, model_dirs=(str(shelf),))


def test_a_stream_that_waits_for_its_model_gives_signs_of_life(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[int], None]
) -> None:
    monkeypatch.setattr(replying, "SILENCE", 0.01)

    async def test(server: Server) -> None:
        async def begun(model: str) -> list[asyncio.Task[httpx.Response]]:
            """A stream of each API, while the load has to wait."""
            limits = {"max_tokens": 3, "temperature": 0, "stream": True, "model": model}
            posts = (server.http.post(path, json=limits | body) for path, body in APIS.values())
            waiting = [asyncio.create_task(post) for post in posts]
            await asyncio.sleep(0.1)
            return waiting

        async with server.service.fleet._room:
            waiting = await begun("one")
        for answer in await asyncio.gather(*waiting):
            assert answer.status_code == 200
            assert answer.text.startswith(f"{replying.LOADING.text}\n")
            assert "a" in answer.text.partition("data:")[2]

        async with server.service.fleet._room:
            waiting = await begun("two")
            room(0)  # what fails that late is an event
        for api, answer in zip(APIS, await asyncio.gather(*waiting), strict=True):
            assert answer.status_code == 200
            data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            event = json.loads(data[0])
            assert data[1:] == (["[DONE]"] if api in ("chat", "completions") else [])
            error = event["response"]["error"] if api == "responses" else event["error"]
            assert "two is not loaded: it needs" in error["message"]
            kinds = {"messages": "error", "responses": "response.failed"}
            assert event.get("type") == kinds.get(api)

    run(test, model_dirs=(str(shelf),))


def test_a_model_that_answers_is_not_unloaded_under_its_answer(
    shelf: Path, room: Callable[[int], None]
) -> None:
    room(1)

    async def test(server: Server) -> None:
        long = asyncio.create_task(server.said("one", max_tokens=300))
        await server.until(lambda: server.service.fleet.members["one"].users == 1)
        other = asyncio.create_task(server.said("two"))
        assert await long == "a" * 300
        assert await other == "bbb"
        assert (await server.states())["one"] == "unloaded"

    run(test, model_dirs=(str(shelf),))


@pytest.mark.slow
def test_a_request_waits_for_a_load_no_longer_than_for_a_place(shelf: Path) -> None:
    async def test(server: Server) -> None:
        async with server.service.fleet._room:
            answer = await server.say("one")
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "queue_timeout"
            assert (await server.http.get("/props")).json()["error"]["code"] == "queue_timeout"

    run(test, model_dirs=(str(shelf),), queue_timeout=0.05)


@pytest.mark.slow
def test_the_only_model_is_unloaded_when_idle_and_comes_back(shelf: Path) -> None:
    async def test(server: Server) -> None:
        member = server.service.fleet.default
        assert await server.said() == "aaa"
        await server.until(lambda: member.serving is None)
        assert (await server.http.get("/health")).json()["ready"]
        assert await server.said() == "aaa"

    run(test, models=(str(shelf / "one"),), idle_unload=0.1)


@pytest.mark.slow
def test_a_signal_ends_a_server_with_several_models_that_answer_and_load(shelf: Path) -> None:
    with running("--model", str(shelf / "one"), "--model-dir", str(shelf)) as server:
        assert server.greeting.endswith("serving one, and 3 more when asked for")
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True}
        links = [server.send("/v1/completions", body | {"model": name}) for name in LETTERS]
        server.wait_until(lambda: server.rows() > 0, "nothing runs")
        assert server.end(signal.SIGTERM) == 0
        for link in links:
            assert b" 200 OK" in link.recv(1000)
            link.close()


def test_a_model_that_is_unloaded_gives_its_memory_back(shelf: Path, tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        before = mx.get_active_memory()
        for _ in range(2):
            assert await server.said("owner/three", prompt="x" * 600, max_tokens=40)
            assert mx.get_active_memory() > before
            server.service.fleet.dismiss(server.service.fleet.members["owner/three"])
            await server.until(lambda: not any(server.service.fleet.loaded().values()))
            await server.until(lambda: server.service.fleet.members["owner/three"].weights == 0)
            assert mx.get_active_memory() <= before

    run(test, model_dirs=(str(shelf),), cache_dir=str(tmp_path))
