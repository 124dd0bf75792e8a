"""What a model on several machines is: the ranks that have it, and its number among theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar
from weakref import finalize

import mlx.core as mx

from ..engine.kv import Footprint
from ..engine.kv.layers import Model
from ..engine.prefix.blocks import different
from ..errors import MlxgenError
from ..loading.sharding import Split
from .leading import Leading
from .machines import Machines
from .part import Called, Part

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Share:
    """The part of model ``number`` that is here.

    Once all parts are loaded, all ranks know: the ``footprints`` of the parts, and ``room``: the
    fewest bytes that a machine has beside its part of the weights.
    """

    machines: Machines
    number: int
    footprints: tuple[Footprint, ...] = ()
    room: int = 0

    def settled(self, footprint: Footprint, room: int) -> Share:
        """With what all ranks have; each of them says its own: collective.

        Raises ``LoadError`` if rank 0 could not decide for all parts by its own.
        """
        said = self.machines.group.exchange([asdict(footprint), room])
        footprints = []
        for each, _ in said:  # JSON has no tuples
            windows = tuple([(size, width) for size, width in each["windows"]])
            footprints.append(Footprint(**{**each, "windows": windows}))
        different(footprints)
        room = min(room for _, room in said)
        return replace(self, footprints=tuple(footprints), room=room)

    def agrees(self, possible: bool) -> bool:
        """Whether something is possible on all ranks: collective."""
        return all(self.machines.group.exchange(possible))

    @property
    def part(self) -> tuple[int, int]:
        """Which part of how many."""
        return self.machines.group.rank, self.machines.group.size

    @property
    def group(self) -> mx.distributed.Group:
        """The ranks, for mlx-lm."""
        return self.machines.group.raw

    def runner(self, model: Model, *given: Any) -> Part:
        """A runner as ``Runner`` would be, that goes through all parts."""
        piped, called = Split.of(model, self.group).kind == "pipeline", Called(model)
        if self.machines.leads:
            return Leading(self.machines, self.number, called, *given, piped=piped)
        return Part(called, *given, group=self.group, piped=piped)


def shared(machines: Machines, load: Callable[[Share], M], settings: Mapping[str, Any]) -> M:
    """A model of which every rank loads its part; ``load`` does so here, and ``settings`` are for
    that of the others."""
    with machines.turn():
        number = machines.number()
        machines.tell(["load", number, settings])
        try:
            model = load(Share(machines, number))
        except MlxgenError:  # which all ranks have
            raise
        except BaseException as error:  # the others wait for what does not come
            machines.channel.fail(f"loading was broken off by {type(error).__name__}")
            raise
    finalize(model, machines.dispose, ["unload", number])
    return model
