"""A server on a Unix socket, behind a proxy's prefix."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

from mlxgen.server.process import listen_on

from .running import WAIT, Running, question


@pytest.mark.slow
def test_a_server_answers_on_a_unix_socket_below_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:  # what a server left that was killed
        dead.bind(str(path))
    server = Running("--uds", str(path), "--root-path", "/llm")
    try:
        assert server.process.stdout is not None
        assert f"ready on unix:{path}" in server.process.stdout.readline(), server.log
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


def test_a_path_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    try:
        listen_on(str(path)).close()
    except OSError:
        assert path.read_text() == "mine"
    else:
        raise AssertionError("a file was taken for a socket")
