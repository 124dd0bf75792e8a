"""A scheduler's limits, its report, and the account that it keeps for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import OptionError
from ..options.rule import ABOVE_ZERO, integer, number
from .chunk import DraftCount, Usage, all_drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a scheduler may use.

    - ``max_batch``: how many sequences may run at a time.
    - ``max_queue``: how many more may wait.
    - ``max_bytes``: the maximum size of all KV caches, including the prefix cache; ``None`` for
      what the model's ``memory`` plans for them.
    - ``keep_prefixes``: whether to use a prefix cache.
    - ``longest_gap``: the most seconds between two tokens of a sequence while prompts of others
      run, as far as single passes allow it; ``None`` for the time of three steps, or a twentieth of
      a second if that is more. A longer gap lets prompts finish sooner.
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
    preempted: int
    faults: int
    steps: int
    drafts: Mapping[str, DraftCount]


_SUMS = {each.name for each in fields(Usage)} & {each.name for each in fields(Stats)} - {"drafts"}


class Account:
    """The usage of sequences that are gone, and what a scheduler has done since it was made."""

    def __init__(self) -> None:
        self.preempted = self.faults = self.steps = 0
        self._sums = dict.fromkeys(_SUMS, 0)
        self._drafts: Mapping[str, DraftCount] = {}

    def add(self, usage: Usage, first: int) -> None:
        """Add the usage of a sequence, whose first ``first`` tokens a prefix gave."""
        for name in _SUMS:
            self._sums[name] += getattr(usage, name)
        # Tokens from a prefix, or from the sequence that a fork came from, were not generated. Like
        # the prompt, a prefix is run or comes from the cache.
        self._sums["prompt_tokens"] += first
        self._sums["completion_tokens"] -= min(
            usage.completion_tokens, max(first, usage.forked_tokens)
        )
        self._drafts = all_drafts([self._drafts, usage.drafts])

    def told(self, others: Iterable[tuple[Usage, int]]) -> dict[str, Any]:
        """The fields of ``Stats`` that are kept here, with what ``others`` have used so far."""
        whole = Account()
        whole._sums, whole._drafts = dict(self._sums), self._drafts
        for usage, first in others:
            whole.add(usage, first)
        counts = {name: getattr(self, name) for name in ("preempted", "faults", "steps")}
        return {**counts, **whole._sums, "drafts": whole._drafts}
