"""The arguments of a call that come back with its conversation, for a chat template.

Some templates take them only as an object. Clients send the text that a model wrote, which may not
quite be JSON. Invariant: what is JSON means what it says; any other text is repaired or kept.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from ..template.values import mapped

_BACKSLASH = re.compile(r"""\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(')|)""")


def returned(arguments: str) -> dict[str, Any] | str:
    """The object in a text; the text if there is none. No text is no arguments.

    A backslash that escapes nothing stands for itself, as in ``"\\d+"``, and so does a line break
    in a string; half a character becomes a replacement character.
    """
    if not arguments.strip():
        return {}
    for text in (arguments, _BACKSLASH.sub(_escaped, arguments)):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text, strict=False)
            return mapped(value, _whole) if isinstance(value, dict) else arguments
    return arguments


def _escaped(backslash: re.Match[str]) -> str:
    if backslash[1]:
        return backslash[0]
    return backslash[2] or r"\\"


def _whole(text: str) -> str:
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
