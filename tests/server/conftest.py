"""One server for most of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from .running import Running, running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The demo model with the default settings, and a small batch."""
    with running("--max-batch", "8") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[OpenAI]:
    """The official client of that server."""
    with server.client() as client:
        yield client
