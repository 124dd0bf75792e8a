"""A chat that was rendered already, as a prompt for the engine.

Owns the tokens that the chat template gave, so that they are made once for all choices.
Must never know a request. Invariant: behaves as the chat that it was made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.prompt import Chat
from ...tokens import Token, Vocabulary


@dataclass(frozen=True, slots=True)
class Rendered(Chat):
    """``ids`` are the chat's tokens."""

    ids: tuple[Token, ...] = ()

    @classmethod
    def of(cls, chat: Chat, vocabulary: Vocabulary) -> Rendered:
        """Render a chat; ``PromptError`` with the template's reason."""
        ids = tuple(chat.tokens(vocabulary))
        return cls(chat.messages, chat.tools, chat.template, chat.continue_final_message, ids)

    def tokens(self, vocabulary: Vocabulary) -> list[Token]:
        """The tokens."""
        return list(self.ids)
