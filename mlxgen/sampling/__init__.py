"""From logits to tokens, a whole batch in one call.

``Sampler.sample`` draws a token for each row, and ``Sampler.distribution`` is what it draws from.
Nothing here knows text, models or the engine.
"""

from .hooks import DrawView, ForcedView, Hook, PostSamplingResult, run_hooks
from .lookback import Lookback
from .program import CANDIDATES
from .race import derive_seed
from .rows import Change, Draw, DrawRow, Want
from .sampler import Sampler
from .settings import MAX_TEMPERATURE, SamplingSettings

__all__ = [
    "CANDIDATES",
    "MAX_TEMPERATURE",
    "Change",
    "Draw",
    "DrawRow",
    "DrawView",
    "ForcedView",
    "Hook",
    "Lookback",
    "PostSamplingResult",
    "Sampler",
    "SamplingSettings",
    "Want",
    "derive_seed",
    "run_hooks",
]
