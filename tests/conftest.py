"""What holds for every test."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pwd
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import settings

from .effort import ALL, left_out

if TYPE_CHECKING:
    from .server.running import Running

# How long a case takes is the machine's affair
settings.register_profile("untimed", deadline=None, max_examples=100 if ALL else 25)
settings.load_profile("untimed")

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="mlxgen-tests-")  # chats are kept there
os.environ.setdefault("MLX_ENABLE_TF32", "0")  # numbers are compared, on an M5 and on CUDA, too

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Where several processes try everything, each imports its share of the files before it
    collects all: what pytest makes of a file, the others then find made."""
    config, top = session.config, Path(__file__).parent
    place = getattr(config, "workerinput", None)
    if place is None or list(config.args) != config.getini("testpaths"):
        return
    files = sorted(top.rglob("test_*.py"))
    for path in files[int(place["workerid"].removeprefix("gw")) :: int(place["workercount"])]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it tells
            importlib.import_module(".".join(path.relative_to(top.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # all that was imported is not looked through again and again


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try only a part, unless all is to be tried or tests are named one by one."""
    if ALL or any("::" in argument for argument in config.args):
        return
    out = set(left_out(items, slow=bool(config.option.markexpr)))
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=list(out))


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The demo model with the default settings, and a small batch."""
    from .server.running import Running

    with Running("--max-batch", "8") as server:
        yield server


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows a home folder of this user, as in a container that was given another user."""

    def unknown(user: int) -> NoReturn:
        raise KeyError(user)

    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
