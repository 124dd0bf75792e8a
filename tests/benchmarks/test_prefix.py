"""The benchmark of prefixes on disk, on a model and prompts that are small."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import prefix


@pytest.mark.slow
def test_what_is_restored_is_compared_with_what_is_run(tmp_path: Path) -> None:
    found = prefix.on_disk("tiny", tmp_path, 2, 600)
    assert found.nbytes == 600 * 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, floats
    assert found.beside.low > 0 and found.first.ours.median > 0
