"""The last conversation, kept in a file of the person's own, for ``--resume``."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from ..errors import OptionError
from .conversation import Conversation
from .files import read_json, replaced


def place() -> Path:
    """The file: ``mlxgen/last_chat.json`` in the folder for the state of programs."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "mlxgen" / "last_chat.json"


def keep(conversation: Conversation) -> None:
    """Write a conversation there, readable by its person alone. That it cannot be written, as on a
    full disk, does not disturb the chat."""
    path = place()
    text = json.dumps(conversation.as_json(), indent=2, ensure_ascii=False) + "\n"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replaced(path, text)


def resumed() -> Conversation:
    """The conversation that was kept; raises ``OptionError`` if there is none."""
    path = place()
    if not path.exists():
        raise OptionError("resume", "there is no chat to go on with; begin one with --chat")
    return Conversation.of_json(read_json("resume", str(path)))
