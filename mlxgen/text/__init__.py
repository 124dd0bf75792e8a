"""From sampled tokens to text: decoding, stops, bans and token healing."""

from ..search import Patterns, first_mark, sequence_overlap
from .ban import BanMatch, BanMatcher
from .decoder import TextDecoder
from .healing import Healer, heal_plan
from .stop import StopMatch, StopMatcher
from .thoughts import ThinkingMarks, Thoughts
from .transcript import Transcript

__all__ = [
    "BanMatch",
    "BanMatcher",
    "Healer",
    "Patterns",
    "StopMatch",
    "StopMatcher",
    "TextDecoder",
    "ThinkingMarks",
    "Thoughts",
    "Transcript",
    "first_mark",
    "heal_plan",
    "sequence_overlap",
]
