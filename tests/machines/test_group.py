"""What the environment says about other ranks, and ranks that cannot meet."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlxgen.errors import MachineError
from mlxgen.machines import group
from mlxgen.machines.group import Group, Launch

from .ranks import free_ports


@pytest.fixture
def hostfile(tmp_path: Path) -> str:
    path = tmp_path / "hosts"
    path.write_text(json.dumps([["10.0.0.1:32323", "10.0.1.1:32324"], ["10.0.0.2:32325"]]))
    return str(path)


def test_alone_without_a_launcher(tmp_path: Path) -> None:
    empty = tmp_path / "hosts"
    empty.write_text("\n")  # as mlx.launch writes it for one host
    assert Launch.of({}) is None
    assert Launch.of({"MLX_RANK": "0", "MLX_HOSTFILE": str(empty)}) is None
    assert Launch.of({"MLX_RANK": "0", "NCCL_HOST_IP": "10.0.0.1"}) is None
    assert Launch.of({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}) is None


def test_every_back_end_of_mlx_launch_is_known(hostfile: str, tmp_path: Path) -> None:
    devices = tmp_path / "devices"
    devices.write_text(json.dumps([[None, "rdma_en5"], ["rdma_en5", None]]))
    addresses = (("10.0.0.1", "10.0.1.1"), ("10.0.0.2",))
    rank = {"MLX_RANK": "1"}
    assert Launch.of(rank | {"MLX_HOSTFILE": hostfile}) == Launch("ring", 1, 2, addresses)
    jaccl = {"MLX_IBV_DEVICES": str(devices), "MLX_JACCL_COORDINATOR": "10.0.0.1:32323"}
    assert Launch.of(rank | jaccl) == Launch("jaccl", 1, 2, (("10.0.0.1",),))
    nccl = {"NCCL_HOST_IP": "10.0.0.1", "NCCL_PORT": "12345", "MLX_WORLD_SIZE": "4"}
    assert Launch.of(rank | nccl) == Launch("nccl", 1, 4, (("10.0.0.1",),))
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    assert Launch.of(mpi) == Launch("mpi", 1, 2, ())


@pytest.mark.parametrize(
    ("rank", "file", "said"),
    [
        ("2", '[["10.0.0.1:1"], ["10.0.0.2:1"]]', "MLX_RANK: expected a number from 0 to 1, got 2"),
        ("one", '[["10.0.0.1:1"], ["10.0.0.2:1"]]', "MLX_RANK: expected a number, got 'one'"),
        ("0", '{"a": 1}', "MLX_HOSTFILE: expected a list for each rank"),
        ("0", None, "MLX_HOSTFILE: "),
    ],
)
def test_what_cannot_be_is_refused(rank: str, file: str | None, said: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    if file is not None:
        hosts.write_text(file)
    with pytest.raises(MachineError, match=f"^{said}.*mlx.launch"):
        Launch.of({"MLX_RANK": rank, "MLX_HOSTFILE": str(hosts)})


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
