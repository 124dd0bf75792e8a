"""The ranks that run one model together, as ``mlx.launch`` and ``mpirun`` start them.

Must never know what they run. MLX is imported when ranks join, not before, because every program
asks here at its start whether it is one of several.

What happens to a rank whose peer is gone depends on MLX's back end, as read in its source. On the
ring, a rank that waits for a collective gets a ``RuntimeError``, and later collectives never end.
JACCL polls for ever, since its connections report nothing. NCCL waits for ever, or ends the process
with a line on stderr. MPI ends the process. With a peer that hangs, all of them wait for ever. So
nothing may rely on a collective to find a fault: that is what ``Channel`` is for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MachineError

if TYPE_CHECKING:
    import mlx.core as mx

JOIN_TIME = 60.0
"""Seconds that a rank waits for the others to start. The ring's own attempts to connect end after
31 s, but it would accept for ever."""

_ADVICE = "start the program with mlx.launch"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Launch:
    """This process as one of ``size`` ranks.

    ``backend`` is a name that ``mx.distributed.init`` takes. ``addresses``: where each rank is
    known to listen, by rank: the ring has them for all, MPI for none, the others for rank 0.
    """

    backend: str
    rank: int
    size: int
    addresses: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """What the environment says, or ``None`` if this process is not one of several.

        Raises ``MachineError`` if that is inconsistent.
        """
        rank, addresses = "MLX_RANK", list[list[str]]()
        # The variables that MLX asks for, in its order; the only MPI that it takes is Open MPI
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


@dataclass(frozen=True, slots=True)
class Group:
    """All ranks, as seen by one of them; rank 0 leads.

    ``hosts``: a name for each rank's machine, for messages. ``addresses``: as in ``Launch``.
    """

    raw: mx.distributed.Group
    rank: int
    size: int
    backend: str
    hosts: tuple[str, ...]
    addresses: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def launched(cls) -> bool:
        """Whether this process was started as one of several; quick, and without MLX."""
        return Launch.of() is not None

    @classmethod
    def join(cls) -> Group | None:
        """Meet the other ranks: collective. ``None`` if this process was started alone.

        Raises ``MachineError`` if they cannot be met.
        """
        launch = Launch.of()
        if launch is None:
            return None
        import mlx.core as mx

        with _no_longer_than(JOIN_TIME):
            try:
                raw = mx.distributed.init(strict=True, backend=launch.backend)
            except (RuntimeError, ValueError) as error:
                raise MachineError(_reason(launch, str(error))) from error
        group = cls(raw, raw.rank(), raw.size(), launch.backend, (), launch.addresses)
        known = launch.addresses[group.rank : group.rank + 1] if launch.backend == "ring" else ()
        name = known[0][0] if known and known[0] else socket.gethostname()
        return replace(group, hosts=tuple(group.exchange(name)))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def name(self, rank: int) -> str:
        """A rank for messages, with its machine."""
        return f"rank {rank} ({self.hosts[rank]})" if self.hosts else f"rank {rank}"

    def exchange(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, by rank: collective.

        Like every collective, it waits for earlier work that was submitted to this thread's stream.
        """
        import mlx.core as mx
        import numpy as np

        def gather(array: mx.array) -> bytes:
            gathered = mx.distributed.all_gather(array, group=self.raw)
            mx.eval(gathered)  # after a failure, NumPy would read garbage without an error
            return np.array(gathered).tobytes()

        mine = json.dumps(value).encode()
        try:
            sizes = np.frombuffer(gather(mx.array([len(mine)])), np.int32).tolist()
            width = max(sizes)
            rows = gather(mx.array(np.frombuffer(mine.ljust(width), np.uint8)))
        except RuntimeError as error:
            raise MachineError(
                f"another rank ended at the start ({error}); see what it printed"
            ) from error
        return [
            json.loads(rows[rank * width : rank * width + size]) for rank, size in enumerate(sizes)
        ]


def _reason(launch: Launch, text: str) -> str:
    """What to do about an error of MLX, whose message has at best an error number."""
    number = re.search(r"error: (\d+)", text)
    why = os.strerror(int(number[1])) if number else text
    rank, peer = launch.rank, (launch.rank + 1) % launch.size
    mine, its = (
        ", ".join(launch.addresses[i]) if i < len(launch.addresses) else "its address"
        for i in (rank, peer)
    )
    found = {
        "Accept failed": f"no other rank connected to rank {rank} at {mine} in {JOIN_TIME:g} s",
        "Couldn't connect": f"rank {rank} cannot connect to rank {peer} at {its}: {why}",
        "Couldn't bind": f"rank {rank} cannot listen at {mine}: {why}",
    }
    for sign, reason in found.items():
        if sign in text:
            return (
                f"{reason}; see whether all ranks were started, and check the addresses, the ports"
                " (--starting-port of mlx.launch), the cables and the firewall"
            )
    return f"rank {rank} cannot join the others by {launch.backend}: {text}"


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """End a call of MLX that waits for a connection while it holds the GIL.

    Only a signal can: it interrupts ``accept``, which then fails. (It does not end ``connect``, so
    it is repeated.) Signals belong to the main thread; elsewhere the call may wait for ever.
    Signals that end the process do so at once, as Python would not run their handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, *_ENDING)}
    signal.signal(signal.SIGALRM, lambda *_: None)
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


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
