"""Constraint: all filters of one sequence as the engine sees them.

It does what filters leave to it: end tokens, ids that the tokenizer does not have, and
messages that name the filters.

Invariant: a mask allows an end token exactly if every filter may end, never an id at or
beyond the vocabulary's size, and otherwise what every filter allows. All filters have the
same history: an operation happens in all of them, or raises and happens in none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np

from ..errors import DeadEndError, FilterError, OptionError, RewindError
from ..forks import forked
from ..tokens import Token, Vocabulary
from .checked import Checking
from .compose import (
    AllOf,
    Intersection,
    bind_opening,
    checking,
    checks,
    hint,
    objection,
    unchecked,
)
from .matcher import GrammarFilter
from .protocol import (
    Filter,
    Int32Words,
    Specification,
    is_filter,
    is_specification,
    left_out,
    tokens_of,
    word_count,
    words_of,
)
from .reasons import shortened
from .replay import WholeFilter, whole


class Outlook(NamedTuple):
    """What may follow a position: the tokens (``mask``, None: all), the end, anything but it."""

    mask: Int32Words | None
    can_end: bool
    is_open: bool


class Constraint:
    """The filters of one sequence: what may come next, what must, and whether it may end.

    filters       specifications, which are bound, and filters that were fed nothing so far,
                  which are used as they are; if there is any, and the tokenizer has fewer ids
                  than the logits, the mask is never None
    vocab_size    the width of the logits
    strips_space  whether the text loses its leading space, as with tokenizers that have
                  ``strips_space``; pass False if it continues a raw prompt

    GrammarError if a specification cannot be met.
    """

    def __init__(
        self,
        filters: Sequence[Specification | Filter],
        vocabulary: Vocabulary,
        vocab_size: int,
        *,
        strips_space: bool | None = None,
    ) -> None:
        strips = vocabulary.strips_space if strips_space is None else strips_space
        flat: Sequence[Specification | Filter] = _flat(filters)
        self.vocabulary = vocabulary
        self.vocab_size = vocab_size
        self.strips_space = strips
        self.filters = flat  # as they were passed
        running = [_running(f, vocabulary, vocab_size, strips) for f in flat]
        self.filter: WholeFilter  # all of them as one
        self.filter = whole(running[0]) if len(running) == 1 else Intersection(running)
        self.checks = checks(self.filter)  # whether finished texts may be taken back
        # Whether every filter goes back by itself, without being fed the text again
        self.rewinds = all(getattr(part, "rewinds", True) for part in self.parts)
        self.left_out = tuple(dict.fromkeys(note for spec in flat for note in left_out(spec)))
        self._fed: list[Token] = []  # every token fed, in order
        self._ends: list[int] = []  # how many had been fed after each position
        self._rows = _Rows.of(vocabulary, vocab_size)
        self.due = False  # whether a part is complete to which the filters may have an objection
        self.unchecked = 0  # so many of the newest positions may be taken back at the end of it
        self.outlook: Outlook | None = None  # of this position, as soon as it is known
        self._may_end: bool | None = None  # whether the text may end here, as soon as it is known
        self._row = np.empty(self._rows.words, dtype=np.int32)  # what filters write to

    @property
    def parts(self) -> Sequence[WholeFilter]:
        """The running filters."""
        if len(self.filters) != 1 and isinstance(self.filter, Intersection):
            return self.filter.parts
        return (self.filter,)

    @property
    def fed(self) -> int:
        """How many tokens the filters were fed."""
        return len(self._fed)

    def __len__(self) -> int:
        """Positions of the history."""
        return len(self._ends)

    def fed_since(self, position: int) -> list[list[Token]]:
        """The tokens that each position from ``position`` on fed."""
        ends = [self._ends[position - 1] if position else 0, *self._ends[position:]]
        return [self._fed[a:b] for a, b in pairwise(ends)]

    # ---- what may come next ----------------------------------------------------------------

    def mask(self) -> Int32Words | None:
        """The allowed next tokens, read-only; None: no restriction at all.

        DeadEndError, naming the filters, if no token is allowed and the text may not end.
        """
        return (self.outlook or self.look()).mask

    @property
    def ordinary(self) -> Int32Words:
        """All tokens but those that end the text."""
        return self._rows.ordinary

    def look(self) -> Outlook:
        """The outlook of this position, which is kept until the next step. Raises as ``mask``."""
        rows = self._rows
        row = self._row
        filled = self.filter.fill(row)
        can_end = self.filter.can_end() if self._may_end is None else self._may_end
        is_open = True
        mask: Int32Words | None
        if filled:
            mask = np.bitwise_and(row, rows.ordinary)
            is_open = mask.tobytes() != rows.nothing  # faster than any()
            if can_end:
                np.bitwise_or(mask, rows.ends, out=mask)
            elif not is_open:
                raise DeadEndError(self._dead_end())
        elif not self.filters or (can_end and rows.whole):
            mask = None
        else:
            mask = rows.everything if can_end else rows.ordinary
        self._may_end = can_end
        self.outlook = Outlook(mask, can_end, is_open)
        return self.outlook

    def _dead_end(self) -> str:
        alone = [
            f"{_name(filter)} allows {self._count(part)}"
            for filter, part in zip(self.filters, self.parts, strict=True)
        ]
        together = ", and together they allow none" if len(alone) > 1 else ""
        return (
            f"no token is allowed after {len(self)} tokens, and the text may not end: "
            f"{', '.join(alone)}{together}"
        )

    def _count(self, part: Filter) -> str:
        row = np.zeros(self._rows.words, dtype=np.int32)
        if not part.fill(row):
            return "all"
        return str(len(tokens_of(row & self._rows.ordinary)) or "none")

    def can_end(self) -> bool:
        """Whether the text may end here."""
        if self._may_end is None:
            self._may_end = self.filter.can_end()
        return self._may_end

    def ended(self) -> bool:
        """Whether nothing but the end is possible. A mask is computed only where it may end."""
        if self._may_end is None:
            self._may_end = self.filter.can_end()
        return self._may_end and not (self.outlook or self.look()).is_open

    def forced(self) -> list[Token]:
        """Tokens that must come next: every filter agrees on them, and the text may not end.

        They are spelled as the tokenizer spells the forced text here. An empty list only means
        that none are known: filters that know nothing of this are asked for a mask, of which a
        single token is forced, and grammars are not, because they know.
        """
        if self.can_end() if self._may_end is None else self._may_end:
            return []
        if forced := self.filter.forced():
            run = list(takewhile(self._rows.is_ordinary, forced))
            if run:
                return run
        if isinstance(self.filter, GrammarFilter) and self.outlook is None:
            return []
        only = self.only()
        return [] if only is None else [only]

    def only(self) -> Token | None:
        """The one token that the mask allows, even an end token; ``None`` if it allows more."""
        mask = self.mask()
        if mask is None:
            return None
        words = np.flatnonzero(mask)
        bits = int(mask[words[0]]) & 0xFFFFFFFF
        if len(words) > 1 or bits & (bits - 1):
            return None
        return int(words[0]) * 32 + bits.bit_length() - 1

    def objection(self) -> tuple[str, int, bool] | None:
        """What is wrong with the text, which may end here, or is ``due``; the position from which
        on it is to be drawn again; and whether it must not stand."""
        found = objection(self.filter)
        if found is None:
            return None
        first = bisect_right(self._ends, len(self._fed) - found.tokens)
        return found.reason, first, found.is_final

    def checking(self) -> Checking | None:
        """The check of what is ``due``, or of a text that ends here, if it may take its time."""
        return checking(self.filter)

    def _note_checks(self) -> None:
        """Notes what is to be checked of a text that may be taken back."""
        count, self.due = unchecked(self.filter)
        first = bisect_right(self._ends, len(self._fed) - count)
        self.unchecked = len(self._ends) - first if count else 0

    def hint(self) -> list[Token]:
        """Allowed tokens that lead towards an end, if a filter knows any."""
        run = list(hint(self.filter))
        return run[: self.validate(run)]

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, would be taken; changes nothing."""
        return self.filter.validate(list(takewhile(self._rows.is_ordinary, tokens)))

    # ---- the history -----------------------------------------------------------------------

    def advance(self, token: Token) -> None:
        """One position that feeds its token to every filter. FilterError if one refuses it."""
        if not 0 <= token < self._rows.limit or token in self._rows.eos:
            raise self._refused(token)
        self.filter.advance(token)
        self._fed.append(token)
        self._ends.append(len(self._fed))
        self.outlook = self._may_end = None
        if self.checks:
            self._note_checks()

    def advance_as(self, fed: Sequence[Token]) -> None:
        """One position that feeds these tokens instead: () for a token that was withheld."""
        start = len(self._fed)
        try:
            for token in fed:
                if not self._rows.is_ordinary(token):
                    raise self._refused(token)
                self.filter.advance(token)
                self._fed.append(token)
        except BaseException:
            if len(self._fed) > start:
                self.filter.rewind(start)
                del self._fed[start:]
            raise
        self._ends.append(len(self._fed))
        if fed:
            self.outlook = self._may_end = None
        if self.checks:
            self._note_checks()

    def _refused(self, token: Token) -> FilterError:
        if token in self.vocabulary.eos:
            return FilterError(f"token {token} ends the text and is never fed to filters")
        most = self._rows.limit - 1
        return FilterError(f"token {token} is outside the vocabulary; expected 0 to {most}")

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` positions; does nothing if there are no more than that."""
        if to >= len(self._ends):
            return
        if to < 0:
            raise RewindError(f"cannot rewind to position {to}", len(self._ends))
        fed = self._ends[to - 1] if to else 0
        if fed < len(self._fed):
            self.filter.rewind(fed)
            del self._fed[fed:]
        del self._ends[to:]
        self.outlook = self._may_end = None
        if self.checks:
            self._note_checks()

    def fork(self) -> Constraint:
        """An independent copy. StateError if a filter cannot be copied."""
        shared = ("vocabulary", "filters", "_rows", "outlook")
        return forked(self, shared=shared, _row=np.empty_like(self._row))


def fill_masks(constraints: Iterable[Constraint]) -> None:
    """Looks at every constraint, while the device runs. ``mask()`` raises what goes wrong."""
    for constraint in constraints:
        if constraint.outlook is None:
            with suppress(Exception):  # a caller's filter may raise anything
                constraint.look()


class _Rows:
    """The rows that all constraints share that have one vocabulary and one width of logits."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.words = word_count(vocab_size)
        self.eos = vocabulary.eos
        self.limit = min(vocab_size, vocabulary.size)
        self.ends = words_of(vocabulary.eos, vocab_size)
        self.ordinary = words_of(np.arange(self.limit), vocab_size) & ~self.ends
        self.everything = self.ordinary | self.ends
        self.nothing = bytes(4 * self.words)
        self.whole = self.limit == vocab_size
        for row in (self.ends, self.ordinary, self.everything):
            row.flags.writeable = False

    @classmethod
    def of(cls, vocabulary: Vocabulary, vocab_size: int) -> _Rows:
        return vocabulary.derived(("rows", vocab_size), lambda: cls(vocabulary, vocab_size))

    def is_ordinary(self, token: Token) -> bool:
        """Whether a token may be fed to filters."""
        return 0 <= token < self.limit and token not in self.eos


def _flat(filters: Sequence[Specification | Filter]) -> list[Specification | Filter]:
    if not isinstance(filters, Sequence):
        raise OptionError("filters", f"expected a list of filters, got {filters!r}")
    flat: list[Specification | Filter] = []
    for filter in filters:
        if isinstance(filter, AllOf):
            flat.extend(_flat(filter.specifications))
        elif not is_specification(filter) and not is_filter(filter):
            raise OptionError(
                "filters",
                f"expected filters, got {filter!r}; a filter has bind(tokenizer, vocab_size), or "
                "fill, advance, can_end and reset",
            )
        else:
            flat.append(filter)
    return flat


def _running(
    filter: Specification | Filter, vocabulary: Vocabulary, vocab_size: int, strips: bool
) -> Filter:
    if not is_specification(filter):
        assert is_filter(filter)
        return filter
    if strips:
        return bind_opening(filter, vocabulary, vocab_size)
    return filter.bind(vocabulary, vocab_size)


def _name(filter: Specification | Filter) -> str:
    if not is_specification(filter):
        return type(filter).__name__
    return shortened(repr(filter))
