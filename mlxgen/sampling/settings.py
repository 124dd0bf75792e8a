"""How one sequence is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tokens import Token

MAX_TEMPERATURE = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """The options that turn logits into a token, in the order in which they apply.

    The values are checked already; ``options.table`` has their meanings and ranges.
    """

    logit_bias: Mapping[Token, float] = field(default_factory=dict, hash=False)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_context_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = -1.0
    min_k: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    top_k: int = 0
    temperature: float = 0.0
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far matter, so that a draw needs their counts."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def has_floor(self) -> bool:
        """Whether the shape of the logits limits how far below the highest a token may lie."""
        return self.temperature > 0 and (self.top_n_sigma > 0 or self.min_k >= 0)

    @property
    def aims(self) -> bool:
        """Whether tokens near a target probability are preferred (adaptive-p)."""
        return self.temperature > 0 and self.adaptive_target >= 0

    @property
    def avoids_repetitions(self) -> bool:
        """Whether a draw needs to know the repetitions in the tokens so far."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on the tokens before it, so that it needs a ``Lookback``."""
        return self.penalises or self.avoids_repetitions or self.aims
