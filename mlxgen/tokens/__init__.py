"""Ids and bytes: what one tokenizer's tokens are."""

from __future__ import annotations

from .vocabulary import Token, Vocabulary

__all__ = ["Token", "Vocabulary"]
