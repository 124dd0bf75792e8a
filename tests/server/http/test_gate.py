"""Who gets in: keys, origins, hosts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from mlxgen.server.http.gate import Gate, owner_of

from ..running import Running

HOST = {"host": "127.0.0.1:8080"}


async def inner(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"owner", owner_of(scope).encode()), (b"path", scope["path"].encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def ask(
    headers: dict[str, str],
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    host: str = "127.0.0.1",
    key: str | None = None,
    origins: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    root: str = "",
    version: str = "1.1",
) -> tuple[int, dict[str, str], Any]:
    """The status, headers and JSON of the answer."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the gate reads no bodies")

    scope = {
        "type": "http",
        "method": method,
        "http_version": version,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    gate = Gate(
        inner,
        host=host,
        api_keys=() if key is None else key.split(),
        origins=origins,
        allow_hosts=names,
        root=root,
    )
    asyncio.run(gate(scope, receive, send))
    start, body = sent
    got = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], got, json.loads(body["body"] or b"null")


def test_without_a_key_programs_on_this_machine_get_in() -> None:
    for host in ("127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "127.9.9.9"):
        assert ask({"host": host})[0] == 200


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
        status, _, body = ask(headers, host=bound)
        assert (status, body["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "192.168.1.5"])
def test_addresses_cannot_be_pointed_anywhere_and_get_in(bound: str) -> None:
    for host in ("192.168.1.5:8080", "10.0.0.1", "[fe80::1]:8080", "localhost:8080", "LocalHost."):
        assert ask({"host": host}, host=bound)[0] == 200


def test_names_get_in_that_the_server_listens_on_or_allows() -> None:
    names = ("models.example", "Box.local")
    for host in ("models.example:8080", "MODELS.example.", "box.local", "127.0.0.1"):
        assert ask({"host": host}, host="0.0.0.0", names=names)[0] == 200
    assert ask({"host": "sub.models.example"}, host="0.0.0.0", names=names)[0] == 403
    assert ask({"host": "models.example"}, host="models.example")[0] == 200


def test_with_a_key_names_do_not_matter_unless_some_are_allowed() -> None:
    named = {"host": "models.example", "authorization": "Bearer secret"}
    assert ask(named, key="secret", host="0.0.0.0")[0] == 200
    assert ask(named, key="secret", names=("models.example",))[0] == 200
    assert ask(named, key="secret", names=("other.example",))[0] == 403


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer secretx", "Bearer secre",
     "Basic secret", "secret", "Bearer sécret"],
)  # fmt: skip
def test_a_missing_or_wrong_key_is_refused(given: str | None) -> None:
    headers = HOST if given is None else HOST | {"authorization": given}
    status, got, body = ask(headers, key="secret")
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert got["www-authenticate"] == "Bearer"


def test_the_key_lets_in_and_health_and_the_page_need_none() -> None:
    assert ask(HOST | {"authorization": "bearer  secret "}, key="secret")[0] == 200
    assert ask(HOST | {"x-api-key": "secret"}, key="secret")[0] == 200
    assert ask(HOST | {"x-api-key": "secrets"}, key="secret")[0] == 401
    for path in ("/health", "/health/live", "/health/ready", "/", "/page/page.js"):
        assert ask(HOST, key="secret", method="GET", path=path)[0] == 200
    for path in ("/metrics", "/openapi.json", "/v1/models", "/health/", "//"):
        assert ask(HOST, key="secret", method="GET", path=path)[0] == 401


def test_who_asks_is_told_by_the_key_and_never_the_key_itself() -> None:
    owners: dict[str, str] = {}
    for key in ("first", "second"):
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            status, got, _ = ask(HOST | headers, key="first second")
            assert status == 200
            assert owners.setdefault(key, got["owner"]) == got["owner"]
            assert key not in got["owner"]
    assert owners["first"] != owners["second"]
    assert ask(HOST | {"authorization": "Bearer first second"}, key="first second")[0] == 401
    assert ask(HOST)[1]["owner"] == ""


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "x"])
def test_pages_of_other_origins_are_refused_even_where_no_answer_is_read(origin: str) -> None:
    simple = HOST | {"origin": origin, "content-type": "text/plain"}
    status, got, body = ask(simple)
    assert (status, body["error"]["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in got
    keyed = simple | {"authorization": "Bearer secret"}
    assert ask(keyed, key="secret")[0] == 403


def test_the_servers_own_page_gets_in() -> None:
    own = HOST | {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert ask(own)[0] == 200


def test_requests_without_origin_that_a_browser_marks_are_refused_unless_a_link_was_followed() -> (
    None
):
    image = HOST | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert ask(image, method="GET", path="/v1/models")[0] == 403
    link = HOST | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert ask(link, method="GET", path="/openapi.json")[0] == 200
    assert ask(link, method="POST")[0] == 403


def test_an_allowed_origin_gets_in_and_is_named_also_in_errors() -> None:
    allowed = ("http://localhost:3000",)
    headers = HOST | {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}
    status, got, _ = ask(headers, origins=allowed)
    assert status == 200
    assert got["access-control-allow-origin"] == "http://localhost:3000"
    assert got["vary"] == "Origin"
    status, got, _ = ask(headers, origins=allowed, key="secret")
    assert (status, got["access-control-allow-origin"]) == (401, "http://localhost:3000")
    assert ask(HOST | {"origin": "http://other.example"}, origins=("*",))[0] == 200


def test_a_preflight_needs_no_key_and_is_answered_for_allowed_origins_only() -> None:
    headers = HOST | {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os",
    }
    allowed = ("http://localhost:3000",)
    status, got, _ = ask(headers, method="OPTIONS", origins=allowed, key="secret")
    assert status == 204
    assert got["access-control-allow-headers"] == headers["access-control-request-headers"]
    assert "POST" in got["access-control-allow-methods"]
    assert ask(headers, method="OPTIONS", key="secret")[0] == 403


@pytest.mark.parametrize(
    ("given", "version"),
    [
        ({"content-length": "4", "transfer-encoding": "chunked"}, "1.1"),
        ({"transfer-encoding": "chunked"}, "1.0"),
    ],
)
def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(
    given: dict[str, str], version: str
) -> None:
    status, got, body = ask(HOST | given, version=version)
    assert (status, got["connection"]) == (400, "close")
    assert body["error"]["code"] == "invalid_http"


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
    assert ask(HOST, path=asked, root="/llm/")[1]["path"] == path


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
