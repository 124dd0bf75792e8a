"""Counts of what happened in one generation, for ``Usage``."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True)
class Tally:
    """Tokens that were ``forced``, taken back (``rewound``) or declined at once (``redraws``).

    ``incomplete``: why the text does not end validly, if ``close_json`` asked for that.
    """

    forced: int = 0
    rewound: int = 0
    redraws: int = 0
    incomplete: str = ""

    def fork(self) -> Tally:
        """An independent copy."""
        return replace(self)
