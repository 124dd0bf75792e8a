"""What a draw comes to, and the count of what happened.

Owns two small values that the row gives to its callers. Must never decide anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """What a draw came to."""

    NEXT = "accepted"
    AGAIN = "declined, perhaps with tokens before it: draw again where the history ends"
    END = "accepted, and the generation has ended"


@dataclass(slots=True)
class Tally:
    """What happened so far, for ``Usage``."""

    forced: int = 0
    rewound: int = 0
    redraws: int = 0
    incomplete: str = ""
