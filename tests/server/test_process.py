"""Starting, stopping and failing, as a supervisor sees it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from .broken import POISON
from .running import WAIT, Running, Slow, endless, error, events, question

TEXT = "/v1/completions"


@pytest.mark.slow
def test_a_port_that_is_taken_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Running("--port", str(port), "--model", "./not/here")
        assert server.end() == 2
        server.close()
    assert server.log[1:] == [  # after what it was to load
        f"mlxgen.server: error: cannot listen on 127.0.0.1 port {port}: Address already in use"
    ]


@pytest.mark.slow
def test_a_server_answers_on_a_unix_socket_below_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:  # what a server left that was killed
        dead.bind(str(path))
    server = Running("--uds", str(path), "--root-path", "/llm")
    try:
        assert f"ready on unix:{path}" in server.stdout.readline(), server.log
        other = Running("--uds", str(path))
        assert other.end() == 2, "it is taken"
        other.close()
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=WAIT) as client:
            for url in ("http://localhost/llm/v1/models", "http://localhost/v1/models"):
                assert client.get(url).status_code == 200
            body = question(max_tokens=2)
            answer = client.post("http://localhost/llm/chat/completions", json=body)
            assert answer.status_code == 200
        assert server.end(signal.SIGTERM) == 0
        assert not path.exists()
    finally:
        server.close()


@pytest.mark.slow
def test_requests_that_run_are_finished_and_new_ones_refused() -> None:
    with Running("--max-batch", "1") as server, ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(server.post, TEXT, endless(max_tokens=200, stream=s)) for s in (True, False)
        ]
        server.wait_until(lambda: server.rows() == 2, "they do not run")
        with httpx.Client(timeout=WAIT) as kept:
            assert kept.get(server.url + "/health").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(
                lambda: kept.get(server.url + "/health").status_code == 503, "it does not stop"
            )
            refused = kept.post(server.url + TEXT, json=endless())
        assert error(refused, 503)["code"] == "server_stopping"
        assert int(refused.headers["retry-after"]) >= 1
        answers = [each.result() for each in both]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].text.endswith("data: [DONE]\n\n")
        assert server.end() == 0


@pytest.mark.slow
def test_after_the_grace_streams_end_with_an_error_and_answers_with_503() -> None:
    with (
        Running("--max-batch", "3", "--shutdown-grace", "0.3") as server,
        contextlib.ExitStack() as stack,
    ):
        never_read = endless(stream=True, logprobs=20)
        stack.enter_context(server.send(TEXT, never_read, receive=4096))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        whole = pool.submit(server.post, TEXT, endless())
        body = endless(stream=True)
        with httpx.stream("POST", server.url + TEXT, json=body, timeout=WAIT) as stream:
            lines = stream.iter_lines()
            server.wait_until(lambda: server.rows() == 3, "they do not run")
            server.process.send_signal(signal.SIGTERM)
            *_, last = events(lines)
        assert last["error"]["code"] == "server_stopping"
        assert whole.result().status_code == 503
        assert server.end() == 0


@pytest.mark.slow
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    (slow := tmp_path / "slow").touch()
    with (
        Slow(slow, "--shutdown-grace", "600") as server,
        server.send(TEXT, endless(stream=True)),
    ):
        server.wait_until(lambda: server.rows() == 1, "it does not run")
        server.process.send_signal(signal.SIGINT)
        server.wait_until(lambda: server.get("/health").status_code == 503, "it goes on")
        assert server.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_signal_that_comes_late_does_not_change_the_exit_status() -> None:
    with Running() as server:
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_there_is_anything_to_stop_is_a_stop_too(number: signal.Signals) -> None:
    program = """if True:
        from mlxgen.server.stop_signals import leave_at_once
        leave_at_once()
        print("here", flush=True)
        while True: pass
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(number)
        assert process.wait(WAIT) == 0


@pytest.mark.slow
def test_a_failed_engine_is_reported_and_ends_the_process() -> None:
    with (
        Running(module="tests.server.broken", BREAKS="engine") as server,
        ThreadPoolExecutor(2) as pool,
    ):
        both = [pool.submit(server.post, TEXT, endless(stream=s)) for s in (True, False)]
        stream, whole = (each.result() for each in both)
        assert error(whole, 503)["code"] == "server_failed"
        assert '"code":"server_failed"' in stream.text  # an event, as it had been accepted
        health = server.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert server.get("/health/live").status_code == 503
        assert server.end() == 1
        assert any("the engine failed" in line for line in server.log)


