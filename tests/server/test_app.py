"""What a server says of itself, and the files of its page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
from typing import Any

import httpx
import pytest

from .inside import Inside, run, serving
from .running import Running, error


def test_while_the_model_is_loaded_only_liveness_is_good_and_a_signal_ends_it() -> None:
    release = threading.Event()

    def boot() -> Any:
        release.wait(60)
        raise LookupError("nobody waits for it any more")

    async def test() -> None:
        async with serving(boot=boot, ready=False) as inside:
            get, service = inside.http.get, inside.service
            service.start()
            health = await get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "loading")
            assert (await get("/health/live")).status_code == 200
            for answer in (await inside.say(), await get("/v1/models"), await get("/props")):
                assert error(answer, 503)["code"] == "server_loading"
            assert (await inside.say()).headers["retry-after"] == "1"
            assert await inside.figure("ready") == 0
            service.stop()
            assert await service.ended == 0
            release.set()

    asyncio.run(test())


def test_what_nobody_expected_is_an_error_of_the_protocol_and_keeps_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(inside: Inside) -> None:
        monkeypatch.setattr(inside.service.metrics, "page", lambda: 1 / 0)
        answer = await inside.http.get("/metrics")
        assert error(answer, 500)["type"] == "server_error"
        assert "division" not in answer.text

    run(test, ready=False)


def test_the_figures_have_names_that_prometheus_takes(server: Running) -> None:
    outcome = 'mlxgen_requests_total{endpoint="/v1/completions",outcome="completed"}'
    counts = (outcome, "mlxgen_time_to_first_token_seconds_count", "mlxgen_completion_tokens_total")
    before = [server.figure(name) for name in counts]
    story = {"prompt": "so it goes, " * 20, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    assert server.post("/v1/completions", story).status_code == 200
    server.wait_idle()
    grown = [server.figure(name) - old for name, old in zip(counts, before, strict=True)]
    assert grown == [1, 1, 60]
    hits = server.figure("mlxgen_prefix_cache_hits_total")
    assert hits + server.figure("mlxgen_prefix_cache_misses_total") > 0
    shares = ("weights_bytes", "cache_limit_bytes", "activations_limit_bytes", "reserve_bytes")
    assert all(server.figure(f"mlxgen_{name}") > 0 for name in shares)
    used = sum(server.figure(f"mlxgen_{name}") for name in shares)
    assert used <= server.figure("mlxgen_device_limit_bytes")
    page = server.get("/metrics").text
    drafted, accepted = (
        dict(re.findall(rf'mlxgen_{name}_tokens_total{{drafter="(\w+)"}} (\S+)', page))
        for name in ("drafted", "accepted_draft")
    )
    assert drafted and drafted.keys() == accepted.keys()
    assert all(float(accepted[name]) <= float(drafted[name]) for name in drafted)
    assert server.figure("mlxgen_ready") == 1 and server.figure("mlxgen_queue_size") == 0


def test_the_description_lists_what_is_there(server: Running) -> None:
    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    for name, field, part in (
        ("ChatRequest", "messages", "image_url"),
        ("MessagesRequest", "messages", "tool_result"),
        ("ResponsesRequest", "input", "input_image"),
    ):
        assert f'"const": "{part}"' in json.dumps(schemas[name]["properties"][field])


def test_the_page_runs_its_own_files_and_nothing_inline(server: Running) -> None:
    index = server.get("/")
    (imports,) = re.findall(r'<script type="importmap">(.*?)</script>', index.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    names = [name.removeprefix("./") for name in json.loads(imports)["imports"].values()]
    names += ["page/app.js", "page/style.css", "page/vendor/katex/fonts/KaTeX_Main-Regular.woff2"]
    for file in (index, *(server.get(f"/{name}") for name in names)):
        assert file.headers["content-type"].startswith(("text/", "font/woff2")), file.url
        policy = file.headers["content-security-policy"]
        scripts = f" 'sha256-{digest}'" if file is index else ""
        assert f"script-src 'self'{scripts}; style-src 'self';" in policy
        assert "default-src 'none'" in policy and "unsafe" not in policy
    others = index.text.replace(f'<script type="importmap">{imports}</script>', "")
    assert not re.search(r"<style|<script(?![^>]* src=)|\s(?:style|on\w+)=", others)


def test_a_file_of_the_page_that_a_browser_has_is_not_sent_again(server: Running) -> None:
    first, second = server.get("/"), server.get("/page/app.js")
    etag, other = first.headers["etag"], second.headers["etag"]
    assert etag != other
    for known, status in (('"x"', 200), (other, 200), (etag, 304), (f'W/{etag}, "x"', 304)):
        again: httpx.Response = server.get("/", headers={"if-none-match": known})
        assert again.status_code == status and (status == 200 or again.content == b"")
        policy = "content-security-policy"
        assert again.headers[policy] == first.headers[policy]
