"""Threads that live on: work goes to those that have nothing to do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from mlxgen.workers import Work, Workers

WAIT = 30.0


@pytest.fixture
def pool() -> Iterator[Workers]:
    yield Workers()


def idle(pool: Workers) -> int:
    return len(pool._idle)


def ended(pool: Workers, *works: Work) -> None:
    """Wait until works are over and their threads are free."""
    for work in works:
        assert work.wait(WAIT) and work.is_over
    until = threading.Event()
    for _ in range(3000):
        if idle(pool):
            return
        until.wait(0.01)


def test_one_thread_does_one_thing_after_the_other(pool: Workers) -> None:
    seen: list[tuple[int, str]] = []

    def note() -> None:
        seen.append((threading.get_ident(), threading.current_thread().name))

    for name in ("first", "second", "third"):
        ended(pool, pool.start(note, name))
    assert [name for _, name in seen] == ["first", "second", "third"]
    assert len({ident for ident, _ in seen}) == 1


def test_what_runs_at_a_time_has_threads_of_its_own(pool: Workers) -> None:
    gate = threading.Barrier(5)
    works = [pool.start(lambda: gate.wait(WAIT), f"{i}") for i in range(4)]
    gate.wait(WAIT)
    ended(pool, *works)
    assert len({work.ident for work in works}) == 4


def test_what_failed_is_told_and_its_thread_goes_on(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    failed = pool.start(lambda: 1 // 0, "fails")
    ended(pool, failed)
    again = pool.start(lambda: None, "goes on")
    ended(pool, again)
    assert told == [ZeroDivisionError] and again.ident == failed.ident


def test_nothing_is_held_of_work_that_is_over(pool: Workers) -> None:
    class Large:
        def use(self) -> None: ...

    large = Large()
    held = weakref.ref(large)
    work = pool.start(large.use, "uses it")
    del large
    ended(pool, work)
    assert held() is None