@pytest.mark.slow
def test_what_the_model_fails_with_is_a_500_of_its_own() -> None:
    program = [f"{name}=tests.server.own_code:{name}" for name in ("poisons", "quiz")]
    own = ("--draft", "off", "--program", program[0], "--program", program[1])
    body = endless(max_tokens=150, temperature=0, seed=1)
    with Running(*own, module="tests.server.broken", BREAKS="prompt") as server:
        good: tuple[Any, Any] = body, {"prompt": "Once", "program": "quiz", "temperature": 0}
        alone = [server.post(TEXT, each).json()["choices"] for each in good]
        with ThreadPoolExecutor(2) as pool:
            beside = [pool.submit(server.post, TEXT, each) for each in good]
            server.wait_until(lambda: server.rows() > 0, "they do not run")
            for ill in (
                {"prompt": [POISON], "max_tokens": 5},
                {"prompt": [5] * 40 + [POISON] + [6] * 40, "max_tokens": 5},
                {"prompt": "Once", "program": "poisons", "arguments": {"token": POISON}},
            ):
                answer = server.post(TEXT, ill)
                assert "the model failed on this request" in error(answer, 500)["message"]
                assert "somebody wrote" not in answer.text
            texts = [[c["text"] for c in each.result().json()["choices"]] for each in beside]
        assert texts == [[choice["text"] for choice in each] for each in alone]
        assert server.figure("mlxgen_faults_total") >= 2
        server.wait_idle()
        assert server.end(signal.SIGTERM) == 0
        (line, *_) = (line for line in server.log if "ModelError from RuntimeError" in line)
        assert "broken.py" in line and "somebody wrote" not in line


@pytest.mark.slow
def test_an_engine_that_takes_no_step_is_said_until_it_takes_one(tmp_path: Path) -> None:
    (hangs := tmp_path / "hangs").touch()
    stall = {"SET": "engine.STALL=0.2", "BREAKS": "hang"}
    with Slow(hangs, **stall) as server, ThreadPoolExecutor(1) as pool:

        def live() -> int:
            return server.get("/health/live").status_code

        assert live() == 200  # there is nothing to do
        whole = pool.submit(server.post, TEXT, endless(max_tokens=5))
        server.wait_until(lambda: live() == 503, "nobody notices")
        health = server.get("/health")
        assert health.status_code == 503
        assert not health.json()["alive"] and "no step" in health.json()["reason"]
        hangs.unlink()
        assert whole.result().status_code == 200
        server.wait_until(lambda: live() == 200, "it is not seen to go on")


# ---- what is known from before -------------------------------------------------------------------

TALE = "The fox told the owl a story about a castle by the sea. " * 80


def told(server: Running, *messages: str) -> tuple[str, int, int]:
    """The answer, and how many tokens of the prompt there were, and came from the cache."""
    body: dict[str, Any] = {"prompt": "".join(messages), "max_tokens": 8, "temperature": 0}
    answer = server.post("/v1/completions", body).json()
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return answer["choices"][0]["text"], usage["prompt_tokens"], cached


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_costs_nothing_but_reading(end: signal.Signals, tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "prefixes")
    with Running("--cache-dir", folder, "--cache-dir-bytes", "1GiB") as server:
        text, count, cached = told(server, TALE)
        assert count > 900 and cached == 0
        if end == signal.SIGKILL:  # it is written while the server has nothing else to do
            pieces = 1 + (count + 7) // 256
            files = partial(Path(folder).glob, "*.safetensors")
            server.wait_until(lambda: len(list(files())) == pieces, "it is not written")
        assert server.end(end) == (0 if end == signal.SIGTERM else -end)
    with Running("--cache-dir", folder, "--cache-dir-bytes", "1GiB") as server:
        again, count, cached = told(server, TALE)
        assert again == text and cached == count - 1  # whose logits are needed
        assert server.figure("mlxgen_restored_tokens_total") >= cached
        assert 0 < server.figure("mlxgen_disk_bytes") <= server.figure("mlxgen_disk_limit_bytes")
        assert told(server, TALE, "And then")[0]


@pytest.mark.slow
def test_what_was_read_and_written_with_one_key_is_never_proposed_with_another() -> None:
    words = ["quay", "elk", "myth", "fjord", "wax", "vim", "zebu", "jolt", "pyx", "gnu"]
    text = " ".join(f"{a}{b}" for a in words for b in reversed(words))
    body = {"prompt": f"{text} ", "max_tokens": 60, "ignore_eos": True, "temperature": 1, "seed": 4}
    with Running("--draft", "ngram", MLXGEN_API_KEY="first second") as server:

        def drafted(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            answer = server.post("/v1/completions", body, headers=headers).json()
            texts.add(answer["choices"][0]["text"])
            return int(answer["usage"]["timings"].get("draft_n_accepted", 0))

        texts: set[str] = set()
        before = drafted("first")
        assert drafted("second") < before + 10
        assert drafted("first") > before + 20
        assert len(texts) == 1
