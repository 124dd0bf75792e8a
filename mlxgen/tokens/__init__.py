"""The tokens of one tokenizer: ids and bytes."""

from __future__ import annotations

from .common import in_common
from .infill import Infill
from .vocabulary import Token, Vocabulary

__all__ = ["Infill", "Token", "Vocabulary", "in_common"]
