"""Streams whose connection is lost: a client that comes back gets what it missed, and the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import httpx
import pytest

from mlxgen.server import streams
from mlxgen.server.engine.mailbox import Mailbox
from mlxgen.server.engine.thread import EngineThread
from mlxgen.server.errors import RequestError

from .apis import CHAT, MESSAGES, RESPONSES
from .running import WAIT, Running, endless
from .test_control import Slow, good, slowly

TEXT = "/v1/completions"
LONG: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True, "stream": True}
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT.path: CHAT.body("Hello", **LONG, max_tokens=300),
    MESSAGES.path: MESSAGES.body("Hello", **LONG, max_tokens=300),
    RESPONSES.path: RESPONSES.body("Hello", **LONG, max_output_tokens=300),
    TEXT: endless(temperature=1, seed=5, n=2, max_tokens=200, stream=True),
    "/completion": endless(**LONG, n_predict=300, max_tokens=None),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    program = "endless=tests.server.programs.own_code:endless"
    keys = ("--api-key", "mine", "--api-key", "theirs")
    with slowly(tmp_path_factory.mktemp("slow") / "slow", "--program", program, *keys) as server:
        yield server


class Told(NamedTuple):
    """An event, as a client has it; ``[DONE]`` has no id."""

    id: str
    data: str


class Link:
    """A connection over which a stream is read, as far as it was."""

    def __init__(self, server: Running, path: str, body: Mapping[str, Any], last: str = "") -> None:
        headers = {"x-api-key": "mine", **({"last-event-id": last} if last else {})}
        client = self._client = httpx.Client(timeout=WAIT)
        request = client.build_request("POST", server.url + path, json=body, headers=headers)
        self.answer = client.send(request, stream=True)
        assert self.answer.status_code == 200, self.answer.read()
        self._lines = self.answer.iter_lines()

    def __iter__(self) -> Iterator[Told]:
        id = ""
        for line in self._lines:
            if line.startswith("id: "):
                id = line[4:]
            if line.startswith("data: "):
                yield Told(id, line[6:])
                id = ""
        self.lose()

    def read(self, count: int) -> list[Told]:
        found = iter(self)
        return [next(found) for _ in range(count)]

    def lose(self) -> None:
        self.answer.close()
        self._client.close()


def text_of(events: list[Told]) -> list[Any]:
    """What the events say, without ids, times and what is counted by steps."""
    return [_plain(json.loads(each.data)) for each in events if each.data != "[DONE]"]


_VARIES = frozenset(
    {
        "id",
        "item_id",
        "created",
        "created_at",
        "completed_at",
        "timings",
        "usage",
        "tokens_cached",
        "tokens_predicted",
    }
)


def _plain(told: Any) -> Any:
    if isinstance(told, list):
        return [_plain(each) for each in told]
    if not isinstance(told, dict):
        return told
    return {name: _plain(value) for name, value in told.items() if name not in _VARIES}


def wait_idle(server: Running) -> None:
    server.wait_until(lambda: server.rows() == 0, "rows are left")


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_comes_back_has_the_same_as_one_that_stays(server: Slow, path: str) -> None:
    body = BODIES[path]
    stays = list(Link(server, path, body))
    server.slow.touch()
    link = Link(server, path, body)
    told = link.read(12)
    link.lose()
    wait_idle(server)  # its rows cost nobody anything meanwhile
    back = Link(server, path, {}, told[4].id)  # as if the last ones had not arrived
    told = [*told[:5], *back.read(12)]
    back.lose()
    server.slow.unlink()
    told += Link(server, path, body, told[-1].id)
    assert sorted(map(str, text_of(told))) == sorted(map(str, text_of(stays)))
    ids = [each.id for each in told if each.data != "[DONE]"]
    reply = ids[0].rpartition("-")[0]
    assert ids == [f"{reply}-{n}" for n in range(1, len(ids) + 1)]
    assert (told[-1].data == "[DONE]") is (stays[-1].data == "[DONE]")
    again = list(Link(server, path, {}, told[20].id))  # it has ended: it is only told again
    assert again == told[21:]


def test_a_stream_is_taken_over_from_a_connection_that_hangs(server: Slow) -> None:
    body = BODIES[CHAT.path]
    stays = list(Link(server, CHAT.path, body))
    server.slow.touch()
    hangs = Link(server, CHAT.path, body)
    told = hangs.read(10)
    back = Link(server, CHAT.path, {}, told[-1].id)
    told += back.read(5)
    with pytest.raises(httpx.RemoteProtocolError):
        list(hangs)
    hangs.lose()
    server.slow.unlink()
    told += back
    assert text_of(told) == text_of(stays)


def test_what_was_steered_and_taken_back_is_told_to_who_comes_back(server: Slow) -> None:
    body = endless(**LONG, max_tokens=300, allow_retract=True)
    whole = "".join(each["choices"][0]["text"] for each in text_of(list(Link(server, TEXT, body))))
    server.slow.touch()
    link = Link(server, TEXT, body)
    told = link.read(15)
    headers = {"x-api-key": "mine"}
    path = f"/v1/requests/{json.loads(told[0].data)['id']}/control"
    good(server.post(path, {"action": "rewind", "to": 2}, headers=headers))
    link.lose()
    wait_idle(server)
    back = Link(server, TEXT, {}, told[9].id)
    told = [*told[:10], *back.read(10)]
    good(server.post(path, {"action": "put", "text": "PUT"}, headers=headers))
    server.slow.unlink()
    told += back
    text = ""
    for event in text_of(told):
        (choice,) = event["choices"]
        text = text[: len(text) - choice.get("retract", 0)] + choice["text"]
    assert "PUT" in text and whole.startswith(text[: text.index("PUT")])


@pytest.mark.parametrize("last", ["cmpl-0-1", "1", "cmpl-0-x", "-", "\u00e9-2"])
def test_a_stream_that_is_not_known_is_said_to_be_gone(server: Slow, last: str) -> None:
    headers = {b"x-api-key": b"mine", b"last-event-id": last.encode()}
    refused = httpx.post(server.url + TEXT, json=endless(), headers=headers, timeout=WAIT)
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "stream_not_found"
    assert refused.json()["error"]["param"] == "Last-Event-ID"


def test_nobody_goes_on_with_the_stream_of_another_or_from_an_event_that_was_not_sent(
    server: Slow,
) -> None:
    told = list(Link(server, TEXT, BODIES[TEXT]))
    id = told[3].id
    for key, last in (("theirs", id), ("mine", f"{id.rpartition('-')[0]}-100000")):
        headers = {"x-api-key": key, "last-event-id": last}
        refused = httpx.post(server.url + TEXT, json={}, headers=headers, timeout=WAIT)
        assert refused.json()["error"]["code"] == "stream_not_found"


def test_a_stream_of_a_program_is_dropped_with_its_client(server: Slow) -> None:
    server.slow.touch()
    link = Link(server, TEXT, {"prompt": "Once", "program": "endless", "stream": True})
    assert link.read(2)[-1].id == ""
    link.lose()
    server.slow.unlink()
    wait_idle(server)


# ---- how long, and how much ----------------------------------------------------------------------


class Engine:
    """It notes which mailboxes are dropped."""

    def __init__(self) -> None:
        self.dropped: list[Mailbox] = []

    def cancel(self, mailbox: Mailbox) -> None:
        self.dropped.append(mailbox)


def stream_of(engine: Engine, id: str, told: int = 1) -> streams.Stream:
    nothing: Any = None
    box = Mailbox(1, on_overflow=lambda: None)
    own = cast(EngineThread, engine)
    stream = streams.Stream("me", id, ask=nothing, reply=nothing, mailbox=box, engine=own, end=b"")
    stream.encoded([{"n": n} for n in range(told)])
    return stream


class Connection:
    def interrupt(self, error: BaseException) -> None: ...


def test_a_stream_that_nobody_comes_back_to_is_dropped_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "WAITS", 0.02)
    engine, all_streams = Engine(), streams.Streams()
    comes_back, leaves = (stream_of(engine, id) for id in ("x-1", "x-2"))

    async def main() -> None:
        for each in (comes_back, leaves):
            all_streams.hold(each, Connection())
            all_streams.leave(each)
        taken = await all_streams.taken("me", "x-1-1", Connection())
        assert taken == (comes_back, 1)
        while not engine.dropped:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert engine.dropped == [leaves.mailbox]
        with pytest.raises(RequestError):
            await all_streams.taken("me", "x-2-1", Connection())

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_as_many_streams_wait_as_memory_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST", 2)
    engine, all_streams = Engine(), streams.Streams()
    silent = stream_of(engine, "silent", told=0)
    several = [stream_of(engine, f"x-{n}") for n in range(4)]

    async def main() -> None:
        for each in (silent, *several):
            all_streams.hold(each, Connection())
            all_streams.leave(each)

    asyncio.run(main())
    assert engine.dropped == [each.mailbox for each in (silent, *several[:2])]


def test_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEPT", 200)
    stream = stream_of(Engine(), "x", told=100)
    last = stream.after(97).decode()
    assert last == 'id: x-98\ndata: {"n":97}\n\n' + (
        'id: x-99\ndata: {"n":98}\n\nid: x-100\ndata: {"n":99}\n\n'
    )
    assert stream.after(100) == b""
    for number in (0, 80, 101, -1):
        with pytest.raises(RequestError, match="are kept"):
            stream.after(number)
