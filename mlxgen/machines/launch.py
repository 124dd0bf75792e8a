"""What ``mlx.launch`` and ``mpirun`` say in the environment of a process that they start.

Must never import MLX: every start of a program asks here whether it is one of several.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MachineError

_ADVICE = "start the program with mlx.launch"


@dataclass(frozen=True, slots=True)
class Launch:
    """This process as one of ``size`` ranks.

    ``backend`` is a name that ``mx.distributed.init`` takes. ``addresses`` are those that ranks
    are known to listen on, by rank: the ring has them for all, MPI for none, the others for rank 0.
    """

    backend: str
    rank: int
    size: int
    addresses: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """What the environment says, or ``None`` if this process is not one of several.

        Raises ``MachineError`` if it says something that cannot be.
        """
        rank, addresses = "MLX_RANK", list[list[str]]()
        # What MLX asks for, and in its order; of MPIs it takes Open MPI only
        if _has(environment, rank, "NCCL_HOST_IP", "NCCL_PORT", "MLX_WORLD_SIZE"):
            backend, size = "nccl", _number(environment, "MLX_WORLD_SIZE")
            addresses = [[environment["NCCL_HOST_IP"]]]
        elif _has(environment, rank, "MLX_HOSTFILE"):
            ranks = _ranks(environment, "MLX_HOSTFILE")
            backend, size = "ring", len(ranks)
            addresses = [[_host(address) for address in each] for each in ranks]
        elif _has(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
            backend, size = "mpi", _number(environment, "OMPI_COMM_WORLD_SIZE")
            rank = "OMPI_COMM_WORLD_RANK"
        elif _has(environment, rank, "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR"):
            backend, size = "jaccl", len(_ranks(environment, "MLX_IBV_DEVICES"))
            addresses = [[_host(environment["MLX_JACCL_COORDINATOR"])]]
        else:
            return None
        if size < 2:
            return None
        number = _number(environment, rank)
        if not 0 <= number < size:
            raise MachineError(
                f"{rank}: expected a number from 0 to {size - 1}, got {number}; {_ADVICE}"
            )
        return cls(backend, number, size, tuple(map(tuple, addresses)))


def _has(environment: Mapping[str, str], *names: str) -> bool:
    return all(environment.get(name) for name in names)


def _host(address: Any) -> str:
    return str(address).rpartition(":")[0]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    try:
        return int(text)
    except ValueError as error:
        raise MachineError(f"{name}: expected a number, got {text!r}; {_ADVICE}") from error


def _ranks(environment: Mapping[str, str], name: str) -> list[list[Any]]:
    """A file of ``mlx.launch`` with a list for each rank. For a single rank it may be empty."""
    path = environment[name]
    try:
        ranks = json.loads(Path(path).read_text(encoding="utf-8").strip() or "[]")
    except (OSError, ValueError) as error:
        raise MachineError(f"{name}: {path} cannot be read: {error}; {_ADVICE}") from error
    if not isinstance(ranks, list) or not all(isinstance(rank, list) for rank in ranks):
        raise MachineError(f"{name}: expected a list for each rank in {path}; {_ADVICE}")
    return ranks
