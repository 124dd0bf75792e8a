"""What is fetched for a client: images of messages, at public addresses only, and within limits."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from mlxgen.server import remote_images
from mlxgen.server.errors import RequestError
from mlxgen.server.remote_images import MOST_IMAGES, FetchError, fetch, is_public

from .exchanges import lines

Answer = Callable[[socket.socket], None]
LINES = lines("fetched")

PUBLIC = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822")
INSIDE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.9", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.9"),
    *("::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "fec0::1", "5f00::1", "2001:db8::1"),
    *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1", "3fff::1"),
    *("64:ff9b:1::5db8:d822", "::93.184.216.34"),
)


def test_only_addresses_of_the_internet_are_public() -> None:
    assert all(map(is_public, PUBLIC))
    assert not any(map(is_public, INSIDE))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], int]]:
    """Starts a server that answers each connection in the same way, and gives its port.

    Names lead there, as if it were the internet, but for those that begin with ``inner``; those
    that begin with ``both`` lead to both.
    """
    listeners: list[socket.socket] = []

    def start(answer: Answer) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    try:
                        link.recv(1 << 16)
                        answer(link)
                    except OSError:
                        pass

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    def looked_up(host: str, port: int, **more: Any) -> list[Any]:
        hosts = {"inner": ["10.0.0.1"], "both.": ["127.0.0.1", "10.0.0.1"]}
        found = hosts.get(host[:5], ["127.0.0.1"])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(remote_images, "is_public", lambda text: text == "127.0.0.1")
    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def fetched(url: str, line: Mapping[str, Any]) -> None:
    """Fetch what has no more than 4000 bytes; it comes, or fails as the line says."""
    if "message" not in line:
        assert fetch(url, most=4000) == line["answer"].partition("\r\n\r\n")[2].encode()
        return
    with pytest.raises(FetchError, match=line["message"]) as caught:
        fetch(url, most=4000)
    assert caught.value.status == line["status"]


@pytest.mark.whole
@pytest.mark.parametrize("line", [line for line in LINES if "answer" in line])
def test_a_server_may_do_anything(serve: Callable[[Answer], int], line: Mapping[str, Any]) -> None:
    port = serve(lambda link: link.sendall(f"HTTP/1.1 {line['answer']}".encode()))
    fetched(f"http://example.org:{port}/a?b=c", line)


def test_what_is_not_a_public_address_is_not_visited() -> None:
    for line in LINES:
        if "url" in line:
            fetched(line["url"], line)


@pytest.mark.parametrize("head", ["", "Content-Length: 900\r\n\r\n"])
def test_a_server_that_dawdles_is_left(serve: Callable[[Answer], int], head: str) -> None:
    def dawdle(link: socket.socket) -> None:
        link.sendall(f"HTTP/1.1 200 OK\r\n{head}".encode())
        while True:
            link.sendall(b"a")
            threading.Event().wait(0.01)

    port = serve(dawdle)
    with pytest.raises(FetchError, match=r"takes more than 0\.3 seconds"):
        fetch(f"http://example.org:{port}/", seconds=0.3)


# ---- in bodies -----------------------------------------------------------------------------------


def put_into(body: dict[str, Any], get: Callable[[str], bytes]) -> None:
    asyncio.run(remote_images.put_into(body, get))


def images(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


def test_each_address_is_fetched_once_and_its_image_put_into_the_body() -> None:
    asked = []

    def get(url: str) -> bytes:
        asked.append(url)
        return url[-1].encode()

    urls = ["https://example.org/1", "HTTP://example.org/2", "https://example.org/1", "data:,"]
    put_into(body := images(*urls), get)
    assert sorted(asked) == ["HTTP://example.org/2", "https://example.org/1"]
    found = [part["image_url"]["url"].partition(",")[2] for part in body["messages"][0]["content"]]
    assert found == ["MQ==", "Mg==", "MQ==", ""]


def test_what_is_no_list_of_messages_is_left_to_those_who_read_it() -> None:
    part = images("https://example.org/1")["messages"][0]["content"][0]
    for messages in ([[part]], [part], part, {"content": [part]}, [{"role": 1, "content": [part]}]):
        put_into({"messages": messages}, lambda url: b"1")


def test_an_image_that_cannot_be_fetched_is_named() -> None:
    def get(url: str) -> bytes:
        raise FetchError("its server answers 404")

    with pytest.raises(RequestError) as caught:
        put_into(images("data:,", "https://example.org/1"), get)
    assert caught.value.param == "messages[0].content[1].image_url.url"
    assert (caught.value.status, caught.value.code) == (502, "fetch_failed")
    put_into(images(*["https://example.org/1"] * MOST_IMAGES), lambda url: b"")
    with pytest.raises(RequestError) as caught:
        put_into(images(*["https://example.org/1"] * (MOST_IMAGES + 1)), lambda url: b"")
    assert caught.value.status == 400


def test_an_image_of_the_history_never_stops_the_request() -> None:
    def get(url: str) -> bytes:
        if url.endswith("gone"):
            raise FetchError("its server answers 404")
        return url[-1].encode()

    many = [f"https://example.org/{i}" for i in range(MOST_IMAGES)]
    body = {"messages": [*images("https://example.org/gone", *many)["messages"]]}
    body["messages"] += images("https://example.org/a")["messages"]
    put_into(body, get)
    urls = [part["image_url"]["url"][:5] for part in body["messages"][0]["content"]]
    assert urls == ["https"] * 2 + ["data:"] * (MOST_IMAGES - 1), "the newest ones are fetched"
    assert body["messages"][1]["content"][0]["image_url"]["url"].startswith("data:")
    put_into(body := {"messages": [*images(HERE + "/gone")["messages"], ASKS]}, get)
    assert body["messages"][0]["content"][0]["image_url"]["url"] == HERE + "/gone"


ASKS = {"role": "user", "content": "and?"}
HERE = "https://example.org/1"
LOOKS = [
    {"type": "image_url", "image_url": {"url": HERE}},
    {"type": "input_image", "image_url": HERE},
    {"type": "image", "source": {"type": "url", "url": HERE}},
]


@pytest.mark.parametrize("like", LOOKS)
def test_only_images_of_messages_are_fetched(like: dict[str, Any]) -> None:
    def talk(told: Any) -> list[Any]:
        result = {"type": "tool_result", "content": [told]}
        return [
            {"role": "user", "content": [told, result]},
            {"type": "function_call_output", "output": [told]},
        ]

    calls = [
        {"role": "assistant", "content": HERE, "tool_calls": [{"function": {"arguments": like}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "input": [like]}]},
        {"type": "function_call", "arguments": like, "input": [like]},
    ]
    for name in ("messages", "input"):
        body = {
            name: [*talk(like), *calls],
            "metadata": like,
            "tools": [{"function": {"parameters": like}}],
            "response_format": {"json_schema": {"schema": {"const": [like]}}},
        }
        body, before = (json.loads(json.dumps(body)) for _ in range(2))
        put_into(body, lambda url: b"")
        assert HERE not in str(body[name][:2])
        assert body[name][2:] == before[name][2:]
        assert {**body, name: 0} == {**before, name: 0}


def test_slow_addresses_of_one_request_delay_no_other() -> None:
    free = threading.Event()
    slow = [f"https://slow.example/{i}" for i in range(MOST_IMAGES)]

    def get(url: str) -> bytes:
        assert url not in slow or free.wait(60)
        return b"a"

    async def ask() -> None:
        put = remote_images.put_into
        waiting = [asyncio.create_task(put(images(*slow), get)) for _ in range(3)]
        await asyncio.sleep(0)
        await put(quick := images(HERE), get)
        assert "base64," in str(quick) and not any(task.done() for task in waiting)
        free.set()
        await asyncio.gather(*waiting)

    asyncio.run(ask())
