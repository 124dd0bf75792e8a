"""Each stage of a request has a limit of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxgen.server.settings import Settings
from mlxgen.server.time_limits import TimeLimits


class Clock:
    """Calls what is due as time goes on."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[_Timer] = []

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> _Timer:
        self._timers.append(_Timer(self.now + seconds, lambda: call(*arguments)))
        return self._timers[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer.at <= self.now]
        self._timers = [timer for timer in self._timers if timer.at > self.now]
        for timer in due:
            timer.call()


class _Timer:
    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call = call

    def cancel(self) -> None:
        self.call = lambda: None


RUNS, RAN = False, True


@pytest.mark.parametrize(
    ("heard", "code", "status"),
    [
        ([], "queue_timeout", 503),
        ([RUNS, RAN], "timeout", 504),
        ([RAN], "timeout", 504),
        ([RAN, RUNS], "timeout", 504),  # another prompt of the request
    ],
)
def test_a_stage_has_all_of_its_time_whatever_those_before_took(
    heard: list[bool], code: str, status: int
) -> None:
    clock, told = Clock(), list[Any]()
    settings = Settings(queue_timeout=10, request_timeout=10)
    limits = TimeLimits(settings, told.append, clock.call_later)
    for all_run in heard:
        clock.advance(9)
        limits.heard(all_run=all_run)
    if heard != [RAN, RUNS]:
        clock.advance(9.9)
    assert not told
    clock.advance(1)
    assert [(error.code, error.status) for error in told] == [(code, status)]


def test_no_limit_is_no_limit_and_neither_is_an_exchange_that_is_over() -> None:
    clock, told = Clock(), list[Any]()
    limits = TimeLimits(
        Settings(queue_timeout=0, request_timeout=5),
        told.append,
        clock.call_later,
    )
    clock.advance(1e6)
    limits.heard(all_run=False)
    clock.advance(1e6)
    limits.heard(all_run=True)
    limits.close()
    clock.advance(1e6)
    assert not told


def test_prompts_and_answers_take_as_long_as_they_take_by_default() -> None:
    clock, told = Clock(), list[Any]()
    limits = TimeLimits(Settings(), told.append, clock.call_later)
    for all_run in (RUNS, RAN):
        limits.heard(all_run=all_run)
        clock.advance(1e6)
    assert not told
