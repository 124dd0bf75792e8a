"""The share of the memory's bandwidth, on a model small enough for any device."""

from __future__ import annotations

import mlx.core as mx
import pytest
from benchmarks import bandwidth

SMALL = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 600, "num_attention_heads": 2}
KV = 2 * 64 * 2 * 2  # bytes of a place: keys and values of two heads in bfloat16
TABLE = 600 * 128


@pytest.mark.parametrize(("bits", "of_number"), [(None, 2.0), (4, 0.5 + 2 * 2 / 64)])
def test_a_token_reads_all_weights_but_those_of_other_tokens(
    bits: int | None, of_number: float
) -> None:
    lm = bandwidth.large_llama(bits, num_hidden_layers=2, num_key_value_heads=2, **SMALL)
    layer = 4 * 128 * 128 + 3 * 128 * 256
    norms = 5 * 128 * 2
    expected = (2 * layer + TABLE) * of_number + norms
    assert bandwidth.bytes_read(lm, 0) == expected
    assert bandwidth.bytes_read(lm, 100) == expected + 100 * 2 * KV


def test_a_share_is_of_what_a_copy_reaches() -> None:
    lm = bandwidth.large_llama(4, num_hidden_layers=1, num_key_value_heads=2, **SMALL)
    found = bandwidth.share(lm, 8, 2, copied=1 << 20)
    assert found.percent == pytest.approx(100 * found.reached / found.given)
    assert found.reached > 0 and found.given > 0
    assert " GB a second" in str(found)


def test_a_model_too_large_for_the_device_gets_fewer_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = bandwidth.large_llama(None, num_hidden_layers=6, num_key_value_heads=2, **SMALL)
    rest = 2 * TABLE * 2 + 256
    layer = (whole.footprint.weights - rest) // 6
    room = mx.get_active_memory() + rest + 3 * layer + layer // 2
    monkeypatch.setattr(bandwidth, "memory_limit", lambda: (2 * room, ""))
    fewer = bandwidth.large_llama(None, num_hidden_layers=6, num_key_value_heads=2, **SMALL)
    assert fewer.name == "3 layers"
