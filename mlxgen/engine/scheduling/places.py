"""How many sequences may run at a time: fewer for a while after the model failed with several of
them together and with none alone."""

from __future__ import annotations

_CALM = 256  # steps without a failure after which more may run again
_LONGEST = 1 << 14


class Places:
    """``now`` of ``most`` places."""

    __slots__ = ("_calm", "_patience", "most", "now")

    def __init__(self, most: int) -> None:
        self.most = self.now = most
        self._calm = 0
        self._patience = _CALM

    def failed(self, count: int) -> None:
        """The model failed with ``count`` together: half of these, and for longer each time."""
        if self.now < self.most:
            self._patience = min(2 * self._patience, _LONGEST)
        self.now = max(1, count // 2)
        self._calm = 0

    def ran(self) -> None:
        """A step went well."""
        if self.now == self.most:
            return
        self._calm += 1
        if self._calm >= self._patience:
            self.now, self._calm = min(2 * self.now, self.most), 0
