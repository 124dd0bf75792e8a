"""Sampling tests run uncompiled, apart from those that say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True)
def uncompiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiling takes a second for each new expression on a CPU; ``compiled`` tests do it."""
    if "compiled" in request.fixturenames:
        yield
        return
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def compiled() -> None:
    """Ask for this to run a test with compilation, as everything outside tests is."""
