"""A model's chat format: how messages become its prompt, and its text an answer. No MLX here."""

from .template.format import Chat

__all__ = ["Chat"]
