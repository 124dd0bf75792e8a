"""What a scheduler may use, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import OptionError
from ..options.rule import ABOVE_ZERO, integer, number
from .chunk import DraftCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a scheduler may use.

    - ``max_batch``: how many sequences may run at a time.
    - ``max_queue``: how many more may wait.
    - ``max_bytes``: the maximum size of all KV caches, including the prefix cache; ``None`` for
      what the model's ``memory`` plans for them.
    - ``keep_prefixes``: whether to use a prefix cache.
    - ``longest_gap``: the seconds between two tokens of a sequence while the prompts of others are
      run, as far as single passes allow it; ``None`` for three times what a step takes, or a
      twentieth of a second if that is more. A longer gap lets prompts be done sooner.
    - ``prefill_chunk``: prompt tokens to run between two steps, however long that takes; ``None``
      to go by ``longest_gap``, which cannot be set as well.
    """

    max_batch: int = 32
    max_queue: int = 256
    max_bytes: int | None = None
    keep_prefixes: bool = True
    longest_gap: float | None = None
    prefill_chunk: int | None = None

    def __post_init__(self) -> None:
        counts = (("max_batch", 1), ("max_queue", 0), ("max_bytes", 1), ("prefill_chunk", 1))
        for name, least in counts:
            if (value := getattr(self, name)) is not None:
                integer(None, least).check(name, value)
        if self.longest_gap is not None:
            number(0, ABOVE_ZERO, 1e6).check("longest_gap", self.longest_gap)
            if self.prefill_chunk is not None:
                raise OptionError(
                    "prefill_chunk",
                    "cannot be used with longest_gap, as it is run however long that takes; leave "
                    "out one of them",
                )


@dataclass(frozen=True, slots=True)
class Stats:
    """What a scheduler holds now, and what it has done since it was made."""

    running: int
    prefilling: int
    queued: int
    kv_bytes: int
    cache_bytes: int
    byte_limit: int
    device_bytes: int
    weight_bytes: int
    activation_bytes: int
    reserve_bytes: int
    wired_bytes: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forced_tokens: int
    rewound_tokens: int
    redraws: int
    forward_passes: int
    cache_hits: int
    cache_misses: int
    disk_bytes: int
    disk_limit: int
    pieces_written: int
    restored_tokens: int
    restores_refused: int
    preempted: int
    faults: int
    steps: int
    drafts: Mapping[str, DraftCount]
