"""What the graph of one pass tells of a model: how wide its logits are, and its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...loading.memory import MemoryPlan, memory_limit
from ...loading.model_config import EXPERTS, HEADS, number_of
from ...loading.sharding import Split
from .activations import Activations
from .footprint import Footprint
from .layers import PREFILL_STEP, CacheFactory


@dataclass(frozen=True, slots=True)
class Measures:
    """The width of a model's logits, and the bytes of its KV caches and of its passes."""

    vocab_size: int
    footprint: Footprint
    activations: Activations

    @classmethod
    def of(cls, model: nn.Module, make: CacheFactory, config: Mapping[str, Any]) -> Measures:
        """Measure a pass of one token; nothing is evaluated."""
        caches = make()
        logits = model(mx.array([[0]]), cache=caches)
        queries, chosen = (number_of(config, names) or 1 for names in (HEADS, EXPERTS))
        part = Split.had(model)
        if part is not None and part.kind == "tensor":
            queries //= part.size
        activations = Activations.of_one(model, caches, logits.dtype, heads=queries, experts=chosen)
        return cls(int(logits.shape[-1]), Footprint.of(model, caches), activations)

    def plan(
        self,
        max_context: int | None,
        caches: int | None,
        draft: Measures | None = None,
        image: int = 0,
        *,
        device: int | None = None,
        weights: int | None = None,
        sharers: int = 1,
    ) -> MemoryPlan:
        """How the device's memory is shared; ``caches``: the most bytes for KV, if given.
        ``device``: its bytes, by default those of this machine's.

        What ``draft`` runs has the same room: its KV beside the other, its pieces in turn. So has
        an ``image``, before the piece that it belongs to. ``sharers``: this many models share the
        device, all of whose ``weights`` are given.
        """
        models = [self] if draft is None else [self, draft]

        def piece(caches: int) -> int:
            held = caches // max(1, sum(each.footprint.growing for each in models))
            longest = held if max_context is None else min(held, max_context)
            pieces = [each.activations.nbytes(PREFILL_STEP, longest) for each in models]
            steps = [each.activations.per_made * held for each in models]
            return max(image, *pieces, *steps)

        if weights is None:
            weights = max(mx.get_active_memory(), sum(each.footprint.weights for each in models))
        if device is None:
            device = memory_limit()[0]
        return MemoryPlan.of(device, weights, caches=caches, piece=piece, sharers=sharers)
