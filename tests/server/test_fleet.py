"""Several models in one server: who is loaded, who has to go, who waits, and what clients see.

Every line of ``tests/data/server/fleets.jsonl`` has the ``settings`` of a server, in which @ is the
folder of the models, and ``steps``, each of which is something to do and what comes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from mlxgen.arguments import load_model
from mlxgen.loading import hub
from mlxgen.server import exchange, fleet, served_model, serving
from tests.effort import tries
from tests.fakes.checkpoints import write_adapter

from .apis import ENDPOINTS
from .exchanges import fits, lines, outcome, wanted
from .inside import WAIT, Inside, run, settings_of, write_letter, write_letter_adapter
from .running import Running

LETTERS = {"one": "a", "two": "b", "owner/three": "c", "one:x": "x", "one:y": "y"}
APIS = ENDPOINTS.keys() - {"infill"}
LINES = lines("fleets")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models, one of which cannot be loaded, beside adapters for the first."""
    root = tmp_path_factory.mktemp("shelf")
    for name, letter in LETTERS.items():
        if ":" not in name:
            write_letter(root / "models" / name, letter)
    (root / "models" / "broken").mkdir()
    (root / "models" / "broken" / "config.json").write_text('{"model_type": "llama"}')
    for letter in "xy":
        write_letter_adapter(root, letter)
    return root


