"""What may be sampled next: filters, their composition and their rewinds. No MLX here."""

from .after import After
from .callback import Allow
from .checked import Checked, Checking
from .closing import EndSearch
from .compose import AllOf
from .constraint import Constraint, fill_masks
from .grammar import Choice, Lark, Regex, Substring
from .json_schema import JsonObject, JsonSchema
from .lmfe import LMFormatEnforcer
from .outlines import OutlinesCore
from .protocol import (
    Filter,
    Int32Words,
    Specification,
    allows,
    no_tokens,
    tokens_of,
    without_tokens,
    word_count,
    words_of,
)
from .replay import Replay

__all__ = [
    "After",
    "AllOf",
    "Allow",
    "Checked",
    "Checking",
    "Choice",
    "Constraint",
    "EndSearch",
    "Filter",
    "Int32Words",
    "JsonObject",
    "JsonSchema",
    "LMFormatEnforcer",
    "Lark",
    "OutlinesCore",
    "Regex",
    "Replay",
    "Specification",
    "Substring",
    "allows",
    "fill_masks",
    "no_tokens",
    "tokens_of",
    "without_tokens",
    "word_count",
    "words_of",
]
