"""Who gets in: keys, origins, hosts; and what is asked for, in whatever form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from mlxgen.server.gate import Gate, owner_of

from ..running import Running

HOST = {"host": "127.0.0.1:8080"}
PAGE = "http://localhost:3000"  # of another origin
CROSSING = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


async def inner(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"owner", owner_of(scope).encode()), (b"path", scope["path"].encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def ask(
    given: dict[str, str],
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    version: str = "1.1",
    host: str = "127.0.0.1",
    key: str = "",
    **gate: Any,
) -> tuple[int, dict[str, str], str | None]:
    """The status, headers and error code of the answer; the ``host`` is that of the server."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the gate reads no bodies")

    headers = [(name.encode(), value.encode()) for name, value in (HOST | given).items()]
    scope = {"type": "http", "method": method, "http_version": version, "path": path}
    app = Gate(inner, host=host, api_keys=key.split(), **gate)
    asyncio.run(app({**scope, "headers": headers}, receive, send))
    start, body = sent
    got = {name.decode(): value.decode() for name, value in start["headers"]}
    error = json.loads(body["body"] or b"{}").get("error", {})
    return start["status"], got, error.get("code")


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "192.168.1.5", "box.local"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "", "127.0.0.1.evil.example", "box.local.evil.example",
     "[evil.example]", "[", ".", "1", "localhost:80@evil.example", "[::1].evil.example",
     "[::1]@evil.example", "localhost:evil", "localhost/evil.example", "127.0.0.1:80:80",
     "localhost:8080, evil.example", "::1"],
)  # fmt: skip
def test_a_name_that_was_pointed_here_does_not_get_in(bound: str, host: str) -> None:
    own = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    for headers in ({"host": host}, own):
        status, _, code = ask(headers, host=bound)
        assert (status, code) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("hosts", "gate", "status"),
    [
        ("127.0.0.1:8080 localhost:8080 localhost LocalHost. [::1]:8080 127.9.9.9", {}, 200),
        ("192.168.1.5:8080 10.0.0.1 [fe80::1]:8080", {"host": "0.0.0.0"}, 200),
        ("models.example MODELS.example. models.example:80", {"host": "models.example"}, 200),
        ("models.example box.local", {"allow_hosts": ("models.example", "Box.local")}, 200),
        ("sub.models.example", {"allow_hosts": ("models.example",)}, 403),
        ("models.example", {"key": "secret"}, 200),
        ("models.example", {"key": "secret", "allow_hosts": ("other.example",)}, 403),
    ],
)
def test_addresses_and_known_names_get_in_and_with_a_key_any_name(
    hosts: str, gate: dict[str, Any], status: int
) -> None:
    for host in hosts.split():
        assert ask({"host": host, "x-api-key": "secret"}, **gate)[0] == status, host


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer secretx", "Bearer secre", "Basic secret",
     "secret", "Bearer sécret"],
)  # fmt: skip
def test_a_missing_or_wrong_key_is_refused(given: str) -> None:
    for headers in ({}, {"authorization": given}, {"x-api-key": given[:-1]}):
        status, got, code = ask(headers, key="secret")
        assert (status, code) == (401, "invalid_api_key")
        assert got["www-authenticate"] == "Bearer"


def test_health_and_the_page_need_no_key_and_nothing_else_does_without() -> None:
    for path in ("/health", "/health/live", "/health/ready", "/", "/page/page.js"):
        assert ask({}, key="secret", method="GET", path=path)[0] == 200
    for path in ("/metrics", "/openapi.json", "/v1/models", "/health/", "//"):
        assert ask({}, key="secret", method="GET", path=path)[0] == 401


def test_who_asks_is_told_by_the_key_and_never_the_key_itself() -> None:
    owners: dict[str, str] = {}
    for key in ("first", "second"):
        for headers in ({"authorization": f"bearer  {key} "}, {"x-api-key": key}):
            status, got, _ = ask(headers, key="first second")
            assert status == 200
            assert owners.setdefault(key, got["owner"]) == got["owner"]
            assert key not in got["owner"]
    assert owners["first"] != owners["second"]
    assert ask({"authorization": "Bearer first second"}, key="first second")[0] == 401
    assert ask({})[1]["owner"] == ""


@pytest.mark.parametrize(
    ("headers", "method", "gate", "status"),
    [
        *(({"origin": origin}, "POST", {}, 403) for origin in ("http://evil.example", PAGE, "x")),
        ({"origin": "null", "content-type": "text/plain"}, "POST", {}, 403),
        ({"origin": PAGE, "x-api-key": "secret"}, "POST", {"key": "secret"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, "POST", {}, 200),
        ({"origin": "http://other.example"}, "POST", {"origins": ("*",)}, 200),
        (CROSSING, "GET", {}, 403),
        (LINK, "GET", {}, 200),
        (LINK, "POST", {}, 403),
    ],
)
def test_pages_of_other_origins_are_refused_even_if_they_read_no_answer(
    headers: dict[str, str], method: str, gate: dict[str, Any], status: int
) -> None:
    got = ask(headers, method=method, **gate)
    assert (got[0], got[2]) == (status, "origin_not_allowed" if status == 403 else None)
    assert "access-control-allow-origin" not in got[1] or gate


def test_an_allowed_origin_gets_in_and_is_named_also_in_errors() -> None:
    for key, status in (("", 200), ("secret", 401)):
        found, got, _ = ask({"origin": PAGE}, origins=(PAGE,), key=key)
        assert (found, got["access-control-allow-origin"], got["vary"]) == (status, PAGE, "Origin")


def test_a_preflight_needs_no_key_and_is_answered_for_allowed_origins_only() -> None:
    wanted = "authorization, content-type, x-stainless-os"
    headers = {"origin": PAGE, "access-control-request-headers": wanted}
    headers["access-control-request-method"] = "POST"
    status, got, _ = ask(headers, method="OPTIONS", origins=(PAGE,), key="secret")
    assert status == 204
    assert got["access-control-allow-headers"] == wanted
    assert "POST" in got["access-control-allow-methods"]
    assert ask(headers, method="OPTIONS", key="secret")[0] == 403


@pytest.mark.parametrize(("length", "version"), [("4", "1.1"), (None, "1.0")])
def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(
    length: str | None, version: str
) -> None:
    given = {"transfer-encoding": "chunked", **({"content-length": length} if length else {})}
    status, got, code = ask(given, version=version)
    assert (status, got["connection"], code) == (400, "close", "invalid_http")


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("/v1/models", "/v1/models"),
        ("/models/a", "/v1/models/a"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/llm/completions", "/v1/completions"),
        ("/llmx", "/llmx"),
        ("/llm/", "/"),
    ],
)
def test_paths_without_v1_and_behind_a_proxy_are_the_same(asked: str, path: str) -> None:
    assert ask({}, path=asked, root="/llm/")[1]["path"] == path


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/openapi.json"])
def test_head_is_answered_like_get_but_without_the_body(server: Running, path: str) -> None:
    with httpx.Client() as client:
        whole, head = client.get(server.url + path), client.head(server.url + path)
        again = client.get(server.url + path)  # on the same connection
    assert (head.status_code, again.status_code) == (200, 200)
    assert head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == whole.headers[name]


def test_what_has_no_get_has_no_head(server: Running) -> None:
    answer = httpx.head(f"{server.url}/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert httpx.post(f"{server.url}/health").headers["allow"] == "GET, HEAD"
