"""Ranks that cannot meet."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import mlx.core as mx
import pytest

from mlxgen.errors import MachineError
from mlxgen.machines import group
from mlxgen.machines.group import Group

from .ranks import free_ports


def launched(monkeypatch: pytest.MonkeyPatch, folder: Path, *addresses: str) -> None:
    """Make this process rank 0 of those at the addresses."""
    hostfile = folder / "hosts.json"
    hostfile.write_text(json.dumps([[address] for address in addresses]))
    monkeypatch.setenv("MLX_HOSTFILE", str(hostfile))
    monkeypatch.setenv("MLX_RANK", "0")


def test_a_process_that_was_started_alone_joins_nobody() -> None:
    assert not Group.launched() and Group.join() is None


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
