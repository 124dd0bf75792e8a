"""Replay: makes any filter one that can be rewound, forked and asked.

``Replay`` keeps what one filter was fed, and chooses how to bring the filter back to an
earlier state. A rewind is done in one of these ways:

    the filter has ``rewind``    it rewinds itself
    the filter has ``fork``      copies are kept every ``every`` tokens; the last one before
                                 the target is copied again and fed the few tokens up to it
    neither                      it is made anew (with a factory) or reset, and fed the history
                                 up to the target

The first two take no longer after a long history than after a short one. ``copy.deepcopy``
is not used for rewinds: it may copy large tables, or share what must not be shared, of a
filter that was not prepared for it. Only ``fork`` of a filter with neither ``fork`` nor a
factory falls back to it.

A filter that has ``rewind``, ``fork``, ``forced`` and ``validate`` needs no ``Replay``, and gets
none: see ``whole``.

Invariant: the filter is in the state of a new one that was fed ``fed`` in order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import FilterError, OptionError, RewindError, StateError
from ..forks import forked
from ..tokens import Token
from .protocol import Filter, Int32Words, is_filter


class WholeFilter(Filter, Protocol):
    """A filter with the methods that it may lack; see ``protocol`` for what they do."""

    def rewind(self, to: int) -> None: ...
    def fork(self) -> WholeFilter: ...
    def forced(self) -> Sequence[Token]: ...
    def validate(self, tokens: Sequence[Token]) -> int: ...


def whole(filter: Filter) -> WholeFilter:
    """The filter itself if it has all methods, else in a ``Replay``."""
    if all(hasattr(filter, name) for name in ("rewind", "fork", "forced", "validate")):
        return filter  # type: ignore[return-value]
    return Replay(filter)


class Replay:
    """A filter with ``rewind``, ``fork``, ``forced`` and ``validate``.

    ``filter`` is a filter that was fed nothing so far, or a function that makes one.
    """

    def __init__(self, filter: Filter | Callable[[], Filter], every: int = 64) -> None:
        if every < 1:
            raise OptionError("every", f"expected 1 or more, got {every}")
        self._factory: Callable[[], Filter] | None = None
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
        self._copies: list[tuple[int, Filter]] = []  # (tokens fed, a copy made then), ascending
        self.rewinds = hasattr(self.filter, "rewind")  # whether the filter rewinds itself
        self._forks = hasattr(self.filter, "fork")
        self._keep_copy()

    def _keep_copy(self) -> None:
        if self._forks and not self.rewinds:
            self._copies.append((len(self._fed), self._copied()))

    @property
    def fed(self) -> Sequence[Token]:
        """The tokens that the filter was fed."""
        return tuple(self._fed)

    # ---- forwards and back -----------------------------------------------------------------

    def advance(self, token: Token) -> None:
        """As ``Filter.advance``."""
        self.filter.advance(token)
        self._fed.append(token)
        if self._copies and len(self._fed) - self._copies[-1][0] >= self._every:
            self._keep_copy()

    def rewind(self, to: int) -> None:
        """Goes back to the first ``to`` tokens; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} tokens", len(self._fed))
        if to < len(self._fed):
            self._restore(to)

    def _restore(self, target: int) -> None:
        if self.rewinds:
            self.filter.rewind(target)  # type: ignore[attr-defined]
        elif self._copies:
            kept = len(self._copies)
            while self._copies[kept - 1][0] > target:
                kept -= 1
            count, nearest = self._copies[kept - 1]
            twin: Filter = nearest.fork()  # type: ignore[attr-defined]
            self.filter = _fed(twin, self._fed[count:target])
            del self._copies[kept:]
        elif self._factory is not None:
            self.filter = _fed(self._factory(), self._fed[:target])
        else:
            self.filter.reset()
            _fed(self.filter, self._fed[:target])
        del self._fed[target:]

    def reset(self) -> None:
        """Back to the state before the first token."""
        self.rewind(0)

    def fork(self) -> Replay:
        """An independent copy. StateError if the filter cannot be copied at all."""
        # Kept copies are never fed, only copied again.
        return forked(self, shared=("_factory",), filter=self._copied())

    def _copied(self) -> Filter:
        if self._forks:
            twin: Filter = self.filter.fork()  # type: ignore[attr-defined]
            return twin
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

    # ---- questions -------------------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        """As ``Filter.fill``."""
        return self.filter.fill(row)

    @property
    def parts(self) -> Sequence[Filter]:
        """The filter of which it is made."""
        return (self.filter,)

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return self.filter.can_end()

    def forced(self) -> Sequence[Token]:
        """Tokens that must come next, as far as the filter says."""
        forced: Callable[[], Sequence[Token]] = getattr(self.filter, "forced", tuple)
        return forced()

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, the filter would take; changes nothing."""
        validate = getattr(self.filter, "validate", None)
        if validate is not None:
            count: int = validate(tokens)
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


def _fed(filter: Filter, tokens: Sequence[Token]) -> Filter:
    for token in tokens:
        filter.advance(token)
    return filter
