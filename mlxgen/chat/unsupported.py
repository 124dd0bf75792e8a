"""What other models can do and this one cannot."""

from __future__ import annotations

from ..errors import OptionError


class UnsupportedError(OptionError):
    """A request needs something that the chat format of this model does not have."""
