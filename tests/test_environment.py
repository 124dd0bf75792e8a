"""Tests that compare numbers run with the arithmetic that they were written for."""

from __future__ import annotations

import os

import mlx.core as mx
import numpy as np


def test_float32_products_keep_their_bits() -> None:
    assert os.environ["MLX_ENABLE_TF32"] == "0"
    one = mx.full((64, 64), 1 + 2**-12, mx.float32)  # TF32 would round it to 1
    assert np.array_equal(np.array(one @ mx.eye(64)), np.array(one))
