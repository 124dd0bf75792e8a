"""What a scheduler may use, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ..loading.memory import memory_limit
from ..options.rule import integer

CACHE_SHARE = 0.5  # of the bytes left beside the weights, if the caller sets no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a scheduler may use.

    - ``max_batch``: how many sequences may run at a time.
    - ``max_queue``: how many more may wait.
    - ``max_bytes``: the maximum size of all KV caches, including the prefix cache; ``None`` for
      half of the memory that the device (or the machine) has left.
    - ``keep_prefixes``: whether to use a prefix cache.
    """

    max_batch: int = 32
    max_queue: int = 256
    max_bytes: int | None = None
    keep_prefixes: bool = True

    def __post_init__(self) -> None:
        for name, least in (("max_batch", 1), ("max_queue", 0), ("max_bytes", 1)):
            if (value := getattr(self, name)) is not None:
                integer(None, least).check(name, value)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a scheduler holds now, and what it has done since it was made."""

    running: int
    prefilling: int
    queued: int
    kv_bytes: int
    cache_bytes: int
    byte_limit: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forced_tokens: int
    rewound_tokens: int
    redraws: int
    forward_passes: int
    cache_hits: int
    cache_misses: int
    preempted: int
    faults: int
    steps: int


def default_bytes() -> int:
    """Half of the memory that the device (or the machine) has left."""
    limit, _ = memory_limit()
    return max(1 << 26, int((limit - mx.get_active_memory()) * CACHE_SHARE))
