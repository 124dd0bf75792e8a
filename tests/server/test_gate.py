"""Who gets in: keys, origins, hosts; and what is asked for, in whatever form.

Every line of ``tests/data/server/gate.jsonl`` has settings and requests, and the code with which
each of these is refused by a server with any of those; without a code they get in.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import httpx
import pytest

from .exchanges import lines
from .inside import serving, settings_of
from .running import Running

LINES = lines("gate")
PAGE = "http://localhost:3000"  # of another origin
REFUSALS = {
    "host_not_allowed": 403,
    "origin_not_allowed": 403,
    "invalid_api_key": 401,
    "invalid_http": 400,
    "not_found": 404,
}


def ask(
    given: dict[str, str], method: str = "POST", path: str = "/v1/completions", **settings: Any
) -> httpx.Response:
    """The answer of a server that has not loaded a model: to a request for text a 503."""

    async def asked() -> httpx.Response:
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        async with serving(ready=False, **settings_of(settings)) as inside:
            return await inside.http.request(method, path, headers=headers)

    return asyncio.run(asked())


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["case"])
def test_every_request_gets_in_or_is_refused_as_its_line_says(line: dict[str, Any]) -> None:
    paths, wanted = line.get("paths", ["/v1/completions"]), line.get("code")
    for settings in line.get("settings", [{}]):
        for path, headers in product(paths, line["headers"]):
            answer = ask(headers, line.get("method", "POST"), path, **settings)
            said = answer.json() if "json" in answer.headers["content-type"] else {}
            code = said.get("error", {}).get("code")
            assert (code if code in REFUSALS else None) == wanted, (settings, path, headers)
            assert wanted is None or answer.status_code == REFUSALS[wanted]
            assert (answer.headers.get("www-authenticate") == "Bearer") is (
                code == "invalid_api_key"
            )
            assert (answer.headers.get("connection") == "close") is (code == "invalid_http")
            assert "access-control-allow-origin" not in answer.headers or wanted is None


def test_an_allowed_origin_is_named_also_in_errors() -> None:
    for keys, status in ((), 503), (("secret",), 401):
        answer = ask({"origin": PAGE}, cors_origins=(PAGE,), api_keys=keys)
        told = [answer.headers[name] for name in ("access-control-allow-origin", "vary")]
        assert (answer.status_code, told) == (status, [PAGE, "Origin"])


def test_a_preflight_needs_no_key_and_is_answered_for_allowed_origins_only() -> None:
    wanted = "authorization, content-type, x-stainless-os"
    given = {"origin": PAGE, "access-control-request-headers": wanted}
    given["access-control-request-method"] = "POST"
    answer = ask(given, "OPTIONS", cors_origins=(PAGE,), api_keys=("secret",))
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-headers"] == wanted
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert ask(given, "OPTIONS", api_keys=("secret",)).status_code == 403


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/openapi.json"])
def test_head_is_answered_like_get_but_without_the_body(server: Running, path: str) -> None:
    with httpx.Client() as client:
        whole, head = client.get(server.url + path), client.head(server.url + path)
        again = client.get(server.url + path)  # on the same connection
    assert (head.status_code, again.status_code, head.content) == (200, 200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == whole.headers[name]


def test_what_has_no_get_has_no_head(server: Running) -> None:
    answer = httpx.head(f"{server.url}/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert httpx.post(f"{server.url}/health").headers["allow"] == "GET, HEAD"
