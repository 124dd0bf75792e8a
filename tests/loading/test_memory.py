"""How the memory of a device is shared."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxgen
from mlxgen.generate import main
from mlxgen.loading.memory import MemoryPlan
from mlxgen.server.served_model import boot
from mlxgen.server.settings import read_settings

GB = 10**9
LEAST = 1 << 26


def test_a_plan_shares_what_the_device_has() -> None:
    plan = MemoryPlan.of(16 * GB, 4 * GB, piece=lambda caches: caches // 10)
    assert (plan.reserve, plan.caches) == (GB, 5_500_000_000)  # half of the rest
    assert (plan.activations, plan.to_wire) == (550_000_000, 11_050_000_000)
    assert plan.with_caches(10_800_000_000).activations == 200_000_000  # what is left
    assert str(plan) == (
        "4.00 GB for weights, 5.50 GB for KV caches and prefixes, 0.55 GB for activations, 1.00 GB "
        "in reserve, of 16.00 GB; nothing wired"
    )


@given(
    device=st.integers(LEAST, 1 << 40),
    weights=st.integers(0, 1 << 40),
    piece=st.integers(0, 1 << 40),
    caches=st.none() | st.integers(1, 1 << 40),
    sharers=st.integers(1, 5),
)
def test_no_plan_is_larger_than_the_device_unless_the_caller_or_the_weights_are(
    device: int, weights: int, piece: int, caches: int | None, sharers: int
) -> None:
    plan = MemoryPlan.of(device, weights, caches=caches, piece=lambda _: piece, sharers=sharers)
    alone = MemoryPlan.of(device, weights, caches=caches, piece=lambda _: piece)
    assert plan.to_wire <= device
    assert plan.left >= plan.caches + plan.activations
    assert LEAST <= plan.activations <= max(LEAST, piece)
    assert plan.caches <= max(LEAST, alone.caches)
    assert alone.caches == (alone.caches if caches is None else caches)
    others, asked = weights + plan.reserve, caches or 0
    if others + 2 * sharers * LEAST + (0 if sharers > 1 else asked) <= device:
        assert others + sharers * (plan.caches + plan.activations) <= device
    if others + 2 * sharers * LEAST + asked <= device:
        assert caches is None or plan.caches == caches // sharers
    assert plan.with_caches(None) == plan
    assert plan.with_caches(5).caches == 5
    assert (" models)" in str(plan)) == (sharers > 1)


# ---- wired memory


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is wired, on a device with Metal that recommends 10 GB."""
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 10 * GB})
    return limits


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),  # what the plan needs
        ({"cache_bytes": 50 * GB}, 10 * GB),
        ({"wired_limit": "recommended"}, 10 * GB),
        ({"wired_limit": 5}, 5),
    ],
)
def test_what_the_plan_needs_is_wired_as_far_as_the_device_recommends_it(
    options: dict[str, Any], expected: int | None, wired: list[int]
) -> None:
    lm = mlxgen.load(**options)
    assert wired == [lm.memory.wired] == [lm.memory.to_wire if expected is None else expected]
    assert f"up to {wired[0] / 1e9:.2f} GB wired" in str(lm.memory)


def test_a_model_that_shares_the_device_plans_and_wires_for_all(wired: list[int]) -> None:
    lm = mlxgen.load(cache_bytes=2 * GB)
    weights = lm.runtime.weight_bytes + GB
    lm.runtime.share_memory(weights, 2)
    assert (lm.memory.weights, lm.memory.caches, lm.memory.sharers) == (weights, GB, 2)
    assert wired[1:] == [lm.memory.wired] == [lm.memory.to_wire]
    assert wired[1] > weights + 2 * GB
    draft = mlxgen.load(draft=lm, wired_limit=None)
    assert draft.runtime.weight_bytes == 2 * lm.runtime.weight_bytes
    draft.runtime.share_memory(draft.runtime.weight_bytes, 1)
    assert draft.memory.wired == 0


def test_the_commands_wire_unless_they_are_told_not_to(
    wired: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["--raw", "--verbose", "--max-tokens", "1", "Once"]
    assert main(ask) == 0
    assert f"up to {wired[0] / 1e9:.2f} GB wired" in capsys.readouterr().err
    assert main(["--no-wired", *ask]) == 0
    assert "nothing wired" in capsys.readouterr().err
    scheduler, engine = boot(read_settings(["--cache-bytes", "1GB"], {}))
    stats = scheduler.stats()
    scheduler.close()
    assert (stats.wired_bytes, stats.byte_limit) == (engine.lm.memory.wired, GB)
    assert len(wired) == 2 and GB < wired[1] < 2 * GB + engine.lm.memory.weights


def test_what_cannot_be_wired_is_refused(wired: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert mlxgen.load(wired_limit=None).memory.wired == 0
    with pytest.raises(mlxgen.OptionError, match="0 to 10000000000 bytes"):
        mlxgen.load(wired_limit=20 * GB)
    monkeypatch.setattr(mx, "device_info", dict)
    assert mlxgen.load().memory.wired == 0
    with pytest.raises(mlxgen.OptionError, match="no Metal"):
        mlxgen.load(wired_limit=1)
    assert wired == []
