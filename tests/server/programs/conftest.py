"""A server with code of its operator's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mlxgen

from ..running import Running, running

HERE = "tests.server.programs.own_code"
PROGRAMS = (
    *(
        "quiz",
        "echoes",
        "takes_back",
        "wanders",
        "raises",
        "raises_late",
        "returns_no_json",
    ),
    *("endless", "bursts", "deadlock", "spends", "raises_at_once", "says_nothing"),
)
HOOKS = ("never", "restarts", "Counts", "looks")


def registering(kind: str, *names: str) -> list[str]:
    return [word for name in names for word in (f"--{kind}", f"{name}={HERE}:{name}")]


@pytest.fixture(scope="package")
def operator() -> Iterator[Running]:
    """A server with all that is well-formed in ``own_code``."""
    own = [
        *registering("program", *PROGRAMS),
        *registering("controller", "Spells", "Detours", "Ponders"),
        *registering("hook", *HOOKS),
        *registering("check", "no_paris", "short", "no_city"),
        *("--check", "fine=true"),
    ]
    with running(*own, "--max-batch", "8", "--max-queue", "12") as server:
        yield server


@pytest.fixture(scope="package")
def lm() -> mlxgen.LanguageModel:
    """The model of that server, in this process."""
    return mlxgen.load()
