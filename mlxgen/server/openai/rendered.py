"""Chats that clients send, as tokens.

Owns their rendering within limits. Invariant: control tokens in the tokens are the template's.
"""

from __future__ import annotations

from ...chat.template.format import Chat, Rendered
from ...chat.template.sandbox import RenderLimits
from ...chat.turn import Plan, Turn, plan_turn
from ...errors import MlxgenError
from ..errors import as_request_error
from ..served_model import ServedModel

_FIELDS = {"prompt": "messages", "template": "chat_template_kwargs"}


def planned(turn: Turn, model: ServedModel) -> Plan:
    """Plan a turn; raises ``RequestError``, which names the field at fault."""
    try:
        return plan_turn(turn, model.dialect, RenderLimits())
    except MlxgenError as error:
        raise as_request_error(error, _FIELDS) from error


def rendered_for(chat: Chat, model: ServedModel) -> Rendered:
    """Render a chat; raises ``RequestError``, which names the field at fault."""
    try:
        return Rendered.of(chat, model.vocabulary, RenderLimits())
    except MlxgenError as error:
        raise as_request_error(error, _FIELDS) from error
