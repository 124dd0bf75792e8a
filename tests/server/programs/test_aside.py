"""Calls in a thread aside, for a limited time."""

from __future__ import annotations

import threading

import pytest

from mlxgen.errors import HookError
from mlxgen.server.programs import aside
from mlxgen.server.programs.aside import Aside

WAIT = 30.0


def test_results_and_errors_come_back_from_one_thread() -> None:
    calls = Aside(WAIT)
    first = calls.call("it", threading.current_thread)
    assert first is calls.call("it", threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        calls.call("it", lambda: 1 // 0)
    assert calls.call("it", lambda: 7) == 7


def test_a_call_that_takes_too_long_is_left_behind_and_its_thread_ends_when_it_returns() -> None:
    calls = Aside(0.02)
    gate = threading.Event()
    threads = []

    def hang() -> None:
        threads.append(threading.current_thread())
        gate.wait()

    with pytest.raises(HookError, match="it took more than"):
        calls.call("it", hang)
    calls.seconds = WAIT
    assert calls.call("it", lambda: 7) == 7, "others are called in another thread"
    gate.set()
    threads[0].join(WAIT)
    assert not threads[0].is_alive()


def test_no_more_threads_than_a_few_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "MOST_STUCK", 2)
    calls = Aside(0.02)
    gate = threading.Event()
    for _ in range(2):
        with pytest.raises(HookError, match="took more than"):
            calls.call("it", gate.wait)
    with pytest.raises(HookError, match="2 calls of hooks have never returned"):
        calls.call("it", lambda: 7)
    gate.set()
    for helper in calls._stuck:
        helper.thread.join(WAIT)
    calls.seconds = WAIT
    assert calls.call("it", lambda: 7) == 7
