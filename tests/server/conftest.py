"""The official client of the server that most of the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from .running import Running


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[OpenAI]:
    """The official client of that server."""
    with server.client() as client:
        yield client
