"""Where a text stands, with everything that is finished left out.

After a finished value it rarely matters what the value was: in JSON, and in most of what
grammars describe, what may follow depends on the brackets that are open, the latest key of
each object, and the number of items in each list. That is what an outline keeps. It is a
guess, good enough to say what to try first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[bytes | int, ...]
"""For each open bracket: the latest key of an object, or the number of commas of a list."""

_KEY = 64  # bytes of a key that count


class Outline(NamedTuple):
    """The outline of a text."""

    place: Place = ()
    sign: bytes = b""  # the latest one outside of strings; '"' after what is finished
    string: bytes | None = None  # the beginning of the open string
    escaped: bool = False
    latest: bytes | None = None  # the string that was closed last, which may be a key
    since: int = 0  # bytes since the last sign

    def then(self, pieces: Iterable[bytes], finished: list[Place]) -> Outline:
        """The outline after these pieces; places at which a value ends go to ``finished``."""
        place, sign, string, escaped, latest, since = self
        for piece in pieces:
            if string is not None:
                if piece == b'"' and not escaped:
                    if sign == b":" or not self._holds_keys(place):
                        finished.append(place)
                    latest, string, sign, since = string, None, piece, 0
                    continue
                escaped = piece == b"\\" and not escaped
                string = string if len(string) > _KEY else string + piece
                since += len(piece)
            elif piece == b'"':
                string, since = b"", 0
            elif piece == b"{":
                place, sign, since = (*place, b""), piece, 0
            elif piece in (b"[", b"("):
                place, sign, since = (*place, 0), piece, 0
            elif piece in (b"}", b"]", b")"):
                finished += (place, place[:-1])
                place, sign, since = place[:-1], b'"', 0
            elif piece == b":" and latest is not None:
                place, sign, since = (*place[:-1], latest), piece, 0
                latest = None
            elif piece == b",":
                finished.append(place)
                if place and isinstance(place[-1], int):
                    place = (*place[:-1], place[-1] + 1)
                sign, since = piece, 0
            else:
                since += len(piece)
        return Outline(place, sign, string, escaped, latest, since)

    @property
    def is_value(self) -> bool:
        """Whether the open string is a value, not a key."""
        return self.sign == b":" or not self._holds_keys(self.place)

    def is_within(self, finished: set[Place]) -> bool:
        """Whether the text is in the middle of a value at one of these places."""
        place, depth = self.place, len(self.place) - 1
        if self.sign == b":" or (self.sign != b'"' and place and not self._holds_keys(place)):
            depth += 1
        return any(place[:length] in finished for length in range(1, depth + 1))

    @staticmethod
    def _holds_keys(place: Place) -> bool:
        return bool(place) and isinstance(place[-1], bytes)
