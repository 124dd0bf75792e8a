"""A loaded model, and everything through which requests use it.

Owns its engine's thread, and what its requests are prepared with. Must never
know other models, or for whom it is loaded. It belongs to the event loop.
"""

from __future__ import annotations

from functools import partial

from ...engine import Scheduler
from ...loading.memory import MemoryPlan
from ...model import LanguageModel
from ..engine.boot import Engine
from ..engine.thread import EngineThread
from ..jobs import Preparation, Workers
from ..remote_images import RemoteImages
from ..settings import Settings


class Serving:
    """One loaded model."""

    def __init__(
        self,
        thread: EngineThread,
        engine: Engine,
        workers: Workers,
        settings: Settings,
    ) -> None:
        self.engine = thread
        self.model = engine.model
        self.lm: LanguageModel = engine.lm
        fetches = settings.allow_remote_images and engine.model.dialect.images is not None
        self.preparation = Preparation(
            workers,
            engine.lm,
            engine.model,
            max_sequences=settings.max_queue,
            remote=RemoteImages() if fetches else None,
        )

    @property
    def memory(self) -> MemoryPlan:
        """How it uses the memory of the device."""
        return self.lm.memory

    @property
    def weights(self) -> int:
        """The bytes of its weights."""
        return self.lm.weight_bytes

    async def share(self, weights: int, sharers: int) -> None:
        """Go by a plan for so many models, all of whose weights are given."""
        await self.engine.do(partial(_share, self.lm, weights, sharers))


def _share(lm: LanguageModel, weights: int, sharers: int, scheduler: Scheduler) -> None:
    lm.share_memory(weights, sharers)
    scheduler.follow(lm.memory)
