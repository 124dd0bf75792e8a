"""The soak of the benchmarks, for a few seconds: answers stay right, also beside large requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks import soak
from benchmarks.kit import DRAFT
from benchmarks.servers import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mlxgen", ("--draft", DRAFT, "--cache-bytes", "32MiB")) as process:
        yield process


def test_mixed_requests_get_what_is_right_for_them(server: Server) -> None:
    found = soak.soak(server, 60, clients=6)
    assert found.unexpected == []
    assert [text for text in found.differing if " for seeded " not in text] == []
    assert found.requests == 60 and found.probes > 10
    assert len(found.memory) == 2 and found.growth > -50


@pytest.mark.parametrize("name", ["128 answers", "pieces of 900 kB"])
def test_small_requests_are_answered_beside_large_ones(server: Server, name: str) -> None:
    (asked,) = [asked for case, asked in soak.LARGE.items() if name in case]
    assert soak.held_up(server, *asked) > 0
