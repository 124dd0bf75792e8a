"""Models that come and go under traffic: no request is lost, and nothing is left of them."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.checkpoints import write_checkpoint

from ..running import WAIT, Running, running

NAMES = [f"model-{number}" for number in range(4)]


def threads_of(server: Running) -> int:
    """Native threads of a server, where the system tells."""
    tasks = Path(f"/proc/{server.process.pid}/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0


def loads(server: Running) -> int:
    return sum("a model was loaded" in line for line in server.log)


@pytest.mark.slow
@pytest.mark.parametrize("requests", [40])
def test_models_that_come_and_go_leave_no_thread_and_stop_nobody(
    tmp_path: Path, requests: int
) -> None:
    for name in NAMES:
        write_checkpoint(tmp_path / "models" / name)
    failed: list[Any] = []
    options = ["--model-dir", str(tmp_path / "models"), "--idle-unload", "0.05"]
    with running(*options, "--cache-dir", str(tmp_path / "kept")) as server:

        def client(seed: int) -> None:
            chance = random.Random(seed)
            with httpx.Client(timeout=WAIT) as http:
                for _ in range(requests):
                    said = " so" * chance.randrange(1, 60)
                    body: dict[str, Any] = {
                        "model": chance.choice(NAMES),
                        "messages": [{"role": "user", "content": said}],
                        "max_tokens": chance.randrange(1, 12),
                    }
                    if chance.random() < 0.5:
                        body["response_format"] = {"type": "json_object"}
                    answer = http.post(f"{server.url}/v1/chat/completions", json=body)
                    if answer.status_code != 200:
                        failed.append(answer.text)
                    threading.Event().wait(0.2 * chance.random())

        def crowd(first: int) -> None:
            clients = [threading.Thread(target=client, args=(first + i,)) for i in range(3)]
            for each in clients:
                each.start()
            for each in clients:
                each.join()

        crowd(0)
        before, known = loads(server), threads_of(server)
        crowd(10)
        assert not failed
        assert loads(server) > before + 5
        assert threads_of(server) <= known + 8, "a model at a time may have threads of its own"
        assert server.end(signal.SIGTERM) == 0
