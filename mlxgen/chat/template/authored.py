"""Rendered text that knows which of its characters the chat template wrote itself.

``Authored`` is a string, used like any other while a template renders, that keeps this knowledge
when strings are cut and joined. Invariant: the text is the same as after the same operation on
plain strings, and a character counts as the template's only if it is. The result of an operation
that is not known here is a plain string, and none of it counts as the template's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Where the template's own characters are: (start, end), ascending, and never adjacent."""


class Authored(str):
    """A string with the spans that the template wrote, ``own``; by default all of it."""

    __slots__ = ("own",)

    own: Spans

    def __new__(cls, text: str, own: Spans | None = None) -> Authored:
        made = super().__new__(cls, text)
        made.own = (((0, len(made)),) if made else ()) if own is None else own
        return made

    @property
    def is_whole(self) -> bool:
        """Whether the template wrote the whole text."""
        return not self or self.own == ((0, len(self)),)

    def __str__(self) -> str:  # what templates print
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (plain(self),)

    # ---- joining ----

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        return joined((self,) * times.__index__())

    __rmul__ = __mul__

    def join(self, parts: Iterable[str], /) -> str:
        return joined(list(parts), self)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return super().replace(old, new, count)
        return joined(self.split(old, count), new)

    # ---- cutting ----

    def cut(self, start: int, end: int) -> str:
        """The text from ``start`` to ``end``, which must not lie outside it."""
        own = tuple(
            (max(first, start) - start, min(last, end) - start)
            for first, last in self.own
            if first < end and last > start
        )
        return Authored(super().__getitem__(slice(start, end)), own)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            place = range(len(self))[key]
            return self.cut(place, place + 1)
        start, end, step = key.indices(len(self))
        return self.cut(start, max(start, end)) if step == 1 else super().__getitem__(key)

    def strip(self, characters: str | None = None, /) -> str:
        return self._stripped(super().lstrip(characters), super().rstrip(characters))

    def lstrip(self, characters: str | None = None, /) -> str:
        return self._stripped(super().lstrip(characters), self)

    def rstrip(self, characters: str | None = None, /) -> str:
        return self._stripped(self, super().rstrip(characters))

    def removeprefix(self, prefix: str, /) -> str:
        return self.cut(len(prefix), len(self)) if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return self.cut(0, len(self) - len(suffix)) if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._placed(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._placed(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[Any]:
        return self._placed(super().splitlines(keepends), 0)

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        head, middle, tail = self._placed(list(super().partition(sep)), 0)
        return head, middle, tail

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        head, middle, tail = self._placed(list(super().rpartition(sep)), 0)
        return head, middle, tail

    # ---- shared by these ----

    def _stripped(self, without_left: str, without_right: str) -> str:
        start, end = len(self) - len(without_left), len(without_right)
        return self.cut(min(start, end), end)

    def _placed(self, parts: Sequence[str], gap: int) -> list[str]:
        """The parts of a split, with a separator of ``gap`` characters between them.

        0: no part begins with what was left out, as with white space.
        """
        found, place = [], 0
        for part in parts:
            if not gap:
                place = self.find(part, place)
            found.append(self.cut(place, place + len(part)))
            place += len(part) + gap
        return found


def joined(parts: Sequence[str], between: str = "") -> str:
    """``between.join(parts)``, with the spans of each."""
    text = str.join(between, parts)
    if not isinstance(between, Authored) and not any(isinstance(part, Authored) for part in parts):
        return text
    spans: list[tuple[int, int]] = []
    place = 0
    for i, part in enumerate(parts):
        if i and between:
            _extend(spans, between, place)
            place += len(between)
        _extend(spans, part, place)
        place += len(part)
    return Authored(text, tuple(spans))


def _extend(spans: list[tuple[int, int]], text: str, place: int) -> None:
    for start, end in own_of(text):
        if spans and spans[-1][1] == start + place:
            spans[-1] = (spans[-1][0], end + place)
        else:
            spans.append((start + place, end + place))


def own_of(text: str) -> Spans:
    """The spans of a string of any kind."""
    return text.own if isinstance(text, Authored) else ()


def plain(text: str) -> str:
    """The same text as a plain string."""
    return str.__str__(text)
