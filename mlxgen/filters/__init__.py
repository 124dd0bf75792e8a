"""Constraints on the next token: filters, their composition and their rewinds. No MLX here."""

from .after import After
from .any_of import AnyOf, FirstToken
from .callback import Allow
from .checked import Checked
from .constraint import AllOf, Constraint, fill_masks
from .ends import EndSearch
from .gbnf import is_gbnf, lark_of
from .grammar import Choice, Lark, Regex, Substring
from .json_schema import JsonObject, JsonSchema
from .lm_format_enforcer import LMFormatEnforcer
from .outlines_core import OutlinesCore
from .protocol import (
    Filter,
    Int32Words,
    Objection,
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
    "AnyOf",
    "Checked",
    "Choice",
    "Constraint",
    "EndSearch",
    "Filter",
    "FirstToken",
    "Int32Words",
    "JsonObject",
    "JsonSchema",
    "LMFormatEnforcer",
    "Lark",
    "Objection",
    "OutlinesCore",
    "Regex",
    "Replay",
    "Specification",
    "Substring",
    "allows",
    "fill_masks",
    "is_gbnf",
    "lark_of",
    "no_tokens",
    "tokens_of",
    "without_tokens",
    "word_count",
    "words_of",
]
