"""Replay: makes any filter a part that can be rewound, forked and asked.

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

Invariant: the filter is in the state of a new one that was fed ``fed`` in order. A position
of the history usually feeds its own token; with ``advance_as`` it feeds others, or none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..errors import FilterError, OptionError, RewindError, StateError
from ..tokens import Token
from .protocol import Filter, Int32Words, is_filter


class Replay:
    """A filter with ``rewind`` and ``fork``, counted in positions of the sequence.

    ``filter`` is a filter that was fed nothing so far, or a function that makes one.
    """

    def __init__(self, filter: Filter | Callable[[], Filter], every: int = 64) -> None:
        if every < 1:
            raise OptionError("every", f"expected 1 or more, got {every}")
        self._factory: Callable[[], Filter] | None = None
        if is_filter(filter):
            made = filter
        elif callable(filter):
            self._factory = filter
            made = filter()
        else:
            raise OptionError(
                "filter",
                f"expected a filter or a function that makes one, got {type(filter).__name__}",
            )
        self._every = every
        self._fed: list[Token] = []  # every token fed, in order
        self._ends: list[int] = []  # how many had been fed after each position
        self._copies: list[tuple[int, Filter]] = []  # (tokens fed, a copy made then), ascending
        self._adopt(made)
        self._keeps_copies = self._fork is not None and self._rewind is None
        if self._keeps_copies:
            self._keep_copy()

    def _adopt(self, filter: Filter) -> None:
        self.filter = filter
        self._advance = filter.advance
        self._rewind: Callable[[int], None] | None = getattr(filter, "rewind", None)
        self._fork: Callable[[], Filter] | None = getattr(filter, "fork", None)
        self._forced: Callable[[], Sequence[Token]] = getattr(filter, "forced", tuple)
        self._hint: Callable[[], Sequence[Token]] = getattr(filter, "hint", tuple)
        self._validate: Callable[[Sequence[Token]], int] | None = getattr(filter, "validate", None)

    def _keep_copy(self) -> None:
        assert self._fork is not None
        self._copies.append((len(self._fed), self._fork()))

    def __len__(self) -> int:
        """Positions of the history."""
        return len(self._ends)

    @property
    def fed(self) -> Sequence[Token]:
        """The tokens that the filter was fed."""
        return tuple(self._fed)

    def fed_since(self, position: int) -> list[list[Token]]:
        """The tokens that each position from ``position`` on fed."""
        ends = [self._ends[position - 1] if position else 0, *self._ends[position:]]
        return [self._fed[a:b] for a, b in pairwise(ends)]

    @property
    def rewinds(self) -> bool:
        """Whether the filter rewinds itself."""
        return self._rewind is not None

    # ---- forwards --------------------------------------------------------------------------

    def advance(self, token: Token) -> None:
        """One position that feeds its token. FilterError if it is not allowed."""
        self.advance_as((token,))

    def advance_as(self, fed: Sequence[Token]) -> None:
        """One position that feeds these tokens instead: none, one or several; all or nothing."""
        start = len(self._fed)
        try:
            for token in fed:
                self._advance(token)
                self._fed.append(token)
        except BaseException:
            if len(self._fed) > start:
                self._restore(start)
            raise
        self._ends.append(len(self._fed))
        if self._keeps_copies and len(self._fed) - self._copies[-1][0] >= self._every:
            self._keep_copy()

    # ---- back ------------------------------------------------------------------------------

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` positions; does nothing if there are no more than that."""
        if to >= len(self._ends):
            return
        if to < 0:
            raise RewindError(f"cannot rewind to position {to}", len(self._ends))
        target = self._ends[to - 1] if to else 0
        if target < len(self._fed):
            self._restore(target)
        del self._ends[to:]

    def _restore(self, target: int) -> None:
        """Brings the filter to the state after the first ``target`` tokens."""
        if self._rewind is not None:
            self._rewind(target)
        elif self._keeps_copies:
            kept = len(self._copies)
            while self._copies[kept - 1][0] > target:
                kept -= 1
            count, nearest = self._copies[kept - 1]
            twin: Filter = nearest.fork()  # type: ignore[attr-defined]
            self._adopt(_fed(twin, self._fed[count:target]))
            del self._copies[kept:]
        elif self._factory is not None:
            self._adopt(_fed(self._factory(), self._fed[:target]))
        else:
            self.filter.reset()
            _fed(self.filter, self._fed[:target])
        del self._fed[target:]

    def reset(self) -> None:
        """Back to the state before the first token."""
        self.rewind(0)

    def fork(self) -> Replay:
        """An independent copy. StateError if the filter cannot be copied at all."""
        twin = object.__new__(Replay)
        twin._factory = self._factory
        twin._every = self._every
        twin._fed = self._fed.copy()
        twin._ends = self._ends.copy()
        twin._copies = self._copies.copy()  # kept copies are never fed, only copied again
        twin._adopt(self._copied())
        twin._keeps_copies = self._keeps_copies
        return twin

    def _copied(self) -> Filter:
        if self._fork is not None:
            return self._fork()
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

    def asked(self) -> Sequence[Filter]:
        """The filters that ``fill`` asks."""
        return (self.filter,)

    def can_end(self) -> bool:
        """As ``Filter.can_end``."""
        return self.filter.can_end()

    def forced(self) -> Sequence[Token]:
        """Tokens that must come next, as far as the filter says."""
        return self._forced()

    def hint(self) -> Sequence[Token]:
        """Tokens that lead towards an end, if the filter knows any."""
        return self._hint()

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, the filter would take; changes nothing."""
        if self._validate is not None:
            return self._validate(tokens)
        copied = self._rewind is None and self._fork is not None
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
