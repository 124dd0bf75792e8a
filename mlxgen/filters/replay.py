"""Replay: lets any filter be rewound, forked and asked.

``Replay`` keeps the tokens that a filter was fed, and brings the filter back to an earlier
state in one of these ways:

    the filter has ``rewind``    it rewinds itself
    the filter has ``fork``      copies are kept every ``every`` tokens; the last one before
                                 the target is copied again and fed the few tokens up to it
    neither                      it is made anew (with a factory) or reset, and fed the history
                                 up to the target

The first two take no longer after a long history than after a short one. Rewinds do not use
``copy.deepcopy``: for a filter that was not prepared for it, it may copy large tables, or share
what must not be shared. Only ``fork`` of a filter with neither ``fork`` nor a factory falls back
to it.

Invariant: the filter is in the state of a new one that was fed ``fed`` in order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import FilterError, OptionError, RewindError, StateError
from ..forks import forked
from ..tokens import Token
from ..workers import Work
from .protocol import Filter, Int32Words, Objection, Running, is_filter

T = TypeVar("T")


def whole(filter: Filter) -> Running:
    """The filter itself if it is a ``Running``, otherwise a ``Replay`` of it."""
    return filter if isinstance(filter, Running) else Replay(filter)


class Replay(Running):
    """Any filter, with ``rewind``, ``fork``, ``forced``, ``validate`` and the rest of ``Running``.

    ``filter`` is a filter that was fed nothing so far, or a function that makes one.
    """

    def __init__(self, filter: Filter | Callable[[], Filter], every: int = 64) -> None:
        if every < 1:
            raise OptionError("every", f"expected 1 or more, got {every}")
        self._factory: Callable[[], Filter] | None = None
        self.filter: Any  # it may have more methods than a filter must have
        if is_filter(filter):
            self.filter = filter
        elif callable(filter):
            self._factory = filter
            self.filter = filter()
        else:
            raise OptionError(
                "filter",
                f"expected a filter or a function that makes one, got {type(filter).__name__}",
            )
        self._every = every
        self._fed: list[Token] = []
        self._copies: list[tuple[int, Any]] = []  # (tokens fed, a copy made then), ascending
        self.rewinds = hasattr(self.filter, "rewind")
        self.checks = getattr(self.filter, "checks", False)
        self._forks = hasattr(self.filter, "fork")
        if self._forks and not self.rewinds:
            self._copies.append((0, self._copied()))

    @property
    def fed(self) -> Sequence[Token]:
        """The tokens that the filter was fed."""
        return tuple(self._fed)

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        self.filter.advance(token)
        self._fed.append(token)
        if self._copies and len(self._fed) - self._copies[-1][0] >= self._every:
            self._copies.append((len(self._fed), self._copied()))

    def rewind(self, to: int) -> None:
        """Goes back to the first ``to`` tokens; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} tokens", len(self._fed))
        if to < len(self._fed):
            self._restore(to)

    def _restore(self, target: int) -> None:
        if self.rewinds:
            self.filter.rewind(target)
        elif self._copies:
            kept = len(self._copies)
            while self._copies[kept - 1][0] > target:
                kept -= 1
            count, nearest = self._copies[kept - 1]
            self.filter = _fed(nearest.fork(), self._fed[count:target])
            del self._copies[kept:]
        elif self._factory is not None:
            self.filter = _fed(self._factory(), self._fed[:target])
        else:
            self.filter.reset()
            _fed(self.filter, self._fed[:target])
        del self._fed[target:]

    def fork(self) -> Replay:
        """An independent copy. StateError if the filter cannot be copied at all."""
        # Kept copies are never fed, only copied again.
        return forked(self, shared=("_factory",), filter=self._copied())

    def _copied(self) -> Any:
        if self._forks:
            return self.filter.fork()
        if self._factory is not None:
            return _fed(self._factory(), self._fed)
        try:
            return copy.deepcopy(self.filter)
        except Exception as error:
            name = type(self.filter).__name__
            raise StateError(
                f"{name} cannot be copied ({error}); give it a fork method, or pass Replay a "
                "function that makes it"
            ) from error

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, the filter would take; changes nothing."""
        if hasattr(self.filter, "validate"):
            count: int = self.filter.validate(tokens)
            return count
        copied = self._forks and not self.rewinds
        filter = self._copied() if copied else self.filter
        taken = 0
        try:
            for token in tokens:
                filter.advance(token)
                taken += 1
        except FilterError:
            pass
        finally:
            if taken and not copied:
                self._restore(len(self._fed))
        return taken

    # ---- what the filter says by itself ------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        filled: bool = self.filter.fill(row)
        return filled

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        can: bool = self.filter.can_end()
        return can

    def forced(self) -> Sequence[Token]:
        return self._said("forced", super().forced)

    def hint(self) -> Sequence[Token]:
        return self._said("hint", super().hint)

    def unchecked(self) -> tuple[int, bool]:
        return self._said("unchecked", super().unchecked)

    def objection(self, *, ends: bool = False) -> Objection | Work | None:
        return self._said("objection", super().objection)

    def _said(self, name: str, otherwise: Callable[[], T]) -> T:
        ask: Callable[[], T] = getattr(self.filter, name, otherwise)
        return ask()


def _fed(filter: Any, tokens: Sequence[Token]) -> Any:
    for token in tokens:
        filter.advance(token)
    return filter
