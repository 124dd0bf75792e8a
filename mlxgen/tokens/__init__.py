"""The tokens of one tokenizer: ids and bytes."""

from __future__ import annotations

from .vocabulary import Token, Vocabulary

__all__ = ["Token", "Vocabulary"]
