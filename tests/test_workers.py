"""Threads that live on: work goes to those that have nothing to do."""

from __future__ import annotations

import threading
import weakref

import pytest

from mlxgen.workers import Work, Workers

WAIT = 30.0


def ended(pool: Workers, *works: Work) -> None:
    """Wait until works are over and their threads are free."""
    for work in works:
        assert work.wait(WAIT) and work.is_over
    until = threading.Event()
    for _ in range(3000):
        if pool._idle:
            return
        until.wait(0.01)


def test_one_thread_does_one_thing_after_the_other_and_several_what_runs_at_a_time() -> None:
    pool, names = Workers(), list[str]()
    alone = [pool.start(lambda: None, "before")]
    for name in ("first", "second"):
        ended(pool, alone[-1])
        alone.append(pool.start(lambda: names.append(threading.current_thread().name), name))
    ended(pool, *alone)
    assert names == ["first", "second"] and len({work.ident for work in alone}) == 1
    gate = threading.Barrier(5)
    works = [pool.start(lambda: gate.wait(WAIT), f"{i}") for i in range(4)]
    gate.wait(WAIT)
    ended(pool, *works)
    assert len({work.ident for work in works}) == 4


def test_what_failed_is_told_and_its_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, told = Workers(), list[type[BaseException]]()
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    failed = pool.start(lambda: 1 // 0, "fails")
    ended(pool, failed)
    again = pool.start(lambda: None, "goes on")
    ended(pool, again)
    assert told == [ZeroDivisionError] and again.ident == failed.ident


def test_nothing_is_held_of_work_that_is_over() -> None:
    large = threading.Event()
    pool, held = Workers(), weakref.ref(large)
    work = pool.start(large.set, "uses it")
    del large
    ended(pool, work)
    assert held() is None
