"""Clients that send or read slowly, or nothing: limits for each part of every request."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import h11
import pytest

from mlxgen.server.http.connection import Patience, link_of
from mlxgen.server.http.room import Phase, Room

from .links import GET, HOST, NEVER, SOON, Link, answered, run, serving

POST = b"POST / HTTP/1.1\r\n" + HOST
STARTED = {
    "nothing": b"",
    "half a line": b"GE",
    "half of the headers": b"GET / HTTP/1.1\r\n" + HOST,
    "half a body": POST + b"Content-Length: 1000\r\n\r\nxx",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\nx",
}


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("start", STARTED.values(), ids=list(STARTED))
def test_every_request_has_to_be_sent_in_time(start: bytes, before: int) -> None:
    async def test() -> None:
        async with serving(patience=SOON) as network:
            silent, slow = await network.link(), await network.link()
            for link in (silent, slow):
                for _ in range(before):
                    assert await link.ask() == 200
                await link.send(start)
            await slow.drip()
            assert await silent.closed() == b""
            assert len(network.room) == 0

    run(test)


def test_a_body_that_nobody_reads_has_to_be_sent_in_time_too() -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await answered(send, b"no")

    async def test() -> None:
        async with serving(refusing, patience=SOON) as network:
            link = await network.link()
            assert await link.ask(POST + b"Content-Length: 1000000\r\n\r\n") == 200
            await link.drip()

    run(test)


def test_a_connection_is_idle_again_after_a_body_that_came_after_its_answer() -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await answered(send, b"no")

    async def test() -> None:
        async with serving(refusing, patience=SOON) as network:
            link = await network.link()
            assert await link.ask(POST + b"Content-Length: 3\r\n\r\n") == 200
            await link.send(b"abc")
            await link.closed()

    run(test)


@pytest.mark.slow
def test_a_request_in_time_and_one_that_is_answered_late_are_not_cut() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(1.0)  # longer than any patience
        await answered(send, b"done")

    async def test() -> None:
        async with serving(slow, patience=SOON) as network:
            link = await network.link()
            assert await link.ask() == 200
            assert await link.ask(POST + b"Content-Length: 1\r\n\r\nx" + GET) == 200
            assert (await link.answer())[0] == 200

    run(test)


@pytest.mark.parametrize("last", [False, True])
def test_an_answer_has_to_be_taken(last: bool) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1 if last else 100):
            await send({"type": "http.response.body", "body": bytes(1 << 23), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def test() -> None:
        async with serving(large, patience=SOON) as network:
            with socket.create_connection(("127.0.0.1", network.port)) as link:
                link.setblocking(False)
                close = b"Connection: close\r\n" if last else b""
                await asyncio.get_running_loop().sock_sendall(link, GET[:-2] + close + b"\r\n")
                while len(network.room) == 0:
                    await asyncio.sleep(0.01)
                while len(network.room):
                    await asyncio.sleep(0.01)

    run(test)


def test_an_answer_that_is_taken_slowly_but_steadily_arrives() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await answered(send, bytes(1 << 23))

    patience = Patience(taking=0.1, least_taken=1.0)

    async def test() -> None:
        async with serving(large, patience=patience) as network:
            link = await network.link()
            await link.send(GET)
            got = 0
            while got < 1 << 23:
                got += len(await link.reader.read(1 << 18))
                await asyncio.sleep(0.02)

    run(test)


# ---- room ------------------------------------------------------------------------------------


class FakeGuest:
    gone = False

    def give_up(self) -> None:
        self.gone = True


def test_the_idle_give_way_first_and_then_who_has_waited_for_a_client_longest() -> None:
    room = Room(9)
    guests = {name: FakeGuest() for name in ("answered", "back", *"abcdef")}
    for name, phase in (
        *(("answered", Phase.HEAD), ("answered", Phase.ANSWER), ("back", Phase.IDLE)),
        *(("a", Phase.IDLE), ("b", Phase.HEAD), ("c", Phase.TAKING), ("d", Phase.BODY)),
        *(("e", Phase.IDLE), ("b", Phase.BODY), ("back", Phase.ANSWER), ("back", Phase.IDLE)),
    ):
        room.put(guests[name], phase)
    order: list[str] = []
    while room.can_give_up:
        room.give_up_one()
        order += [name for name in guests if guests[name].gone and name not in order]
    assert order == ["a", "e", "back", "b", "c", "d"]
    room.give_up_one()
    assert len(room) == 1
    assert not guests["answered"].gone


@pytest.mark.parametrize("start", STARTED.values(), ids=list(STARTED))
def test_any_number_of_slow_clients_leaves_room_for_others(start: bytes) -> None:
    async def test() -> None:
        async with serving(most=10, patience=NEVER) as network:
            links = [await network.link() for _ in range(5)]
            for link in links:
                assert await link.ask() == 200
                await link.send(start)
            for _ in range(40):
                link = await network.link()
                await link.send(start)
            for _ in range(5):
                assert await (await network.link()).ask() == 200
            assert len(network.room) <= 14

    run(test)


def test_what_is_being_answered_keeps_its_place_and_newcomers_wait() -> None:
    release = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await answered(send, b"done")

    async def test() -> None:
        async with serving(slow, most=10) as network:
            links: list[Link] = []
            for n in range(20):
                links.append(await network.link())
                await links[-1].send(GET)
                while len(network.room) < min(n + 1, 10):
                    await asyncio.sleep(0.01)
            release.set()
            for link in links:
                assert (await link.answer())[0] == 200

    run(test)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was logged, as it grows."""
    lines: list[str] = []
    monkeypatch.setattr(
        "mlxgen.server.http.listener.log", lambda level, message, **fields: lines.append(message)
    )
    caplog.set_level(logging.ERROR, "asyncio")
    return lines


