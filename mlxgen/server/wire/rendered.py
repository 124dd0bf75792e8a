"""A chat that was rendered already, as a prompt for the engine.

Owns the tokens that the chat template gave, so that they are made once for all choices, and the
rendering of what a client sends. Must never know a request. Invariant: behaves as the chat that it
was made of; a client's chat is rendered within limits, and its control tokens are the template's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...chat.sandbox import RenderLimits
from ...engine.prompt import Chat
from ...errors import MlxgenError
from ...tokens import Token, Vocabulary
from .errors import as_request_error
from .served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Rendered(Chat):
    """``ids`` are the chat's tokens."""

    ids: tuple[Token, ...] = ()

    @classmethod
    def of(cls, chat: Chat, vocabulary: Vocabulary, limits: RenderLimits | None = None) -> Rendered:
        """Render a chat; raises as ``Chat.tokens`` does."""
        ids = tuple(chat.tokens(vocabulary, limits))
        known = {field.name: getattr(chat, field.name) for field in fields(Chat)}
        return cls(**known, ids=ids)

    def tokens(self, vocabulary: Vocabulary, limits: RenderLimits | None = None) -> list[Token]:
        """The tokens."""
        return list(self.ids)


def rendered_for(chat: Chat, model: ServedModel) -> Rendered:
    """Render a chat that a client sent; ``RequestError`` naming the field that is at fault."""
    try:
        return Rendered.of(chat, model.vocabulary, RenderLimits())
    except MlxgenError as error:
        fields = {"prompt": "messages", "template": "chat_template_kwargs"}
        raise as_request_error(error, fields) from error
