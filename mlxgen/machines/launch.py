"""What ``mlx.launch`` and ``mpirun`` say in the environment of a process that they start.

Must never import MLX: every start of a program asks here whether it is one of several.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
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
        rank = _number(environment, "MLX_RANK")
        addresses: Iterable[Iterable[str]] = ()
        # In the order in which MLX looks for its back ends
        if host := environment.get("NCCL_HOST_IP"):
            backend, size, addresses = "nccl", _number(environment, "MLX_WORLD_SIZE"), [[host]]
        elif path := environment.get("MLX_HOSTFILE"):
            ranks = _ranks("MLX_HOSTFILE", path)
            backend, size = "ring", len(ranks)
            addresses = [[_host(address) for address in each] for each in ranks]
        elif "OMPI_COMM_WORLD_SIZE" in environment:  # MLX takes Open MPI only
            backend, size = "mpi", _number(environment, "OMPI_COMM_WORLD_SIZE")
            rank = _number(environment, "OMPI_COMM_WORLD_RANK")
        elif path := environment.get("MLX_IBV_DEVICES"):
            backend, size = "jaccl", len(_ranks("MLX_IBV_DEVICES", path))
            addresses = [[_host(environment.get("MLX_JACCL_COORDINATOR", ""))]]
        else:
            return None
        if size < 2:
            return None
        if not 0 <= rank < size:
            raise MachineError(f"expected a rank from 0 to {size - 1}, got {rank}; {_ADVICE}")
        return cls(backend, rank, size, tuple(tuple(filter(None, each)) for each in addresses))


def _host(address: Any) -> str:
    return str(address).rpartition(":")[0]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "0")
    try:
        return int(text)
    except ValueError as error:
        raise MachineError(f"{name}: expected a number, got {text!r}; {_ADVICE}") from error


def _ranks(name: str, path: str) -> list[list[Any]]:
    """A file of ``mlx.launch`` with a list for each rank. For a single rank it may be empty."""
    try:
        ranks = json.loads(Path(path).read_text(encoding="utf-8").strip() or "[]")
    except (OSError, ValueError) as error:
        raise MachineError(f"{name}: {path} cannot be read: {error}; {_ADVICE}") from error
    if not isinstance(ranks, list) or not all(isinstance(rank, list) for rank in ranks):
        raise MachineError(f"{name}: expected a list for each rank in {path}; {_ADVICE}")
    return ranks
