"""What passes take is learned from when draws are read, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.engine.kv.here import Here
from mlxgen.engine.step.cost import Meter, PassCost


def gpu(tokens: int) -> float:
    return 0.001 + max(0.005, 0.0005 * tokens)


def cpu(tokens: int) -> float:
    return 0.0005 + 0.001 * tokens


sizes = st.integers(1, 4096)
passes = st.lists(st.tuples(sizes, st.floats(1e-5, 10)), min_size=1, max_size=30)


@given(passes, sizes, sizes)
def test_a_larger_pass_takes_at_least_as_long_and_no_more_than_its_size_says(
    seen: list[tuple[int, float]], one: int, other: int
) -> None:
    cost = PassCost()
    for tokens, seconds in seen:
        cost.saw(tokens, seconds)
    small, large = sorted([one, other])
    assert cost.of(small) <= cost.of(large) * (1 + 1e-6)
    assert cost.of(large) <= cost.of(small) * large / small * (1 + 1e-6)


@given(passes, st.floats(1e-5, 10), sizes)
def test_what_fits_in_a_time_takes_no_longer_and_is_never_nothing(
    seen: list[tuple[int, float]], seconds: float, tokens: int
) -> None:
    cost = PassCost()
    for count, took in seen:
        cost.saw(count, took)
    found = cost.most(seconds, tokens)
    assert 1 <= found <= tokens
    assert cost.of(found) <= max(seconds, 1.11 * cost._of(1, most=True)) * (1 + 1e-9)
    assert cost.most(math.inf, tokens) == tokens


@pytest.mark.parametrize("device", [gpu, cpu])
def test_sizes_are_come_to_by_steps_until_they_fill_the_time(device: object) -> None:
    assert callable(device)
    cost = PassCost()
    cost.saw(1, device(1))
    tried = [cost.most(0.1, 4096)]
    for _ in range(40):
        cost.saw(tried[-1], device(tried[-1]))
        assert device(tried[-1]) <= 0.1 * 1.05
        tried.append(cost.most(0.1, 4096))
    best = max(n for n in range(1, 4096) if device(n) <= 0.1)
    assert tried[-1] >= 0.7 * best


def test_what_is_no_longer_true_is_unlearned() -> None:
    cost = PassCost()
    for size in (1, 8, 64, 512):
        cost.saw(size, 0.1 + size)
    for _ in range(30):
        cost.saw(64, 6.4)
    assert cost.of(64) == pytest.approx(6.4, rel=0.05)
    assert cost.of(512) <= 52 and cost.of(8) <= 6.5


@pytest.mark.parametrize("device", [gpu, cpu])
def test_pieces_of_a_prompt_take_longer_by_what_is_before_them_and_fresh_ones_do_not(
    device: Callable[[int], float],
) -> None:
    cost, slope = PassCost(), 1 / 10_000
    for size in (1, 4, 16, 64, 256):
        cost.saw(size, device(size))
    fresh = [cost.of(size) for size in (1, 16, 200)]
    held = 0
    while held < 40_000:
        piece = cost.most(0.1, 4096, held)
        took = device(piece) * (1 + slope * held)
        assert held < 4_096 or 0.05 < took <= 0.101
        cost.saw(piece, took, after=held)
        held += piece
    assert cost.of(200, 20_000) == pytest.approx(3 * device(200), rel=0.1)
    assert [cost.of(size) for size in (1, 16, 200)] == pytest.approx(fresh, rel=0.2)
    assert cost.most(0.1, 4096) > 2 * cost.most(0.1, 4096, 20_000)


def test_where_no_short_prompt_ever_runs_pieces_grow_all_the_same() -> None:
    cost = PassCost()
    cost.saw(1, gpu(1))
    tried = 1
    for held in range(20_000, 20_040):
        tried = cost.most(0.1, 4096, held)
        cost.saw(tried, 3 * gpu(tried), after=held)
    assert 0.05 < 3 * gpu(tried) <= 0.101


def test_nothing_is_known_at_first_but_that_passes_cost_something_themselves() -> None:
    cost = PassCost()
    assert not cost.is_known
    assert cost.of(8) + cost.of(8) > cost.of(16)
    assert cost.most(0.01, 4096) <= 16


class Line(Here):
    """A device that works through passes in their order."""

    @property
    def queues(self) -> bool:
        return True

    def __init__(self, host: float = 0.0, device: Callable[[int], float] = gpu) -> None:
        self.meter = Meter(PassCost(), self)
        self.time = self.busy = 0.0
        self.host = host  # seconds to submit a pass
        self.device = device

    def now(self) -> float:
        return self.time

    def run(self, tokens: int, *, after: int | None = None) -> None:
        self.meter.run(tokens, after=after)
        self.time += self.host
        self.busy = max(self.busy, self.time) + self.device(tokens)

    def draw(self) -> tuple[int, float]:
        return self.meter.ran, self.busy

    def wait_for(self, draw: tuple[int, float]) -> None:
        after, until = draw
        self.time = max(self.time, until)
        self.meter.read(after)
        self.meter.leave()

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.meter.enter()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_piece_that_comes_after_the_look_ahead_counts_where_it_is_waited_for(
    ahead: bool,
) -> None:
    line = Line()
    line.wait(1)
    line.run(1)
    draw = line.draw()
    for size in [0, 0, 0, 128, 0, 32, 512, 0, 0, 512, 128]:
        line.run(1)
        following = line.draw() if ahead else None
        line.wait_for(draw)
        if size:
            line.run(size, after=0)
        draw = following or line.draw()
    cost = line.meter.cost
    for size in (1, 32, 128, 512):
        assert cost.of(size) == pytest.approx(gpu(size), rel=0.05)
    assert line.meter.plain == pytest.approx(gpu(1), rel=0.05)


def test_submitting_a_pass_is_a_part_of_what_it_takes() -> None:
    """A small model on a fast device: what comes back from the last pass of a row came soon."""
    line = Line(host=0.002, device=lambda _: 0.0005)
    for _ in range(4):  # requests one after the other
        line.run(7, after=0)
        line.run(7, after=0)
        line.run(1)
        draw = line.draw()
        for _ in range(5):
            line.run(1)
            following = line.draw()
            line.wait_for(draw)
            draw = following
        line.wait_for(draw)
    cost = line.meter.cost
    for size in (1, 7):
        assert 0.002 <= cost.of(size) <= 0.0032


def test_nothing_is_learned_while_the_device_does_something_else() -> None:
    line = Line()
    line.wait(1)
    line.run(1)
    line.wait_for(line.draw())
    line.wait(100)  # nobody asked for anything
    line.run(1)
    draw = line.draw()
    line.wait(100)  # or nobody looked
    line.wait_for(draw)
    line.wait(100)
    line.run(1)
    line.busy += 50
    line.meter.skip()
    line.wait_for(line.draw())
    assert line.meter.cost.of(1) == pytest.approx(gpu(1))
