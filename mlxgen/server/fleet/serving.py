"""A loaded model, and everything through which requests use it.

Owns its engine's thread and pulse, and what its requests are prepared with. Must never
know other models, or for whom it is loaded. It belongs to the event loop.
"""

from __future__ import annotations

from functools import partial

from ...engine import Scheduler
from ...loading.memory import MemoryPlan
from ...model import LanguageModel
from ..engine.boot import Engine
from ..engine.pulse import Pulse
from ..engine.thread import EngineThread
from ..jobs import Lanes, Preparation
from ..remote_images import RemoteImages
from ..settings import Settings


class Serving:
    """One loaded model."""

    def __init__(
        self,
        thread: EngineThread,
        engine: Engine,
        lanes: Lanes,
        settings: Settings,
    ) -> None:
        self.engine = thread
        self.model = engine.model
        self.lm: LanguageModel = engine.lm
        fetches = settings.allow_remote_images and engine.model.dialect.images is not None
        self.preparation = Preparation(
            lanes,
            engine.lm,
            engine.model,
            max_sequences=settings.max_queue,
            remote=RemoteImages() if fetches else None,
        )
        self.pulse = Pulse(lambda: thread.beats)
        self.pulse.start()

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

    async def close(self) -> None:
        """End all but the engine's thread."""
        self.pulse.close()


def _share(lm: LanguageModel, weights: int, sharers: int, scheduler: Scheduler) -> None:
    lm.share_memory(weights, sharers)
    scheduler.follow(lm.memory)
