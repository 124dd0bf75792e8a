"""What drafts from text know of earlier ones, by whose they are.

Owns the texts and habits of each owner, and what all requests to a model have in common: how often
which expectation came true. Invariant: nothing of one owner's is ever shown to another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ...tokens import Token
from .habits import Habits
from .odds import Odds
from .text import TextDrafter
from .texts import Texts

OWNERS = 16  # whose texts are remembered, the latest ones; 7 MiB each at most


class Earlier:
    """See the module. Threads may share it."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Texts, Habits]] = {}
        self._odds = Odds()
        self._lock = threading.Lock()

    def drafter(self, owner: str, prediction: Sequence[Token] = ()) -> TextDrafter:
        """A drafter that knows the earlier texts of an owner and this one, and adds to them."""
        with self._lock:
            own = self._of.pop(owner, None) or (Texts(), Habits())
            self._of[owner] = own  # the latest are last
            if len(self._of) > OWNERS:
                del self._of[next(iter(self._of))]
        if prediction:
            own[0].add(prediction)
        return TextDrafter(*own, self._odds)