@pytest.fixture(scope="module")
def several(shelf: Path) -> dict[str, Any]:
    """The settings of a server with all of them, none of which is loaded at the start."""
    adapters = tuple(f"one:{letter}={shelf}/{letter}-adapter" for letter in "xy")
    return {"model_dirs": (str(shelf / "models"),), "adapters": adapters}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set, no load gets on."""
    go = threading.Event()
    go.set()

    def waiting(*given: Any, **options: Any) -> Any:
        assert go.wait(WAIT)
        return load_model(*given, **options)

    monkeypatch.setattr(served_model, "load_model", waiting)
    return go


@contextlib.asynccontextmanager
async def answering(inside: Inside, name: str) -> AsyncIterator[None]:
    """The time in which a model has more to say than it can."""
    long = asyncio.create_task(inside.said(name, max_tokens=4000, ignore_eos=True))
    await inside.until(name, "loaded")
    yield
    assert not long.done()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)


# ---- the lines -----------------------------------------------------------------------------------


async def play(inside: Inside, steps: Sequence[Mapping[str, Any]]) -> None:
    """Take the steps of a line."""
    begun: list[tuple[asyncio.Task[str], str]] = []
    async with contextlib.AsyncExitStack() as held:
        for step in steps:
            match step:
                case {"by": name, "says": text}:
                    assert await inside.said(name) == text, step
                case {"begins": name, "says": text, **more}:
                    begun.append((asyncio.create_task(inside.said(name, **more)), text))
                case {"ended": _}:
                    said = await asyncio.gather(*(task for task, _ in begun))
                    assert said == [text for _, text in begun]
                case {"holds": name}:
                    await held.enter_async_context(answering(inside, name))
                case {"until": name, "is": state}:
                    await inside.until(name, state)
                case {"loaded": names}:
                    assert await inside.loaded() == set(names.split()), step
                case {"listed": names}:
                    assert list(await inside.listed()) == names.split(), step
                case {"unload": name}:
                    await inside.unload(name)
                case {"figure": name, "is": value}:
                    async with asyncio.timeout(WAIT):
                        while await inside.figure(name) != value:
                            await asyncio.sleep(0.005)
                case {"get": path} | {"post": path}:
                    method = "POST" if "post" in step else "GET"
                    answer = await inside.http.request(method, path, json=step.get("body"))
                    assert fits(outcome(answer), wanted(step)), (step, answer.text)
                case _:
                    raise ValueError(step)


@pytest.mark.whole
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["case"])
def test_a_fleet_does_as_its_line_says(
    line: Mapping[str, Any], shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "check", lambda repo: None)
    known = json.loads(json.dumps(line).replace("@", str(shelf / "models")))
    run(partial(play, steps=known["steps"]), **settings_of(known["settings"]))


# ---- who is loaded -------------------------------------------------------------------------------


def test_a_server_that_ends_while_a_model_waits_for_room_has_not_failed(
    several: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(inside: Inside) -> None:
        async with answering(inside, "one"):
            waiting = asyncio.create_task(inside.said("two"))
            await inside.until("one", "unloading")
            assert await inside.service.close() and not waiting.done()

    with caplog.at_level("INFO", "mlxgen.server"):
        run(test, fits=1, **several)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_all_who_ask_share_one_load_and_one_who_leaves_does_not_end_it(
    several: dict[str, Any], loads: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(inside: Inside) -> None:
        loads.clear()
        tasks = [asyncio.create_task(inside.said("one")) for _ in range(3)]
        await inside.until("one", "loading")
        while "progress" not in (status := (await inside.listed())["one"]["status"]):
            await asyncio.sleep(0.005)  # until it has got room
        assert 0 <= status["progress"] <= 1
        answer = await inside.http.post("/v1/models/unload", json={"model": "one"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_loading")
        tasks[0].cancel()
        loads.set()
        assert await asyncio.gather(*tasks[1:]) == ["aaa", "aaa"]
        assert (await inside.listed())["one"]["status"] == {"value": "loaded"}

    with caplog.at_level("INFO", "mlxgen.server"):
        run(test, **several)
    assert caplog.messages.count("a model was loaded") == 1


@pytest.mark.parametrize("late", range(6))
def test_who_leaves_at_the_moment_of_a_loads_end_does_not_hold_the_model(
    several: dict[str, Any], loads: threading.Event, late: int
) -> None:
    """``late``: turns of the event loop between the end of the load and the leaving."""

    async def test(inside: Inside) -> None:
        loads.clear()
        task = asyncio.create_task(inside.said("one", max_tokens=4000, ignore_eos=True))
        await inside.until("one", "loading")
        loop, member = asyncio.get_running_loop(), inside.service.fleet.members["one"]

        def leave(turns: int) -> None:
            if turns:
                loop.call_soon(leave, turns - 1)
            else:
                task.cancel()

        assert member.turn is not None
        member.turn.add_done_callback(lambda _: leave(late))
        loads.set()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await inside.unload("one", again=True)

    run(test, **several)


def test_a_model_whose_files_are_fetched_keeps_no_request_for_another_waiting(
    several: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, size_of = threading.Event(), served_model.size_of

    def slow(entry: Any) -> int:
        assert entry.name == "one" or fetched.wait(WAIT)
        return size_of(entry)

    async def test(inside: Inside) -> None:
        waiting = asyncio.create_task(inside.said("two"))
        await inside.until("two", "loading")
        assert await inside.said("one") == "aaa"
        fetched.set()
        assert await waiting == "bbb"

    monkeypatch.setattr(serving, "THREADS", 1)
    monkeypatch.setattr(fleet, "size_of", slow)
    run(test, **several)


def test_a_model_that_cannot_be_loaded_says_why_and_is_tried_again_later(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "broken"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    write_letter(tmp_path / "models" / "good", "g")
    adapter = f"broken:x={shelf}/x-adapter"

    async def test(inside: Inside) -> None:
        for answer in await asyncio.gather(*map(inside.say, ["broken", "broken", "broken:x"])):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "model_not_loaded")
            assert "holds no weights" in error["message"] and answer.headers["retry-after"]
        told = (await inside.listed())["broken"]["status"]
        assert told["failed"] and "holds no weights" in told["reason"]
        assert await inside.said("good") == "ggg"
        write_letter(folder, "b")
        assert (await inside.say("broken")).status_code == 503, "it was tried just now"
        monkeypatch.setattr(fleet, "PAUSE", 0.0)
        assert await inside.said("broken:x") == "xxx"
        assert (await inside.listed())["broken"]["status"] == {"value": "loaded"}

    run(test, model_dirs=(str(tmp_path / "models"),), adapters=(adapter,))


def test_an_adapter_of_another_model_says_why_and_lets_its_base_go(
    shelf: Path, tmp_path: Path
) -> None:
    one = shelf / "models" / "one"
    folder = write_adapter(tmp_path / "wide", one, width=64)

    async def test(inside: Inside) -> None:
        answer = await inside.say("one:wide")
        assert answer.status_code == 503 and "does not fit the model" in answer.text
        assert await inside.said("one") == "aaa"
        await inside.unload("one")

    run(test, models=(str(one),), adapters=(f"wide={folder}",))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(tries(12)))
def test_everybody_gets_the_model_that_they_name_however_many_come_and_leave(
    several: dict[str, Any], seed: int
) -> None:
    chance = random.Random(seed)

    async def client(inside: Inside) -> None:
        for _ in range(5):
            name = chance.choice(list(LETTERS))
            count = chance.randrange(1, 9)
            task = asyncio.create_task(inside.said(name, max_tokens=count))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.02)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                continue
            assert await task == LETTERS[name] * count
            states = await inside.states()
            held = {each for each, state in states.items() if state in ("loaded", "unloading")}
            assert len(held) <= 3
            assert "one" in held or not any(":" in each for each in held)

    async def test(inside: Inside) -> None:
        counts = []
        for _ in range(2):
            await asyncio.gather(*(client(inside) for _ in range(8)))
            for name in LETTERS:  # as soon as nobody who has left is served any more
                await inside.unload(name, again=True)
            tasks = Path("/proc/self/task")
            counts.append(len(list(tasks.iterdir())) if tasks.is_dir() else 0)
        assert counts[1] <= counts[0] + 4, "threads are left"

    run(test, fits=3, **several)


@pytest.mark.parametrize("name", ["owner/three", "one:x"])
def test_what_is_unloaded_gives_its_memory_back_and_its_figures_stay(
    several: dict[str, Any], tmp_path: Path, name: str
) -> None:
    async def test(inside: Inside) -> None:
        left = []
        for _ in range(2):
            told = await inside.say(name, prompt="x" * 600, max_tokens=40, stream=True)
            assert told.text.endswith("[DONE]\n\n"), "and it may be read again for a while"
            await inside.unload(name)
            left.append(mx.get_active_memory())
        assert left[1] <= left[0]
        assert await inside.figure("completion_tokens_total") == 80
        assert await inside.figure("batch_size") == 0

    run(test, cache_dir=str(tmp_path), **several)


# ---- what clients see ----------------------------------------------------------------------------


def test_a_stream_that_waits_for_its_model_gives_signs_of_life(
    several: dict[str, Any], monkeypatch: pytest.MonkeyPatch, loads: threading.Event
) -> None:
    monkeypatch.setattr(exchange, "SILENCE", 0.01)

    async def streams(inside: Inside, model: str) -> list[httpx.Response]:
        """A stream of each API, during whose load there was silence."""
        loads.clear()
        limits = {"max_tokens": 3, "temperature": 0, "stream": True, "model": model}
        waiting = []
        for api in APIS:
            body = {**ENDPOINTS[api].plainest, **limits}
            waiting.append(asyncio.create_task(inside.http.post(ENDPOINTS[api].path, json=body)))
        await asyncio.sleep(0.1)
        loads.set()
        return await asyncio.gather(*waiting)

    async def test(inside: Inside) -> None:
        for answer in await streams(inside, "one"):
            assert answer.status_code == 200
            assert answer.text.startswith(": the model is being loaded\n")
            assert "a" in answer.text.partition("data:")[2]
        for api, answer in zip(APIS, await streams(inside, "broken"), strict=True):
            if answer.status_code == 503:  # it failed at once
                continue
            data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            event = json.loads(data[0])
            assert data[1:] == (["[DONE]"] if api in ("chat", "completions") else [])
            error = event["response"]["error"] if api == "responses" else event["error"]
            assert "broken is not loaded" in error["message"]
            kinds = {"messages": "error", "responses": "response.failed"}
            assert event.get("type") == kinds.get(api)

    run(test, **several)


def test_a_request_waits_for_a_load_no_longer_than_for_a_place(
    several: dict[str, Any], loads: threading.Event
) -> None:
    async def test(inside: Inside) -> None:
        loads.clear()
        answers = [await inside.say("one"), await inside.http.get("/props?model=one")]
        loads.set()
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")

    run(test, queue_timeout=0.1, **several)


@pytest.mark.slow
def test_a_signal_ends_a_server_with_several_models_that_answer_and_load(shelf: Path) -> None:
    models = shelf / "models"
    with Running("--model", str(models / "one"), "--model-dir", str(models)) as server:
        assert server.greeting.endswith("serving one, and 3 more when asked for")
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True}
        links = [
            server.send("/v1/completions", body | {"model": name})
            for name in ("one", "two", "owner/three")
        ]
        server.wait_until(lambda: server.rows() > 0, "nothing runs")
        assert server.end(signal.SIGTERM) == 0
        for link in links:
            assert b" 200 OK" in link.recv(1000)
            link.close()
