"""Streams whose connection is lost: a client that comes back gets what it missed, and the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import pytest

from .apis import CHAT, MESSAGES, RESPONSES
from .running import WAIT, Running, Slow, endless, error, good

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
    """Of the streams that were left, it keeps two, with little of each and of both together."""
    own = ("--program", "endless=tests.server.own_code:endless")
    keys = ("--api-key", "mine", "--api-key", "theirs")
    limits = "answers.MOST=2 answers.KEPT=100000 answers.MOST_BYTES=150000"
    slow = tmp_path_factory.mktemp("slow") / "slow"
    with Slow(slow, *own, *keys, SET=limits) as server:
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


_VARIES = {
    *("id", "item_id", "created", "created_at", "completed_at"),
    *("timings", "usage", "tokens_cached", "tokens_predicted"),
}


def _plain(told: Any) -> Any:
    if isinstance(told, list):
        return [_plain(each) for each in told]
    if not isinstance(told, dict):
        return told
    return {name: _plain(value) for name, value in told.items() if name not in _VARIES}


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_comes_back_has_the_same_as_one_that_stays(server: Slow, path: str) -> None:
    body = BODIES[path]
    stays = list(Link(server, path, body))
    server.slow.touch()
    link = Link(server, path, body)
    told = link.read(12)
    link.lose()
    server.wait_idle()  # its rows cost nobody anything meanwhile
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
    server.wait_idle()
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


def goes_on(server: Running, last: str, key: str = "mine") -> httpx.Response:
    """The answer to who has a stream up to this event."""
    headers = {b"x-api-key": key.encode(), b"last-event-id": last.encode()}
    return httpx.post(server.url + TEXT, json={}, headers=headers, timeout=WAIT)


def test_only_who_has_a_stream_goes_on_with_it_and_from_an_event_that_was_sent(
    server: Slow,
) -> None:
    told = list(Link(server, TEXT, BODIES[TEXT]))
    name = told[3].id.rpartition("-")[0]
    unknown = [f"{name}-100000", f"{name}-x", "cmpl-0-1", "1", "-", "é-2"]
    for key, last in (("theirs", told[3].id), *(("mine", each) for each in unknown)):
        said = error(goes_on(server, last, key), 404)
        assert (said["code"], said["param"]) == ("stream_not_found", "Last-Event-ID")
    assert list(Link(server, TEXT, {}, f"{name}-0")) == told


def test_of_the_streams_that_are_left_the_newest_are_kept_and_of_each_the_newest_events(
    server: Slow,
) -> None:
    server.slow.touch()
    lasts = []
    for _ in range(3):
        link = Link(server, TEXT, BODIES[TEXT])
        lasts.append(link.read(2)[-1].id)
        link.lose()
        server.wait_idle()
    server.slow.unlink()
    assert [goes_on(server, last).status_code for last in lasts] == [404, 200, 200]
    body = endless(stream=True, max_tokens=300, logprobs=20)
    before, told = list(Link(server, TEXT, body)), list(Link(server, TEXT, body))
    assert goes_on(server, before[-4].id).status_code == 404, "both together are too large"
    assert goes_on(server, told[0].id).status_code == 404
    assert goes_on(server, told[-4].id).status_code == 200


def test_a_stream_that_nobody_comes_back_to_is_dropped_in_time(server: Slow) -> None:
    with Slow(server.slow, SET="answers.WAITS=4.0") as hasty:
        server.slow.touch()
        link = Link(hasty, TEXT, BODIES[TEXT])
        told = link.read(3)
        link.lose()
        hasty.wait_idle()
        back = Link(hasty, TEXT, {}, told[-1].id)  # from now on it does not wait
        told += back.read(20)
        back.lose()

        def is_gone() -> bool:
            answer = goes_on(hasty, f"{told[0].id.rpartition('-')[0]}-100000")
            return "left for more than" in error(answer, 404)["message"]

        hasty.wait_until(is_gone, "it is kept")
        server.slow.unlink()


def test_a_stream_of_a_program_is_dropped_with_its_client(server: Slow) -> None:
    server.slow.touch()
    link = Link(server, TEXT, {"prompt": "Once", "program": "endless", "stream": True})
    assert link.read(2)[-1].id == ""
    link.lose()
    server.slow.unlink()
    server.wait_idle()
