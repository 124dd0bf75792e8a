"""What the environment says about other ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlxgen.errors import MachineError
from mlxgen.machines.group import Launch


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


def test_what_cannot_be_is_refused(hostfile: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text('{"a": 1}')
    with pytest.raises(
        MachineError, match=r"^MLX_RANK: expected a number from 0 to 1, got 2; start"
    ):
        Launch.of({"MLX_RANK": "2", "MLX_HOSTFILE": hostfile})
    with pytest.raises(MachineError, match=r"^MLX_RANK: expected a number, got 'one'; start"):
        Launch.of({"MLX_RANK": "one", "MLX_HOSTFILE": hostfile})
    with pytest.raises(MachineError, match=r"^MLX_HOSTFILE: expected a list for each rank"):
        Launch.of({"MLX_RANK": "0", "MLX_HOSTFILE": str(broken)})
    with pytest.raises(MachineError, match=r"^MLX_HOSTFILE: \S+ cannot be read: "):
        Launch.of({"MLX_RANK": "0", "MLX_HOSTFILE": str(tmp_path / "missing")})


def test_asking_does_not_import_mlx() -> None:
    program = (
        "import sys; from mlxgen.machines.group import Group; assert not Group.launched();"
        " assert not {'mlx', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
