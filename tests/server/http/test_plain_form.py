"""Forms of a request that mean the same, and forms that mean two things."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from mlxgen.server.http.gate import Gate
from mlxgen.server.http.plain_form import PlainForm

from ..running import Running
from .links import GET, HOST, SOON, answered, run, serving

POST = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"
TWO_LENGTHS = (
    POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    POST + CHUNKED + b"Content-Length: 0\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n",
)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what was asked for."""
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    asked = [scope["method"], scope["path"], scope["query_string"].decode(), headers["host"]]
    await answered(send, json.dumps(asked).encode())


@pytest.mark.parametrize("data", TWO_LENGTHS)
def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(data: bytes) -> None:
    async def test() -> None:
        async with serving(PlainForm(echo)) as network:
            link = await network.link()
            await link.send(data + GET)
            status, headers, body = await link.answer()
            assert (status, headers["connection"]) == (400, "close")
            assert json.loads(body)["error"]["code"] == "invalid_http"
            assert await link.closed() == b""

    run(test)


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        ("http://box.local/v1/models?a=b", "/v1/models", "a=b", "box.local"),
        ("HTTPS://box.local:9000/%61", "/a", "", "box.local:9000"),
        ("http://[::1]:80", "/", "", "[::1]:80"),
        ("http://box.local?a", "/", "a", "box.local"),
        ("/http://box.local/", "/http://box.local/", "", "127.0.0.1"),
    ],
)
def test_the_absolute_form_of_a_target_is_a_path_and_its_host_counts(
    target: str, path: str, query: str, host: str
) -> None:
    async def test() -> None:
        async with serving(PlainForm(echo)) as network:
            link = await network.link()
            await link.send(f"GET {target} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
            status, _, body = await link.answer()
            assert (status, json.loads(body)) == (200, ["GET", path, query, host])

    run(test)


@pytest.mark.parametrize("target", ["http://", "http:///path", "http://me@127.0.0.1/"])
def test_an_absolute_form_without_a_plain_host_is_refused(target: str) -> None:
    async def test() -> None:
        async with serving(PlainForm(echo)) as network:
            link = await network.link()
            assert await link.ask(f"GET {target} HTTP/1.1\r\n".encode() + HOST + b"\r\n") == 400

    run(test)


def test_the_host_of_an_absolute_form_has_to_pass_the_gate() -> None:
    async def test() -> None:
        async with serving(PlainForm(Gate(echo, host="127.0.0.1"))) as network:
            link = await network.link()
            assert await link.ask(b"GET http://localhost/ HTTP/1.1\r\n" + HOST + b"\r\n") == 200
            assert await link.ask(b"GET http://evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n") == 403

    run(test)


def test_what_is_not_http_gets_an_answer_unless_one_was_begun() -> None:
    async def test() -> None:
        async with serving(echo, patience=SOON) as network:
            link = await network.link()
            await link.send(b"EHLO there\r\n\r\n")
            status, headers, body = await link.answer()
            assert (status, headers["connection"]) == (400, "close")
            assert json.loads(body)["error"]["type"] == "invalid_request_error"
            assert await link.closed() == b""
            link = await network.link()
            assert await link.ask(POST + CHUNKED + b"\r\n") == 200
            await link.send(b"not a length\r\n")
            assert await link.closed() == b""

    run(test)


def test_a_body_that_is_not_http_ends_its_request_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        await answered(send, b"too late")
        ended.append(message["type"])

    async def test() -> None:
        for app in (reading, echo):
            async with serving(app) as network:
                link = await network.link()
                await link.send(POST + CHUNKED + b"\r\nnot a length\r\n")
                assert (await link.answer())[0] == 400
                assert await link.closed() == b""

    run(test)
    assert ended == ["http.disconnect"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/openapi.json"])
def test_head_is_answered_like_get_but_without_the_body(server: Running, path: str) -> None:
    import httpx

    with httpx.Client() as client:
        whole, head = client.get(server.url + path), client.head(server.url + path)
        again = client.get(server.url + path)  # on the same connection
    assert (head.status_code, again.status_code) == (200, 200)
    assert head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == whole.headers[name]


def test_what_has_no_get_has_no_head(server: Running) -> None:
    import httpx

    answer = httpx.head(f"{server.url}/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert httpx.post(f"{server.url}/health").headers["allow"] == "GET, HEAD"
