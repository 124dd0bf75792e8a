"""The tokens of one tokenizer: ids and bytes."""

from __future__ import annotations

from .infill import Infill
from .vocabulary import AnyTokenizer, Token, Vocabulary, in_common

__all__ = ["AnyTokenizer", "Infill", "Token", "Vocabulary", "in_common"]
