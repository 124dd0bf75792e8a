"""What a model cannot do, although others can."""

from __future__ import annotations

from ..errors import OptionError


class UnsupportedError(OptionError):
    """Something was asked for that the format of this model's chats has no way to do."""
