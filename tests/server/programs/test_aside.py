"""Calls in a thread aside, for a limited time."""

from __future__ import annotations

import threading

import pytest

from mlxgen.errors import HookError
from mlxgen.server.programs import aside
from mlxgen.server.programs.aside import Aside

WAIT = 30.0


def test_results_and_errors_come_back_from_another_thread() -> None:
    calls = Aside(WAIT)
    assert calls.call("it", threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        calls.call("it", lambda: 1 // 0)
    assert calls.call("it", lambda: 7) == 7


def test_a_call_that_takes_too_long_is_left_behind_until_it_returns() -> None:
    calls = Aside(0.02)
    gate = threading.Event()
    with pytest.raises(HookError, match="it took more than"):
        calls.call("it", gate.wait)
    calls.seconds = WAIT
    assert calls.call("it", lambda: 7) == 7, "others are called in another thread"
    (left,) = calls._stuck
    gate.set()
    assert left.wait(WAIT)


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
        assert helper.wait(WAIT)
    calls.seconds = WAIT
    assert calls.call("it", lambda: 7) == 7
