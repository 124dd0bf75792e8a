"""Clients that send or read slowly, or nothing, and what is not HTTP."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Any

import pytest

from .links import GET, HOST, Hasty, answered, run, serving

POST = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("start", [b"", b"GE", b"GET / HTTP/1.1\r\n" + HOST])
def test_every_head_has_to_be_sent_in_time(start: bytes, before: int) -> None:
    async def test() -> None:
        async with serving(http=Hasty) as network:
            silent, slow = await network.link(), await network.link()
            for link in (silent, slow):
                for _ in range(before):
                    assert await link.ask() == 200
                await link.send(start)
            await slow.drip()
            assert await silent.closed() == b""
            assert len(network) == 0

    run(test)


@pytest.mark.parametrize("rest", [b"", b"abc"])
def test_a_body_that_nobody_reads_does_not_keep_a_connection(rest: bytes) -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await answered(send, b"no")

    async def test() -> None:
        async with serving(refusing, Hasty) as network:
            link = await network.link()
            assert await link.ask(POST + b"Content-Length: 3\r\n\r\n") == 200
            await link.send(rest)
            assert await link.closed() == b""

    run(test)


def test_three_hundred_who_say_nothing_or_little_keep_nobody_out() -> None:
    async def test() -> None:
        async with serving() as network:
            for n in range(300):
                await (await network.link()).send((b"", b"GE", POST, CHUNKED + b"3e8\r\nx")[n % 4])
            assert await (await network.link()).ask() == 200
            assert len(network) > 300

    run(test)


@pytest.mark.slow
def test_a_request_that_is_answered_late_is_not_cut() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(1.0)  # longer than any patience
        await answered(send, b"done")

    async def test() -> None:
        async with serving(slow, Hasty) as network:
            link = await network.link()
            assert await link.ask() == 200
            assert await link.ask(POST + b"Content-Length: 1\r\n\r\nx" + GET) == 200
            assert (await link.answer())[0] == 200

    run(test)


@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_has_to_be_taken(ends: bool) -> None:
    left = asyncio.Event()

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1 if ends else 100):
            await send({"type": "http.response.body", "body": bytes(1 << 23), "more_body": True})
        left.set()

    async def test() -> None:
        async with serving(large, Hasty) as network:
            with socket.create_connection(("127.0.0.1", network.port)) as link:
                link.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(link, GET)
                await left.wait()
                while len(network):
                    await asyncio.sleep(0.01)

    run(test)


def test_an_answer_that_is_taken_slowly_but_steadily_arrives() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await answered(send, bytes(1 << 23))

    async def test() -> None:
        async with serving(large, Hasty) as network:
            link = await network.link()
            await link.send(GET)
            got = 0
            while got < 1 << 23:
                got += len(await link.reader.read(1 << 18))
                await asyncio.sleep(0.02)

    run(test)


REFUSED = {
    "no HTTP": b"EHLO there\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "no number": POST + b"Content-Length: +1\r\n\r\na",
    "a negative one": POST + b"Content-Length: -1\r\n\r\na",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "no length of a chunk": CHUNKED + b"not a length\r\n",
    "a negative chunk": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "a huge chunk": CHUNKED + b"1" * 30 + b"\r\n",
    "a chunk without its end": CHUNKED + b"1\r\nabc\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a folded name": b"GET / HTTP/1.1\r\n" + HOST + b"a : b\r\n\r\n",
    "an endless head": b"GET / HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 20_000,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_http_is_refused_and_not_logged(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        ended.append(message["type"])

    async def test() -> None:
        async with serving(reading) as network:
            link = await network.link()
            await link.send(data)
            assert (await link.closed()).startswith(b"HTTP/1.1 400 ")
            while len(network):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)

    run(test)
    assert ended in ([], ["http.disconnect"])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_what_is_not_http_ends_an_answer_that_was_begun_without_a_word() -> None:
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await answered(send, b"")

    async def test() -> None:
        async with serving(hasty) as network:
            link = await network.link()
            assert await link.ask(CHUNKED) == 200
            await link.send(b"not a length\r\n")
            assert await link.closed() == b""

    run(test)


def test_a_client_that_leaves_is_known_to_have_left() -> None:
    gone = asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async def test() -> None:
        async with serving(waiting) as network:
            for data in (GET, POST + b"Content-Length: 9\r\n\r\nabc", CHUNKED + b"1\r\na\r\n"):
                link = await network.link()
                await link.send(data)
                link.writer.close()
                await gone.wait()
                gone.clear()

    run(test)


def test_without_a_free_file_new_connections_wait_and_the_log_stays_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0
    accept = socket.socket.accept

    def failing(listening: socket.socket) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    said: list[Any] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(told))
        async with serving() as network:
            monkeypatch.setattr(socket.socket, "accept", failing)
            assert await (await network.link()).ask() == 200

    run(test)
    assert tries == 3 and len(said) == 2
