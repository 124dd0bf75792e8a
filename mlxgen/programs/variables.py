"""Text that the branches of a request share, and who waits for it.

Owns ``Variables``. Must never know programs or tokens. Invariant: whoever waits on a name is
woken by its next change, once, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..engine import Wait
from ..errors import OptionError


class Variables(Mapping[str, str]):
    """Named texts; a mapping to read, with ``set``, ``append`` and ``compare_and_swap``."""

    __slots__ = ("_texts", "_waits")

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._texts: dict[str, str] = {}
        self._waits: dict[str, list[Wait]] = {}
        for name, text in (given or {}).items():
            self.set(name, text)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"Variables({self._texts!r})"

    def set(self, name: str, text: str) -> None:
        """Give a name a text, whatever it had."""
        self._texts[_checked("name", name)] = _checked("text", text)
        for wait in self._waits.pop(name, ()):
            wait.wake()

    def append(self, name: str, text: str) -> str:
        """Put text behind what a name has, or begin with it; returns the whole."""
        self.set(name, self._texts.get(name, "") + _checked("text", text))
        return self._texts[name]

    def compare_and_swap(self, name: str, expected: str | None, text: str) -> bool:
        """Set a name if it has the expected text (``None``: if it has none yet)."""
        if self._texts.get(name) != expected:
            return False
        self.set(name, text)
        return True

    def wait(self, name: str) -> Wait:
        """Something to wait for: the next change of a name."""
        wait = Wait(f"variable {name!r}")
        self._waits.setdefault(name, []).append(wait)
        return wait


def _checked(what: str, value: str) -> str:
    if not isinstance(value, str):
        raise OptionError(what, f"{value!r} is not a string; variables hold text")
    return value
