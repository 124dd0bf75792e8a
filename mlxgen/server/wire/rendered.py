"""Chats that clients send, as tokens.

Owns their rendering within limits. Invariant: control tokens in the tokens are the template's.
"""

from __future__ import annotations

from ...chat.format import Chat, Rendered
from ...chat.sandbox import RenderLimits
from ...errors import MlxgenError
from .errors import as_request_error
from .served_model import ServedModel


def rendered_for(chat: Chat, model: ServedModel) -> Rendered:
    """Render a chat that a client sent; ``RequestError`` naming the field that is at fault."""
    try:
        return Rendered.of(chat, model.vocabulary, RenderLimits())
    except MlxgenError as error:
        fields = {"prompt": "messages", "template": "chat_template_kwargs"}
        raise as_request_error(error, fields) from error
