"""What the environment says about other ranks, and ranks that cannot meet."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxgen.errors import MachineError
from mlxgen.machines import group
from mlxgen.machines.group import Group, Launch

from ..tables import table
from .ranks import free_ports


@pytest.mark.parametrize("case", table("launches"), ids=lambda case: case["what"])
def test_the_environment_says_which_of_several_ranks_this_is(
    case: dict[str, Any], tmp_path: Path
) -> None:
    """Values that begin with ``@`` are files of these names."""
    for name, text in case.get("files", {}).items():
        (tmp_path / name).write_text(text)
    given = case["environment"].items()
    environment = {name: re.sub("^@", f"{tmp_path}/", value) for name, value in given}
    if "refused" in case:
        with pytest.raises(MachineError, match=f"^{case['refused']}.*mlx.launch"):
            Launch.of(environment)
        return
    found = Launch.of(environment)
    assert json.loads(json.dumps(found and astuple(found))) == case["launch"]


def test_asking_does_not_import_mlx() -> None:
    program = """
import sys
from mlxgen.machines.group import Group
assert Group.join() is None and not Group.launched() and not {"mlx", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def launched(monkeypatch: pytest.MonkeyPatch, folder: Path, *addresses: str) -> None:
    """Make this process rank 0 of those at the addresses."""
    hostfile = folder / "hosts.json"
    hostfile.write_text(json.dumps([[address] for address in addresses]))
    monkeypatch.setenv("MLX_HOSTFILE", str(hostfile))
    monkeypatch.setenv("MLX_RANK", "0")


def test_an_address_of_another_machine_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched(monkeypatch, tmp_path, "192.0.2.1:32323", "192.0.2.2:32324")
    assert Group.launched()
    with pytest.raises(MachineError, match=r"^rank 0 cannot listen at 192\.0\.2\.1: \w+"):
        Group.join()


def test_ranks_that_do_not_come_are_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(group, "JOIN_TIME", 0.05)
    launched(monkeypatch, tmp_path, *(f"127.0.0.1:{port}" for port in free_ports(2)))
    with pytest.raises(MachineError, match=r"^no other rank connected to rank 0 at 127\.0\.0\.1"):
        Group.join()


def test_a_signal_ends_a_process_that_waits_for_others_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handlers = []

    def init(**options: object) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise RuntimeError

    monkeypatch.setattr(mx.distributed, "init", init)
    launched(monkeypatch, tmp_path, "127.0.0.1:32323", "127.0.0.1:32324")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(MachineError):
        Group.join()
    assert handlers == [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is before
