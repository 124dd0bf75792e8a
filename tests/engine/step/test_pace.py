"""What a step takes, what a token of a prompt takes beside it, and the chunk that follows."""

from __future__ import annotations

import pytest

from mlxgen.engine.kv.held import Here
from mlxgen.engine.kv.layers import PREFILL_STEP
from mlxgen.engine.step.pace import FIRST, GAP, LEAST, UNNOTICED, Clock, Pace

STEP, TOKEN = 0.03, 0.002  # seconds


class Device(Here):
    """One whose clock a test moves; ``queues``: what is submitted runs later."""

    def __init__(self, queues: bool) -> None:
        self.time, self._queues = 0.0, queues

    @property
    def queues(self) -> bool:
        return self._queues

    def now(self) -> float:
        return self.time


def line(queues: bool = False) -> tuple[Clock, Device]:
    device = Device(queues)
    return Clock(Pace(), device), device


def step(clock: Clock, device: Device, seconds: float, prompts: int | None = None) -> float:
    device.time += seconds
    waited = clock.submitted if prompts is None else (0, prompts)
    return clock.read(1, waited, plain=True)


def run(clock: Clock, tokens: int) -> None:
    """A piece of a prompt is submitted."""
    clock.submitted = clock.submitted[0] + 1, clock.submitted[1] + tokens


def taught(gap_steps: int = 60) -> Pace:
    """After a prompt beside a row, on a device where every token takes as long."""
    clock, device = line()
    for _ in range(5):
        step(clock, device, STEP)
    for _ in range(gap_steps):
        chunk = clock.pace.chunk(1)
        run(clock, chunk)
        step(clock, device, STEP + chunk * TOKEN)
    return clock.pace


def test_a_chunk_keeps_the_gap_that_was_asked_for_or_a_few_steps() -> None:
    pace = taught()
    assert pace.step(1) == pytest.approx(STEP) and pace.token == pytest.approx(TOKEN, rel=0.05)
    gap = STEP + pace.chunk(1) * TOKEN
    assert 0.8 * GAP * STEP < gap <= GAP * STEP
    assert 0.8 < STEP + pace.chunk(1, 1.0) * TOKEN <= 1.0
    assert pace.chunk(1, STEP / 2) == LEAST  # a prompt gets on in any case
    assert pace.chunk(1, 1e6) == PREFILL_STEP


def test_a_gap_that_nobody_notices_is_taken_where_steps_are_short() -> None:
    pace = Pace()
    for _ in range(9):
        pace.saw_step(1, 0.001)
        pace.saw_prompts(1, 32, 0.001 + 32 * 0.0001)
    assert 0.8 * UNNOTICED < 0.001 + pace.chunk(1) * 0.0001 < UNNOTICED


def test_one_long_step_moves_the_mean_little_and_a_short_one_at_once() -> None:
    pace = Pace()
    assert pace.step(1) == pace.token == 0.0 and pace.chunk(1) == FIRST
    pace.saw_step(1, 0.01)
    assert pace.step(30) == 0.01  # unknown numbers of rows are like the nearest
    pace.saw_step(1, 9.0)
    assert 0.01 < pace.step(1) < 0.02
    pace.saw_step(1, 0.001)
    assert pace.step(1) == 0.001


def test_time_in_which_more_than_a_step_happened_tells_nothing() -> None:
    clock, device = line()
    assert step(clock, device, 5.0) == 0.0  # since nobody knows when
    assert step(clock, device, STEP) == pytest.approx(STEP)
    clock.skip()
    assert step(clock, device, 7.0) == 0.0
    device.time += 3.0
    assert clock.read(2, clock.submitted, plain=True) == 0.0  # another row has come
    assert clock.pace.step(1) == pytest.approx(STEP)


@pytest.mark.parametrize("queues", [False, True])
def test_a_chunk_counts_in_the_step_that_waited_for_it(queues: bool) -> None:
    clock, device = line(queues)
    for _ in range(3):
        step(clock, device, STEP)
    run(clock, 10)
    if queues:  # the draw that is read was submitted before the chunk
        assert step(clock, device, STEP, prompts=0) == pytest.approx(STEP)
    assert step(clock, device, STEP + 10 * TOKEN, prompts=10) == 0.0
    assert clock.pace.step(1) == pytest.approx(STEP)
    assert clock.pace.token == pytest.approx(TOKEN)
