"""Starting, stopping and failing, as a supervisor sees it."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlxgen.server.process import serve
from mlxgen.server.settings import Settings

from .broken import POISON
from .running import WAIT, Running, endless, events, running

TEXT = "/v1/completions"


@pytest.fixture
def process_as_it_was() -> Iterator[None]:
    """``serve`` takes over some loggers and signals of this process."""
    loggers = [logging.getLogger(name) for name in ("mlxgen.server", "uvicorn", "asyncio")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def refusal(capsys: pytest.CaptureFixture[str], **settings: Any) -> str:
    """What a server says that does not start: one line, and status 2."""
    assert serve(Settings(**{"port": 0} | settings)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    lines = [line for line in said.err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert lines[0].startswith("mlxgen.server: error: ")
    return said.err


@pytest.mark.slow
def test_a_port_that_is_taken_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Running("--port", str(port), "--model", "./not/here")
        try:
            assert server.end() == 2
            assert server.log[1:] == [  # after what it was to load
                f"mlxgen.server: error: cannot listen on 127.0.0.1 port {port}: "
                "Address already in use"
            ]
        finally:
            server.close()


@pytest.mark.usefixtures("process_as_it_was")
def test_what_cannot_be_served_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no folder" in refusal(capsys, models=("./not/here",))
    said = refusal(capsys, models=("./not/here", "other/model"))
    assert "error: --model: there is no folder not/here" in said
    (tmp_path / "config.json").write_text("{}")
    assert refusal(capsys, models=(str(tmp_path),))
    assert "--cache-dir: /dev/null cannot be used" in refusal(capsys, cache_dir="/dev/null")
    assert "--cache-dir-bytes: has no" in refusal(capsys, cache_dir_bytes=1 << 30)
    assert "cannot listen on 203.0.113.1 port 0" in refusal(capsys, host="203.0.113.1")


@pytest.mark.slow
def test_a_server_says_what_it_does_in_two_lines_unless_all_is_asked_for() -> None:
    for level, said in (("info", ["loading"]), ("debug", ["loading", "memory: ", "address="])):
        with running("--log-level", level) as server:
            assert server.greeting.endswith(", serving demo")
            server.wait_until(
                lambda said=said: all(any(text in line for line in server.log) for text in said),  # type: ignore[misc]
                "it says too little",
            )
            first, *others = server.log
            assert first.endswith("info: loading the demo model ...")
            assert bool(others) == (level == "debug")


def test_a_server_has_figures_of_how_it_shares_the_memory(server: Running) -> None:
    shares = ("weights_bytes", "cache_limit_bytes", "activations_limit_bytes", "reserve_bytes")
    assert all(server.figure(f"mlxgen_{name}") > 0 for name in shares)
    used = sum(server.figure(f"mlxgen_{name}") for name in shares)
    assert used <= server.figure("mlxgen_device_limit_bytes")


@pytest.mark.usefixtures("process_as_it_was")
def test_an_open_door_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, host="0.0.0.0", models=("./not/here",))
    assert "--api-key" in said.splitlines()[0]
    assert "--api-key" not in refusal(
        capsys, host="0.0.0.0", models=("./not/here",), api_keys=("k",)
    )


@pytest.mark.slow
def test_requests_that_run_are_finished_and_new_ones_refused() -> None:
    with running("--max-batch", "1") as server:
        answers: list[Any] = []

        def ask(**fields: Any) -> None:
            answers.append(server.post(TEXT, endless(max_tokens=200, **fields)))

        threads = [threading.Thread(target=ask, kwargs={"stream": s}) for s in (True, False)]
        for thread in threads:
            thread.start()
        server.wait_until(lambda: server.rows() == 2, "they do not run")
        with httpx.Client(timeout=WAIT) as kept:
            assert kept.get(server.url + "/health").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(
                lambda: kept.get(server.url + "/health").status_code == 503, "it does not stop"
            )
            refused = kept.post(server.url + TEXT, json=endless())
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "server_stopping"
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert any(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        assert server.end() == 0


@pytest.mark.slow
def test_after_the_grace_streams_end_with_an_error_and_answers_with_503() -> None:
    with (
        running("--max-batch", "3", "--shutdown-grace", "0.3") as server,
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(
            server.send(TEXT, endless(stream=True, logprobs=20), receive=4096)
        )  # never read
        answers: list[httpx.Response] = []
        whole = threading.Thread(target=lambda: answers.append(server.post(TEXT, endless())))
        whole.start()
        body = endless(stream=True)
        with httpx.stream("POST", server.url + TEXT, json=body, timeout=WAIT) as stream:
            lines = stream.iter_lines()
            server.wait_until(lambda: server.rows() == 3, "they do not run")
            server.process.send_signal(signal.SIGTERM)
            *_, last = events(lines)
        assert last["error"]["code"] == "server_stopping"
        whole.join()
        assert answers[0].status_code == 503
        assert server.end() == 0


@pytest.mark.slow
def test_a_second_signal_does_not_wait() -> None:
    with (
        running("--max-batch", "1", "--shutdown-grace", "600") as server,
        server.send(TEXT, endless(stream=True)),
    ):
        server.wait_until(lambda: server.rows() == 1, "it does not run")
        server.process.send_signal(signal.SIGINT)
        server.wait_until(lambda: server.get("/health").status_code == 503, "it goes on")
        assert server.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_signal_that_comes_late_does_not_change_the_exit_status() -> None:
    with running() as server:
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
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(number)
        assert process.wait(WAIT) == 0


@pytest.mark.slow
def test_a_failed_engine_is_reported_and_ends_the_process() -> None:
    with running(module="tests.server.broken") as server:
        answers: dict[bool, httpx.Response] = {}

        def ask(stream: bool) -> None:
            answers[stream] = server.post(TEXT, endless(stream=stream))

        threads = [threading.Thread(target=ask, args=(s,)) for s in (True, False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers[False].status_code == 503
        assert answers[False].json()["error"]["code"] == "server_failed"
        assert '"code":"server_failed"' in answers[True].text  # an event, as it had been accepted
        health = server.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert server.get("/health/live").status_code == 503
        assert server.end() == 1
        assert any("the engine failed" in line for line in server.log)


@pytest.mark.slow
def test_a_prompt_that_the_model_fails_with_is_a_500_of_its_own() -> None:
    body = endless(max_tokens=150, temperature=0, seed=1, num_draft_tokens=0)
    with running("--draft", "off", module="tests.server.broken", BREAKS="prompt") as server:
        alone = server.post(TEXT, body).json()["choices"][0]["text"]
        answers: list[httpx.Response] = []

        def ask(body: Any) -> None:
            answers.append(server.post(TEXT, body))

        long = [threading.Thread(target=ask, args=(body,)) for _ in range(2)]
        for thread in long:
            thread.start()
        server.wait_until(lambda: server.rows() == 2, "they do not run")
        for prompt in ([POISON], [5] * 40 + [POISON] + [6] * 40):
            ill = server.post(TEXT, {"prompt": prompt, "max_tokens": 5})
            assert ill.status_code == 500
            assert "the model failed on this request" in ill.json()["error"]["message"]
            assert "somebody wrote" not in ill.text
        for thread in long:
            thread.join()
        assert [answer.json()["choices"][0]["text"] for answer in answers] == [alone] * 2
        assert server.figure("mlxgen_faults_total") >= 2
        server.wait_idle()
        assert server.end(signal.SIGTERM) == 0
        (line, *_) = (line for line in server.log if "ModelError from RuntimeError" in line)
        assert "broken.py" in line and "somebody wrote" not in line


@pytest.mark.slow
def test_an_engine_that_takes_no_step_is_said_until_it_takes_one(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    hangs.touch()
    with running(
        module="tests.server.broken", STALL="0.2", BREAKS="hang", WHILE=str(hangs)
    ) as server:

        def live() -> int:
            return server.get("/health/live").status_code

        assert live() == 200  # there is nothing to do
        answers: list[httpx.Response] = []
        whole = threading.Thread(
            target=lambda: answers.append(server.post(TEXT, endless(max_tokens=5)))
        )
        whole.start()
        server.wait_until(lambda: live() == 503, "nobody notices")
        health = server.get("/health")
        assert health.status_code == 503
        assert not health.json()["alive"] and "no step" in health.json()["reason"]
        hangs.unlink()
        whole.join()
        assert answers[0].status_code == 200
        server.wait_until(lambda: live() == 200, "it is not seen to go on")
