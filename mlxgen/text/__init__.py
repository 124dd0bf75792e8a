"""What becomes of tokens once they are sampled: text, stops, bans, healed prompts."""

from .automaton import Automaton
from .ban import BanMatch, BanMatcher
from .decoder import TextDecoder
from .healing import Healer, heal_plan
from .overlap import sequence_overlap
from .stop import StopMatch, StopMatcher
from .transcript import Transcript

__all__ = [
    "Automaton",
    "BanMatch",
    "BanMatcher",
    "Healer",
    "StopMatch",
    "StopMatcher",
    "TextDecoder",
    "Transcript",
    "heal_plan",
    "sequence_overlap",
]
