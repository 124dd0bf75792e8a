"""Admission, mailboxes, figures, the page and the documentation, each for itself."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import threading
from typing import Any

import httpx
import pytest

from mlxgen.engine import Chunk, DraftCount, Stats, Usage
from mlxgen.engine.chunk import Alternative
from mlxgen.server.app import make_app
from mlxgen.server.engine.mailbox import Delivery, Mailbox
from mlxgen.server.errors import RequestError
from mlxgen.server.metrics import Metrics
from mlxgen.server.page import read_page, unless_kept
from mlxgen.server.service import Service, State
from mlxgen.server.settings import Settings


class Visitor:
    def interrupt(self, error: BaseException) -> None:
        raise AssertionError("it does not have to go")


def test_requests_count_from_when_their_bodies_are_there_until_they_end() -> None:
    async def test() -> None:
        service = Service(Settings(max_batch=1, max_queue=1), lambda: (None, None))  # type: ignore[arg-type, return-value]
        service.state = State.READY
        slow, *others = visitors = [Visitor() for _ in range(3)]
        with contextlib.ExitStack() as stack:
            for each in visitors:
                stack.enter_context(service.visited(each))
            for each in others:
                service.admit(each)
            with pytest.raises(RequestError) as caught:
                service.admit(slow)
            assert (caught.value.status, caught.value.code) == (429, "queue_full")
            with pytest.raises(RequestError), service.visited(Visitor()):
                pass
        with service.visited(slow):
            service.admit(slow)

    asyncio.run(test())


def test_the_wait_that_is_recommended_grows_with_the_queue_and_has_bounds() -> None:
    async def test() -> None:
        service = Service(Settings(max_batch=2), lambda: (None, None))  # type: ignore[arg-type, return-value]
        service.state = State.READY
        assert service.retry_after() == 1
        for _ in range(100):
            service.took(4.0)
        for _ in range(10):
            service.admit(Visitor())
        assert service.retry_after() == 20
        for _ in range(100):
            service.took(4000.0)
        assert service.retry_after() == 60

    asyncio.run(test())


def test_alternatives_count_for_what_a_mailbox_may_hold() -> None:
    overflowed = []
    box = Mailbox(1, on_overflow=lambda: overflowed.append(1), limit=10)
    top = tuple(Alternative(token, -1.0) for token in range(20))
    box.put(Delivery(0, [Chunk("a", 1, 0, top=top)]))
    assert not overflowed
    box.put(Delivery(0, [Chunk("a", 1, 1, top=top)]))
    assert overflowed == [1]
    box.put(Delivery(0, [Chunk("a", 1, 2)]))
    assert overflowed == [1]


def test_a_mailbox_gives_the_chunks_before_the_end_and_then_nothing() -> None:
    async def test() -> None:
        box = Mailbox(1, on_overflow=lambda: None)
        last = Chunk("a", 1, 0, finish_reason="stop")
        box.put(Delivery(0, [last], Usage(completion_tokens=1)))
        assert [delivery.chunks for delivery in await box.take()] == [[last]]
        assert await box.take() == []
        assert box.usages[0].completion_tokens == 1

    asyncio.run(test())


def test_figures_have_names_that_prometheus_takes_and_two_servers_do_not_mix() -> None:
    drafts = {"text": DraftCount(90, 80), "head": DraftCount(30, 16)}
    stats = Stats(**dict.fromkeys(Stats.__dataclass_fields__, 7) | {"drafts": drafts})  # type: ignore[arg-type]
    ready, loading = (
        Metrics(stats=lambda: stats, is_ready=lambda: True),
        Metrics(stats=lambda: None, is_ready=lambda: False),
    )
    ready.requests.labels("/v1/models", "completed").inc()
    page = ready.page().decode()
    assert "mlxgen_ready 1.0" in page
    assert "mlxgen_queue_size 7.0" in page
    assert "mlxgen_completion_tokens_total 7.0" in page
    assert 'mlxgen_drafted_tokens_total{drafter="text"} 90.0' in page
    assert 'mlxgen_accepted_draft_tokens_total{drafter="head"} 16.0' in page
    assert 'mlxgen_requests_total{endpoint="/v1/models",outcome="completed"} 1.0' in page
    other = loading.page().decode()
    assert "mlxgen_ready 0.0" in other
    assert "mlxgen_queue_size" not in other
    assert 'outcome="completed"' not in other


def test_the_page_runs_its_own_files_and_nothing_inline() -> None:
    page = read_page()
    libraries = {"vendor/katex/katex.mjs", "vendor/katex/fonts/KaTeX_Main-Regular.woff2"}
    assert {"index.html", "app.js", "style.css"} | libraries <= set(page)
    written = bytes(page["index.html"].body).decode()
    (imports,) = re.findall(r'<script type="importmap">(.*?)</script>', written, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    for name, file in page.items():
        assert file.headers["content-type"].startswith(("text/", "font/woff2"))
        policy = file.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        scripts = f" 'sha256-{digest}'" if name == "index.html" else ""
        assert f"script-src 'self'{scripts}; style-src 'self';" in policy
        assert "unsafe" not in policy
    others = written.replace(f'<script type="importmap">{imports}</script>', "")
    assert not re.search(r"<style|<script(?![^>]* src=)|\s(?:style|on\w+)=", others)
    for place in json.loads(imports)["imports"].values():
        assert place.removeprefix("./page/") in page


def test_a_file_of_the_page_that_a_browser_has_is_not_sent_again() -> None:
    first, second = list(read_page().values())[:2]
    assert first.headers["etag"] != second.headers["etag"]
    for known in (None, '"other"', second.headers["etag"]):
        assert unless_kept(first, known) is first
    for known in (first.headers["etag"], f'W/{first.headers["etag"]}, "other"'):
        kept = unless_kept(first, known)
        assert (kept.status_code, kept.body) == (304, b"")
        assert kept.headers["content-security-policy"] == first.headers["content-security-policy"]


def test_while_the_model_is_loaded_only_liveness_is_good_and_a_signal_ends_it() -> None:
    release = threading.Event()

    def boot() -> Any:
        release.wait(60)
        raise LookupError("nobody waits for it any more")

    async def test() -> None:
        service = Service(Settings(), boot)
        service.start()
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "loading")
            assert (await client.get("/health/live")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 503
            answer = await client.post("/v1/completions", json={"prompt": "a"})
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "server_loading"
            assert answer.headers["retry-after"] == "1"
            assert (await client.get("/metrics")).text.count("mlxgen_ready 0.0") == 1
        service.stop()
        assert await service.ended == 0
        release.set()
        assert await service.close()

    asyncio.run(test())


def test_what_nobody_expected_is_an_error_of_the_protocol_and_keeps_its_words() -> None:
    async def test() -> None:
        service = Service(Settings(), lambda: (None, None))  # type: ignore[arg-type, return-value]
        service.metrics.page = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        transport = httpx.ASGITransport(app=make_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get("/metrics")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert "division" not in answer.text

    asyncio.run(test())
