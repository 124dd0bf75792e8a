"""The ranks that hold one model together, as one process knows them.

Owns this process's place among them, its messages to the others, and the comparison of what all
must have in common: facts, each a name with a JSON value. Must never know requests or text.
Invariant: rank 0 tells all others the same items in one order, and does its own work in that order,
too. A failure that leaves a rank behind ends all of them.

A message is a JSON list of items: a word, and its arguments. ``Follower`` carries them out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import mlx.core as mx

from ..errors import LoadError, MachineError, MlxgenError
from ..loading.memory import memory_limit
from .channel import Channel
from .group import Group

LATE = 3.0  # seconds to learn why an evaluation failed, or for one to end after a loss
T = TypeVar("T")
Item: TypeAlias = list[Any]


class Machines:
    """See the module; ``here`` gives this process's. ``device``: the memory of the smallest
    machine, in bytes."""

    def __init__(self, group: Group, channel: Channel, device: int) -> None:
        self.group = group
        self.channel = channel
        self.device = device
        self._lock = threading.RLock()
        self._items: list[Item] = []  # of the next message
        self._dead: deque[Item] = deque()  # noted by finalizers, of objects that are no longer used
        self._numbers = count()
        self._at_work: tuple[int, mx.Stream] | None = None  # the thread that had the last turn
        self.says_losses = True  # on stderr, unless the program does
        self._waiting: set[object] = set()  # threads that may wait for collectives
        if self.leads:
            channel.on_loss(self._lose)

    @staticmethod
    @cache  # a process belongs to one group for as long as it lives
    def here() -> Machines | None:
        """Join the other ranks, if any; every rank calls this, and only the first call waits.

        Raises ``MachineError`` if the others cannot be reached.
        """
        group = Group.join()
        if group is None:
            return None
        channel = Channel.open(group)
        return Machines(group, channel, min(group.exchange(memory_limit()[0])))

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.group.rank == 0

    @property
    def lost(self) -> MachineError | None:
        """Why a rank is lost, once one is; nothing can run after that."""
        return self.channel.lost

    # ---- rank 0 ------------------------------------------------------------------------------

    def number(self) -> int:
        """A number for a model or a runner."""
        return next(self._numbers)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A context in which this thread alone runs commands and sends items.

        Collectives of two threads must not go through the group at once, so it first waits for the
        work that the previous thread submitted.
        """
        with self._waits(), self._lock:
            if self.lost is not None:
                raise MachineError(*self.lost.args)
            thread = threading.get_ident()
            if self._at_work is None or self._at_work[0] != thread:
                if self._at_work is not None:
                    mx.synchronize(self._at_work[1])
                self._at_work = thread, mx.default_stream(mx.cpu)
            yield

    def note(self, item: Item) -> None:
        """Add an item to the next message; only in a ``turn``."""
        self._items.append(item)

    def tell(self, item: Item) -> None:
        """Send an item now, after those that were noted; only in a ``turn``."""
        self._bury()  # first, as a model that is unloaded makes room for a new one
        self._items.append(item)
        self.flush()

    def flush(self) -> None:
        """Send the items that were noted."""
        self._bury()
        if self._items:
            items, self._items = self._items, []
            self.channel.send(json.dumps(items, separators=(",", ":")).encode())

    def _bury(self) -> None:
        while self._dead:
            self._items.append(self._dead.popleft())

    def dispose(self, item: Item) -> None:
        """Note, from any thread, an item about an object that is no longer used."""
        self._dead.append(item)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context for waiting for collectives: a failure in it is a failure of all ranks."""
        with self._waits(), self.channel.step():
            try:
                yield
            except MlxgenError:
                raise
            except Exception as error:
                raise self.blamed(error) from error

    @contextlib.contextmanager
    def _waits(self) -> Iterator[None]:
        key = object()
        self._waiting.add(key)
        try:
            yield
        finally:
            self._waiting.discard(key)

    def blamed(self, error: Exception) -> MachineError:
        """The loss that caused this failure; if there is none, all ranks are given up."""
        lost = self.channel.wait_lost(LATE)
        if lost is None:
            lost = MachineError(f"rank 0 failed in an evaluation: {error}")
            self.channel.fail(str(error))
        return MachineError(*lost.args)

    def _lose(self, lost: MachineError) -> None:
        """Report the loss at once, as the launcher may soon end this rank; and end the process if a
        thread waits for a collective that will never end: nothing else can."""
        if self.says_losses:
            print(f"mlxgen: {lost}", file=sys.stderr, flush=True)

        def end() -> None:
            if self._waiting:
                os._exit(1)

        timer = threading.Timer(LATE, end)
        timer.daemon = True
        timer.start()

    # ---- all ranks ---------------------------------------------------------------------------

    def together(self, do: Callable[[], T]) -> T:
        """Do what every rank does now; if it fails on one of them, it fails on all.

        A rank on which it failed raises its own error, others a ``LoadError`` that names that rank.
        """
        result: T | None = None
        failed: Exception | None = None
        try:
            result = do()
        except Exception as error:
            failed = error
        said = self.group.exchange(None if failed is None else str(failed))
        if failed is not None:
            raise failed
        for rank, sentence in enumerate(said):
            if sentence is not None:
                raise LoadError(f"{self.group.name(rank)}: {sentence}")
        return cast(T, result)


# ---- what all ranks must have in common ---------------------------------------------------------

VERSION = "version of "
"""The beginning of the names of facts from ``versions``."""
MODEL_FILE = "model file "
"""The beginning of the names of facts about a model's files."""

_ADVICE = {
    VERSION: "install the same versions on all machines",
    MODEL_FILE: "copy the model's folder from one machine to the others, or download it again",
    "": "start all ranks with the same options",
}


def agree(group: Group, facts: Mapping[str, Any]) -> None:
    """Compare the facts of all ranks: collective.

    Raises ``MachineError`` on every rank if any differs. Rank 0's says which, and what to do.
    """
    told: list[dict[str, Any]] = group.exchange(dict(facts))
    differing: dict[str, str] = {}
    for name in dict.fromkeys(name for each in told for name in each):
        holders: dict[str, list[str]] = {}
        for rank, each in enumerate(told):
            if name in each or not name.startswith(MODEL_FILE):  # a rank may need other files
                value = json.dumps(each[name], sort_keys=True) if name in each else "missing"
                holders.setdefault(value, []).append(group.name(rank))
        if len(holders) > 1:
            lists = [f"{value} on {' and '.join(ranks)}" for value, ranks in holders.items()]
            differing[name] = "; ".join(lists)
    if not differing:
        return
    if not group.leads:
        raise MachineError(f"{group.name(group.rank)} differs from the others; rank 0 says in what")
    lines = [f"  {name}: {values}" for name, values in differing.items()]
    kinds = (next(kind for kind in _ADVICE if name.startswith(kind)) for name in differing)
    lines += [_ADVICE[kind] for kind in dict.fromkeys(kinds)]
    raise MachineError("\n".join(["the machines differ:", *lines]))


def versions() -> dict[str, str]:
    """The versions of the software that a rank runs, as facts.

    mlxgen's has a digest of its source, as ranks of a development version must not differ either.
    """
    package = Path(__file__).parents[1]
    source = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        source.update(f"{file.relative_to(package).as_posix()} ".encode() + file.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    found = {name: metadata.version(name) for name in ("mlxgen", "mlx", "mlx-lm")}
    found["mlxgen"] += f" ({source.hexdigest()[:12]})"
    return {f"{VERSION}{name}": each for name, each in {**found, "Python": python}.items()}
