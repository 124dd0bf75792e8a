"""A device that is only reckoned with: it gives what any other gives, and keeps its own time."""

from __future__ import annotations

from itertools import product

import mlx.core as mx
import pytest
from benchmarks import simulate
from benchmarks.simulate import (
    DEVICES,
    SHAPES,
    Asked,
    Device,
    Shape,
    SimulatedModel,
    Tiny,
    Workload,
)

from mlxgen import LanguageModel, Limits
from mlxgen.engine.kv.kv import KV


def test_the_text_is_that_of_the_model_itself() -> None:
    lm = SimulatedModel(DEVICES[0], SHAPES[0])
    plain = LanguageModel(Tiny(), lm.tokenizer)
    options = {"max_tokens": 40, "seed": 3, "ignore_eos": True}
    expected = plain.generate([5] * 100, **options).text  # type: ignore[arg-type]
    assert lm.generate([5] * 100, **options).text == expected  # type: ignore[arg-type]
    texts = ["", ""]
    for index, chunk in lm.batch([[5] * 100, [6] * 9], **options):  # type: ignore[arg-type]
        texts[index] += chunk.text
    assert texts[0] == expected


def test_who_reads_waits_for_what_was_given_before_and_for_nothing_else() -> None:
    device, shape = DEVICES[1], SHAPES[0]
    lm = SimulatedModel(device, shape)
    runner, line = lm.runtime.runner(), lm.timeline
    kv = KV(runner)
    kv.run([1, 2, 3])
    first, second = mx.array([1]), mx.array([2])
    runner.submit([first])
    kv.run([4] * 500)
    runner.submit([second, None])
    host = runner.now()
    assert host < shape.seconds(device, 1, 3, 3) < shape.seconds(device, 1, 500, 503)
    assert runner.read(first) == [1]
    begun = runner.now()
    assert begun == pytest.approx(shape.seconds(device, 1, 3, 3), rel=0.2)
    assert runner.read(second) == [2] and runner.now() == pytest.approx(line.busy, rel=1e-3)
    assert runner.now() - begun == pytest.approx(shape.seconds(device, 1, 500, 503), rel=0.05)


def test_a_few_tokens_cost_as_much_as_one_and_many_cost_by_their_number() -> None:
    for device, shape in product(DEVICES, SHAPES):
        cost = [shape.seconds(device, 1, count, 4096) for count in (1, 4, 1024, 2048)]
        assert cost[1] == pytest.approx(cost[0], rel=0.05)
        assert cost[3] == pytest.approx(2 * cost[2], rel=0.2)


DEFAULT = 0.05  # seconds that a gap may always take: nobody notices them
BESIDE, LONG_BESIDE = 1.9, 4.7
"""Times what a prompt takes alone that it may take beside others, whose gaps come first: in a gap
the weights are read twice, for its step and for its chunk."""


EVERYWHERE = pytest.mark.parametrize(
    ("device", "shape"), list(product(DEVICES, SHAPES)), ids=lambda each: str(each.name)
)


@EVERYWHERE
def test_a_prompt_beside_a_row_takes_little_more_and_the_gap_stays_small(
    device: Device, shape: Shape
) -> None:
    step = shape.seconds(device, 1, 1, 128)
    found = simulate.ours(device, shape, simulate.ONE)
    assert found.first[0] <= BESIDE * simulate.alone(device, shape, 4096)
    assert max(found.gaps) <= max(DEFAULT, 4 * step)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES[:3], ids=lambda device: device.name)
def test_the_gap_stays_small_to_the_end_of_a_prompt_whose_pieces_take_longer_and_longer(
    device: Device,
) -> None:
    shape = SHAPES[0]
    first, last = (shape.seconds(device, 1, 100, held) for held in (100, 32_768))
    assert last > 2 * first
    found = simulate.ours(device, shape, simulate.EIGHT)
    assert max(found.gaps) <= max(DEFAULT, 4 * shape.seconds(device, 8, 1, 1024))
    assert found.first[0] <= LONG_BESIDE * simulate.alone(device, shape, 32_768)


@EVERYWHERE
@pytest.mark.parametrize("gap", [0.1, 0.3])
def test_the_longest_gap_is_what_was_asked_for(device: Device, shape: Shape, gap: float) -> None:
    smallest = shape.seconds(device, 1, 1, 4096)
    for rows in (1, 8):
        load = Workload("", [Asked(64)] * rows, [Asked(4096, 8)])
        found = simulate.ours(device, shape, load, Limits(longest_gap=gap))
        # The last piece of the prompt, its first draw and a step come together
        assert max(found.gaps) <= max(gap, 3.2 * smallest)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize(
    "shape", [SHAPES[0], pytest.param(SHAPES[2], marks=pytest.mark.slow)], ids=["4B", "8B"]
)
def test_rows_with_schemas_generate_as_much_as_rows_without(device: Device, shape: Shape) -> None:
    steered, free = (
        simulate.ours(device, shape, load).rate for load in (simulate.FORCED, simulate.FREE)
    )
    assert steered >= 0.97 * free  # what filters cost the host is not simulated


def test_where_nothing_else_runs_a_prompt_takes_what_its_passes_take() -> None:
    device, shape = DEVICES[0], SHAPES[1]
    parts = [shape.seconds(device, 1, 2048, end) for end in (2048, 4096)]
    assert simulate.alone(device, shape, 4096) == pytest.approx(sum(parts), rel=0.05)