def test_a_full_table_of_files_pauses_accepting_and_logs_a_line(
    said: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    accept = socket.socket.accept

    def failing(listening: socket.socket) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 4:
            raise OSError(24, "Too many open files")
        return accept(listening)

    async def test() -> None:
        async with serving() as network:
            idle = await network.link()
            assert await idle.ask() == 200
            monkeypatch.setattr(socket.socket, "accept", failing)
            assert await (await network.link()).ask() == 200
            assert await idle.closed() == b""

    run(test)
    assert tries >= 5
    assert said == ["new connections have to wait: Too many open files"]
    assert caplog.records == []


async def pushed(scope: Any, receive: Any, send: Any) -> None:
    """Write the numbers to 99: those that the client keeps up with without waiting."""
    link, count = link_of(scope), 0
    early = link_of(scope).flows
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(100):
        if link.flows:
            link.push(b"%d," % number)
            count += 1
        else:
            part = {"type": "http.response.body", "body": b"%d," % number, "more_body": True}
            await send(part)
    await send({"type": "http.response.body", "body": b"%d" % count})
    assert not (early or link_of(scope).flows)


@pytest.mark.parametrize(("version", "count"), [(b"1.1", b"100"), (b"1.0", b"0")])
def test_what_is_pushed_is_part_of_the_answer(version: bytes, count: bytes) -> None:
    async def test() -> None:
        async with serving(pushed) as network:
            link = await network.link()
            asked = b"GET / HTTP/" + version + b"\r\n" + HOST + b"Connection: close\r\n\r\n"
            await link.send(asked)
            client = h11.Connection(h11.CLIENT)
            client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
            client.receive_data(await link.closed())
            client.receive_data(b"")
            body = b""
            while type(event := client.next_event()) is not h11.EndOfMessage:
                body += event.data if isinstance(event, h11.Data) else b""
            assert body == b"".join(b"%d," % number for number in range(100)) + count

    run(test)


def test_an_answer_does_not_flow_while_its_client_does_not_read() -> None:
    stalled, taken = asyncio.Event(), asyncio.Event()

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        link = link_of(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            while link.flows:
                link.push(b"x" * 100_000)
            stalled.set()
            await send({"type": "http.response.body", "body": b"", "more_body": True})
        taken.set()
        await send({"type": "http.response.body", "body": b""})

    async def test() -> None:
        async with serving(flood) as network:
            link = await network.link()
            await link.send(GET)
            await stalled.wait()
            assert not taken.is_set()
            while not taken.is_set():
                await link.reader.read(1 << 16)

    run(test)
