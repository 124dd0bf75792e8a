"""Several machines that are only reckoned with, and two that are processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks import expected, machines, sharded
from benchmarks.architectures import configuration
from benchmarks.links import ETHERNET, LINKS, RDMA, Link
from benchmarks.sharded import LLAMA_8B, QWEN_30B, Model, part
from benchmarks.simulated import DEVICES, Device

PERFECT = Link("perfect", 0.0, 1e30)
READS = Device("reads", 1e9, 1e30, 0.0, PERFECT)  # nothing takes time but bytes that are read


@pytest.mark.parametrize("model", [LLAMA_8B, QWEN_30B], ids=lambda model: model.name)
def test_two_machines_with_a_perfect_link_read_what_is_cut_in_half_the_time(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "HANDOVER", 0.0)
    one, two, four = (part(model, 16, machines) for machines in (1, 2, 4))
    head = 2 * model.config["hidden_size"] * model.config["vocab_size"]  # which all have
    seconds = [each.seconds(READS, 1, 1, 0) - head / READS.bandwidth for each in (one, two, four)]
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=0.01)
    assert seconds[0] == pytest.approx(4 * seconds[2], rel=0.02)
    assert [each.kv_bytes for each in (one, two, four)] == [one.kv_bytes // n for n in (1, 2, 4)]


@pytest.mark.parametrize("model", [LLAMA_8B, QWEN_30B], ids=lambda model: model.name)
def test_each_layer_waits_for_two_sums_of_a_places_width(model: Model) -> None:
    layers = model.config["num_hidden_layers"]
    made = part(model, 4, 2)
    *sums, drawn = made.sums
    assert sums == [2 * model.config["hidden_size"]] * 2 * layers
    assert part(model, 4, 1).sums == ()
    slow = replace(READS, link=Link("slow", 1.0, 1e30))
    assert made.waiting(slow, 1) == pytest.approx((2 * layers + 1) * (1 + sharded.HANDOVER))
    narrow = replace(READS, link=Link("narrow", 0.0, 1.0))
    assert made.waiting(narrow, 7) - made.waiting(narrow, 0) == 7 * (sum(sums) + drawn)


def test_a_part_of_a_sum_goes_round_a_ring_twice_and_all_of_it_over_a_mesh_once() -> None:
    ring, mesh = Link("ring", 1.0, 10.0), Link("mesh", 1.0, 10.0, mesh=True)
    assert [ring.sum(120, machines) for machines in (1, 2, 3, 4)] == [0, 13, 18, 21]
    assert [mesh.sum(120, machines) for machines in (1, 2, 3, 4)] == [0, 13, 13, 13]


def test_a_token_reads_the_experts_that_it_chooses_and_many_tokens_read_all() -> None:
    made = part(QWEN_30B, 4, 1)
    assert made.read(1) == pytest.approx(made.dense + made.experts * 8 / 128)
    assert made.read(2_048) == pytest.approx(made.nbytes, rel=0.02)
    assert made.weights == pytest.approx(3.0e9, rel=0.02)


def test_a_draft_model_is_faster_whole_than_cut_over_any_link() -> None:
    for link in LINKS:
        for count in (2, 4):
            whole, cut = expected.draft_passes(expected.M3_ULTRA, link, count)
            assert whole < cut


def test_a_model_is_held_by_as_many_machines_as_it_needs() -> None:
    mac = expected.M4_MAX
    held = [expected.Cluster(mac, n, RDMA).holds(sharded.QWEN_235B, 4) for n in (1, 2, 4)]
    assert held == [False, True, True]


@pytest.mark.parametrize("published", expected.PUBLISHED, ids=str)
def test_what_others_have_measured_is_reckoned_to_within_a_seventh(
    published: expected.Published,
) -> None:
    assert published.expected() == pytest.approx(published.found, rel=0.15)


def test_a_large_model_gains_from_a_fast_link_and_loses_by_a_slow_one() -> None:
    alone, fast, slow = (
        expected.Cluster(expected.Mac(DEVICES[1], 128e9), machines, link).tokens(
            sharded.LLAMA_70B, 4, 1
        )
        for machines, link in ((1, None), (2, RDMA), (2, ETHERNET))
    )
    assert slow < alone < fast


@pytest.mark.parametrize("shape", [machines.WHOLE, machines.DEEP], ids=["whole", "deep"])
def test_what_is_measured_alone_is_what_a_rank_has(shape: dict[str, Any]) -> None:
    whole, alone = (
        Model("", "llama", configuration("llama", **each)) for each in (shape, machines.cut(shape))
    )
    rank, process = part(whole, 16, machines.RANKS), part(alone, 16, 1)
    assert rank.dense == process.dense and rank.kv_bytes == process.kv_bytes
    assert rank.launches == process.launches
