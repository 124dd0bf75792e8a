"""What holds for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from .server.running import Running

# How long a case takes is the machine's affair
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # numbers are compared, on an M5 and on CUDA, too

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The demo model with the default settings, and a small batch."""
    from .server.running import running

    with running("--max-batch", "8") as server:
        yield server
