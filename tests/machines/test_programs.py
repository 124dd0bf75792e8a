"""The programs on two machines, as the one who starts them sees them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import validate

from ..server.apis import APIS, Api
from ..server.running import WAIT, endless, events
from ..tables import table
from .ranks import ROOT, Ranks, free_ports, run, started

GENERATE = ("-m", "mlxgen.generate")
ENDLESS = (*GENERATE, "--prompt", "Tell me a story about a fox.", "--ignore-eos")
TEXT = "/v1/completions"
DEMO = ROOT / "mlxgen" / "demo" / "model"
SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3}
pytestmark = pytest.mark.slow


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[tuple[Ranks, httpx.Client]]:
    """A server on two ranks that is ready, and a client of it."""
    with started(["-m", "mlxgen.server", "--port", "0", *arguments]) as ranks:
        ranks.wait_for("ready on ")
        ranks.wait_for("\n")
        (url,) = re.findall(r"ready on (\S+),", ranks.out(0))
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=url, timeout=WAIT, limits=limits) as client:
            yield ranks, client


@contextlib.contextmanager
def writing() -> Iterator[Ranks]:
    """A command line on two ranks, in the middle of a text."""
    with started(ENDLESS) as ranks:
        ranks.wait_for("fox")
        yield ranks


def test_a_program_of_ones_own_goes_on_after_load_only_on_rank_0_and_is_told_who_is_lost() -> None:
    program = """if True:
        import mlxgen, sys, time
        sys.stderr = sys.stdout
        print("begins", flush=True)
        lm = mlxgen.load()
        print(lm.generate("Once upon a time", max_tokens=9, temperature=0).text, flush=True)
        if lm.runtime.__class__.__name__ == "PartRuntime":
            time.sleep(60)
    """
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    with started(["-c", program]) as ranks:
        ranks.wait_for(alone.stdout)
        assert ranks.out(1) == "begins\n"
        ranks.processes[1].kill()
        ranks.wait_for("mlxgen: rank 1 (127.0.0.1) has ended")


def test_a_rank_that_leaves_while_values_are_exchanged_is_noticed() -> None:
    program = """if True:
        import os
        from mlxgen import MachineError
        from mlxgen.machines.group import Group
        group = Group.join()
        if group.rank == 1:
            os._exit(0)
        try:
            while group.exchange("a value") == ["a value"] * 2:
                pass
        except MachineError as error:
            print(error)
    """
    ended, _ = run(["-c", program])
    assert ended.out.startswith("another rank ended at the start"), ended.err


def test_programs_that_differ_in_what_they_load_are_told_in_what() -> None:
    program = """if True:
        import mlxgen, os
        try:
            mlxgen.load(kv_bits=(8, 4)[int(os.environ["MLX_RANK"])])
        except mlxgen.MachineError as error:
            print(error)
    """
    first, other = run(["-c", program])
    assert "\n  kv_bits: 8 on rank 0 (127.0.0.1); 4 on rank 1 (127.0.0.1)\n" in first.out
    assert (first.code, other.code, other.out) == (0, 0, "")


def test_a_model_is_unloaded_on_all_ranks_and_loaded_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(DEMO)
    with serving("--model-dir", str(tmp_path), "--idle-unload", "0.1") as (ranks, client):
        for name in ("one", "two", "one"):
            body = {"model": name, "prompt": "Once upon", "max_tokens": 9, "temperature": 0}
            answer = client.post(TEXT, json=body).json()
            assert answer["choices"][0]["text"].startswith(" a time")
            while f'model_loaded{{model="{name}"}} 1' in client.get("/metrics").text:
                pass
        for process in ranks.processes[::-1]:  # of Ctrl-C at the terminal all hear
            process.send_signal(signal.SIGINT)
        first, other = ranks.wait(WAIT)
    assert (first.code, other.code) == (0, 0)
    assert (other.out, other.err) == ("", "")


@pytest.mark.parametrize("case", table("launched_commands"), ids=lambda case: case["argv"][-1])
def test_rank_0_alone_says_what_is_wrong_and_what_is_asked_for(case: dict[str, Any]) -> None:
    first, other = run(["-m", *case["argv"]])
    assert (first.code, other.code) == (case["status"], 0)
    assert case["says"] in first.err + first.out and (other.out, other.err) == ("", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_all_ranks_of_the_command_line(number: signal.Signals) -> None:
    with writing() as ranks:
        ranks.processes[0].send_signal(number)
        first, other = ranks.wait(WAIT)
    assert (first.code, other.code) == (130, 0)
    assert first.out.endswith("\n")
    assert (other.out, other.err) == ("", "")


@pytest.mark.parametrize(
    ("rank", "number", "named"),
    [
        (1, signal.SIGKILL, "rank 1 (127.0.0.1) has ended"),
        (1, signal.SIGSTOP, "rank 1 (127.0.0.1) has not answered"),  # nor will the sum with it end
        (0, signal.SIGKILL, None),
    ],
)
def test_a_rank_that_is_gone_ends_the_others_which_name_it(
    rank: int, number: signal.Signals, named: str | None
) -> None:
    with writing() as ranks:
        ranks.processes[rank].send_signal(number)
        code = ranks.processes[1 - rank].wait(WAIT)
        ranks.processes[rank].send_signal(signal.SIGCONT)
        assert ranks.wait(WAIT)[rank].code != 0  # by MLX, if a sum has lost a socket before
        if named is None:
            assert code != 0
        else:
            assert code == 1 and ranks.err(0).count(named) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_to_every_request_and_ends_the_server(number: int) -> None:
    with serving() as (ranks, client):

        def ask(api: Api, stream: bool) -> httpx.Response:
            return client.post(api.path, json=api.body(limit=2000, stream=stream, ignore_eos=True))

        asked = [(api, stream) for api in APIS for stream in (True, False)]
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = [pool.submit(ask, *each) for each in asked]
            while client.get("/health").json()["running"] < len(asked):
                pass
            ranks.processes[1].send_signal(number)
        named = "rank 1 (127.0.0.1) has "
        for (_, stream), answer in zip(asked, answers, strict=True):
            assert answer.result().status_code == (200 if stream else 503)
            assert named in answer.result().text
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        new = client.post(TEXT, json=endless())
        assert (new.status_code, new.json()["error"]["code"]) == (503, "machine_lost")
        assert ranks.processes[0].wait(WAIT) == 1
        assert ranks.err(0).count(f"error: {named}") == 1


def test_sixteen_clients_with_schemas_rewinds_and_cancels() -> None:
    def ask(number: int) -> None:
        body: dict[str, Any] = {"prompt": f"{number}: ", "seed": number, "temperature": 1}
        match number % 4:
            case 0:
                body |= {"max_tokens": 100, "json_schema": SCHEMA}
                validate(json.loads(text_of(body)), SCHEMA)
            case 1:
                text = text_of(body | {"max_tokens": 60, "banned": ["a", "th"]})
                assert "a" not in text and "th" not in text, text
            case 2:
                with client.stream("POST", TEXT, json=endless(stream=True)) as answer:
                    lines = events(answer.iter_lines())
                    assert all(next(lines) for _ in range(10))
            case _:
                body |= {"max_tokens": 30, "n": 2, "ignore_eos": True}
                usage = client.post(TEXT, json=body).json()["usage"]
                assert usage["completion_tokens"] == 60

    def text_of(body: dict[str, Any]) -> str:
        return str(client.post(TEXT, json=body).json()["choices"][0]["text"])

    with serving("--shutdown-grace", "0") as (ranks, client), ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(48)))
        ranks.processes[0].send_signal(signal.SIGTERM)
        first, other = ranks.wait(WAIT)
    assert (first.code, other.code) == (0, 0)
    assert "error" not in first.err
    assert (other.out, other.err) == ("", "")


def test_mlx_launch_starts_a_server_that_ends_with_it() -> None:
    launch = [str(Path(sys.executable).parent / "mlx.launch"), "-n", "2", "--starting-port"]
    server = [sys.executable, "-u", "-m", "mlxgen.server", "--port", "0"]
    pipe = subprocess.PIPE
    command = [*launch, str(free_ports(1)[0]), "--", *server]
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        (url,) = re.findall(r"ready on (\S+),", process.stdout.readline())
        assert httpx.get(url + "/health", timeout=WAIT).json()["ready"]
        process.terminate()  # which tells its ranks nothing
        assert process.wait(WAIT) != 0
        with pytest.raises(httpx.HTTPError):
            while True:
                httpx.get(url + "/health", timeout=WAIT)
