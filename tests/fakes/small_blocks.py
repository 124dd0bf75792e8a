"""Blocks of a few tokens, so that short sequences have several."""

from __future__ import annotations

import pytest

from mlxgen.engine.prefix import blocks, store


def use_blocks(patch: pytest.MonkeyPatch, count: int) -> None:
    """Let a block have so many tokens; only while nothing is kept."""
    for module in (blocks, store):
        patch.setattr(module, "BLOCK", count)
