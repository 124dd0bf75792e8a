"""A model's chat format: from messages to a prompt, and from text to an answer. No MLX here."""

from .template.format import Chat

__all__ = ["Chat"]
