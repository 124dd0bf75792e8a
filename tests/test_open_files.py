"""The limit of open files rises as far as the system allows."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from mlxgen.open_files import FILES, limit_kept, raise_limit


class System:
    """A system with limits, which refuses what is over ``real``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, real: int) -> None:
        self.limits = soft, hard
        self._real = real
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.limits)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, kind: int, limits: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        if limits[0] > self._real or limits[1] != self.limits[1]:
            raise ValueError("current limit exceeds maximum limit")
        self.limits = limits


NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "real", "allowed"),
    [
        (256, 10_000, 10_000, FILES),
        (256, 1000, 1000, 1000),
        (256, NONE, 10_240, FILES),  # macOS
        (256, NONE, 3000, 2048),  # macOS with a lower limit than it says
        (256, NONE, 256, 256),
        (9000, NONE, 10_240, 9000),
        (NONE, NONE, 0, NONE),
    ],
)
def test_the_limit_rises_as_far_as_the_system_really_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, real: int, allowed: int
) -> None:
    system = System(monkeypatch, soft, hard, real)
    found = raise_limit(FILES)
    assert found == allowed or (allowed == NONE and found >= FILES)
    assert system.limits == (allowed, hard)


def test_a_library_cannot_lower_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, 9000, NONE, 10_240)
    for before, after in ((9000, 9000), (256, 2048)):
        system.limits = before, NONE
        with limit_kept():
            resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 4096))
        assert system.limits == (after, NONE)


GENERATE = "from mlxgen.generate import main; main(['--regex', '(', 'a'])"
SERVER = """
import mlxgen.server.process as process
from mlxgen.server.settings import Settings
def fail(*_): raise OSError
process.listen = fail
process.serve(Settings())"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "least"),
    [(GENERATE, FILES), (SERVER, FILES), ("import mlxgen; mlxgen.load()", 2048)],
)
def test_the_programs_raise_the_limit_of_macos(program: str, least: int) -> None:
    start = "import resource; kind = resource.RLIMIT_NOFILE"
    start += "; resource.setrlimit(kind, (256, resource.getrlimit(kind)[1]))"
    whole = "\n".join([start, program, "print(resource.getrlimit(kind)[0])"])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ran = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True)
    assert int(ran.stdout.split()[-1]) >= (least if hard == NONE else min(least, hard)), ran.stderr
