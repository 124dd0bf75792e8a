"""The official client of the server that most of the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .running import Running

if TYPE_CHECKING:
    from openai import OpenAI


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[OpenAI]:
    """The official client of that server."""
    with server.client() as client:
        yield client
