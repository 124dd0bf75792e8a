"""Admission, mailboxes, figures, the page and the documentation, each for itself."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mlxgen.engine import Chunk, DraftCount, Stats, Usage
from mlxgen.engine.chunk import Alternative
from mlxgen.server.app import make_app
from mlxgen.server.engine.mailbox import Delivery, Mailbox
from mlxgen.server.engine.thread import State
from mlxgen.server.errors import RequestError
from mlxgen.server.http.admission import Admission
from mlxgen.server.http.responses import to_json, to_large_json
from mlxgen.server.metrics import Metrics
from mlxgen.server.page import read_page, unless_kept
from mlxgen.server.service import Service
from mlxgen.server.settings import Settings

from .http.links import HOST, run, serving


def never(error: BaseException) -> None:
    raise AssertionError("it does not have to go")


def test_admission_counts_requests_and_bytes_and_gives_both_back() -> None:
    door = Admission(max_batch=1, most=2, bodies=100)
    with door.enter(never) as first:
        first.hold(60)
        assert door.inside == 0
        first.arrived()
        with door.enter(never) as second:
            second.arrived()
            with pytest.raises(RequestError) as caught, door.enter(never):
                pass
            assert caught.value.status == 429
            second.hold(40)
            with pytest.raises(RequestError):
                second.hold(1)
            second.understood()
            first.hold(40)
        assert door.inside == 1
    assert door.inside == 0
    with door.enter(never) as again:
        again.hold(100)


def test_bodies_that_arrive_keep_nobody_out() -> None:
    door = Admission(max_batch=1, most=1)
    with contextlib.ExitStack() as stack:
        slow, slower, quick = (stack.enter_context(door.enter(never)) for _ in range(3))
        slower.hold(1)
        quick.arrived()
        with pytest.raises(RequestError):
            slow.arrived()
        assert door.inside == 1
    assert door.inside == 0


def test_the_body_that_began_first_gives_way_of_those_that_still_arrive() -> None:
    door = Admission(max_batch=1, most=9, bodies=100)
    left: list[str] = []
    with contextlib.ExitStack() as stack:
        for name, size in (("whole", 30), ("empty", 0), ("old", 40), ("young", 30)):
            visit = stack.enter_context(door.enter(lambda error, name=name: left.append(name)))  # type: ignore[misc]
            visit.hold(size)
            if name == "whole":
                visit.arrived()
        with door.enter(never) as new:
            new.hold(40)
            assert left == ["old"]
            new.hold(30)
            assert left == ["old", "young"]
            with pytest.raises(RequestError) as caught:
                new.hold(1)
            assert caught.value.status == 429
    with door.enter(never) as again:
        again.hold(100)


def test_a_client_whose_body_gives_way_is_told() -> None:
    async def test() -> None:
        service = Service(Settings(), lambda: (None, None))  # type: ignore[arg-type, return-value]
        service.state = State.READY
        service.admission = Admission(max_batch=1, most=9, bodies=1000)
        head = b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 2000\r\n\r\n"
        async with serving(make_app(service)) as network:
            first, second = await network.link(), await network.link()
            await first.send(head + bytes(800))
            while not any(visit.arrives for visit in service.admission.visits):
                await asyncio.sleep(0.01)
            await second.send(head + bytes(300))
            status, headers, body = await first.answer()
            assert (status, headers["retry-after"]) == (429, "1")
            assert json.loads(body)["error"]["code"] == "queue_full"

    run(test)


def test_the_wait_that_is_recommended_grows_with_the_queue_and_has_bounds() -> None:
    door = Admission(max_batch=2, most=102)
    assert door.retry_after() == 1
    for _ in range(100):
        door.took(4.0)
    door.inside = 10
    assert door.retry_after() == 20
    for _ in range(100):
        door.took(4000.0)
    assert door.retry_after() == 60


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


def test_a_mailbox_wakes_nobody_for_what_can_be_used_at_once() -> None:
    async def test() -> None:
        box = Mailbox(1, on_overflow=lambda: None, limit=3)
        used: list[str] = []
        answers = [True, True, False]

        def use(items: list[Delivery]) -> bool:
            used.append("".join(chunk.text for item in items for chunk in item.chunks))
            return answers.pop(0)

        def say(text: str, usage: Usage | None = None) -> None:
            box.put(Delivery(0, [Chunk(text, 1, 0)], usage))
            box.tell()

        taking = asyncio.create_task(box.take(use))
        await asyncio.sleep(0)
        for text in "abc":
            say(text)
            await asyncio.sleep(0)
        assert used == ["a", "b", "c"]
        assert [chunk.text for delivery in await taking for chunk in delivery.chunks] == ["c"]
        for text in "def":  # nobody waits: they are kept, up to the limit
            say(text)
        assert len(await box.take(use)) == 3
        taking = asyncio.create_task(box.take(use))
        await asyncio.sleep(0)
        say("end", Usage())
        assert len(await taking) == 1  # the end is never used at once
        assert len(used) == 3

    asyncio.run(test())


def test_what_goes_wrong_where_chunks_are_used_is_raised_where_they_are_awaited() -> None:
    async def test() -> None:
        box = Mailbox(1, on_overflow=lambda: None)

        def use(items: list[Delivery]) -> bool:
            raise ValueError("too many")

        taking = asyncio.create_task(box.take(use))
        await asyncio.sleep(0)
        box.put(Delivery(0, [Chunk("a", 1, 0)]))
        box.tell()
        with pytest.raises(ValueError, match="too many"):
            await taking

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


def test_a_large_value_is_written_as_a_small_one() -> None:
    values: tuple[Any, ...] = ({"a": [1, {"b": "é\n"}, [], {}], "c": None}, [], {}, "x", [[[[1]]]])
    for value in values:
        for depth in range(5):
            assert to_large_json(value, depth) == to_json(value)


def test_an_iterator_is_written_as_a_list_and_never_held_as_one() -> None:
    held: list[weakref.ref[Any]] = []
    most = [0]

    class Item(dict[str, int]):
        pass

    def items(count: int) -> Iterator[Any]:
        for number in range(count):
            item = Item(id=number)
            held.append(weakref.ref(item))
            yield item
            if number % 1000 == 0:
                most[0] = max(most[0], sum(ref() is not None for ref in held))

    for count in (0, 1, 5000):
        wanted = to_json({"tokens": [{"id": number} for number in range(count)], "n": 1})
        assert to_large_json({"tokens": items(count), "n": 1}, depth=2) == wanted
    assert 0 < most[0] < 3000
