"""What the engine needs of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..loading.memory import MemoryPlan
from ..sampling import Sampler
from ..tokens import Token
from .drafts.drafts import Drafts
from .kv import Activations, Footprint, LayerCache, Slots
from .options import Options
from .prefix.store import BlockStore
from .step.pace import Pace
from .step.runner import Runner
from .step.step import Loop


class Runtime(Protocol):
    """A model, and what all of its generations share; a ``LanguageModel`` is one."""

    @property
    def sampler(self) -> Sampler: ...
    @property
    def pace(self) -> Pace: ...
    @property
    def footprint(self) -> Footprint: ...
    @property
    def activations(self) -> Activations: ...
    @property
    def memory(self) -> MemoryPlan: ...
    @property
    def prefix_cache(self) -> BlockStore: ...
    @property
    def batches(self) -> bool:
        """Whether several sequences can run through the model together."""

    def drafts_for(self, options: Options, owner: str = "") -> Drafts:
        """What drafts for a generation with these options; of earlier texts, it knows those of the
        same ``owner``."""

    def runner(self, slots: Slots | None = None) -> Runner:
        """A runner of the model with its prefix cache, and with slots if several run together."""

    def loop(self, runner: Runner, *, longest_run: int | None = None) -> Loop:
        """A step loop for this model, which is watched if somebody watches the model."""

    def places(self, tokens: Sequence[Token]) -> list[int]:
        """Where in a prompt a snapshot is worth keeping, in order."""

    def make_cache(self) -> list[LayerCache]:
        """Empty caches for one sequence, one for each layer."""
