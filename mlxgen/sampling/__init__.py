"""From logits to tokens, a whole batch in one call.

``Sampler.sample`` draws a token for each row, and ``Sampler.distribution`` is what it draws from.
Nothing here knows text, models or the engine.
"""

from .aim import Aim
from .candidates import CANDIDATES
from .counts import TokenCounts
from .hooks import DrawView, ForcedView, Hook, PostSamplingResult, run_hooks
from .race import derive_seed
from .repetitions import Repetitions
from .rows import Draw, DrawRow, Want
from .sampler import Sampler
from .settings import MAX_TEMPERATURE, SamplingSettings

__all__ = [
    "CANDIDATES",
    "MAX_TEMPERATURE",
    "Aim",
    "Draw",
    "DrawRow",
    "DrawView",
    "ForcedView",
    "Hook",
    "PostSamplingResult",
    "Repetitions",
    "Sampler",
    "SamplingSettings",
    "TokenCounts",
    "Want",
    "derive_seed",
    "run_hooks",
]
