"""Constraint: all filters of one sequence as the engine sees them.

It does what filters leave to it: end tokens, ids that the tokenizer does not have, and
messages that name the filters.

Invariant: a mask allows an end token exactly if every filter may end, never an id at or
beyond the vocabulary's size, and otherwise what every filter allows. All filters have the
same history: an operation happens in all of them, or raises and happens in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from ..errors import DeadEndError, FilterError, OptionError
from ..tokens import Token, Vocabulary
from .compose import AllOf, Intersection, bind_opening
from .protocol import (
    Filter,
    Int32Words,
    Specification,
    is_filter,
    is_specification,
    tokens_of,
    word_count,
    words_of,
)
from .reasons import shortened
from .replay import Replay


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
        self._all = Intersection([_running(f, vocabulary, vocab_size, strips) for f in flat])
        self._rows = _Rows.of(vocabulary, vocab_size)
        self.outlook: Outlook | None = None  # of this position, as soon as it is known
        self._row: Int32Words | None = None  # what filters write to

    @property
    def parts(self) -> tuple[Replay, ...]:
        """The running filters, each in its ``Replay``."""
        return self._all.parts

    def __len__(self) -> int:
        """Positions of the history."""
        return len(self._all)

    # ---- what may come next ----------------------------------------------------------------

    def mask(self) -> Int32Words | None:
        """The allowed next tokens, read-only; None: no restriction at all.

        DeadEndError, naming the filters, if no token is allowed and the text may not end.
        """
        return self._look().mask

    @property
    def ordinary(self) -> Int32Words:
        """All tokens but those that end the text."""
        return self._rows.ordinary

    def _look(self) -> Outlook:
        if self.outlook is not None:
            return self.outlook
        rows = self._rows
        row = self._row
        if row is None:
            row = self._row = np.empty(rows.words, dtype=np.int32)
        filled = self._all.fill(row)
        can_end = self._all.can_end()
        is_open = True
        mask: Int32Words | None
        if filled:
            mask = np.bitwise_and(row, rows.ordinary)
            is_open = mask.tobytes() != rows.nothing  # faster than any()
            if can_end:
                np.bitwise_or(mask, rows.ends, out=mask)
            elif not is_open:
                raise DeadEndError(self._dead_end())
        elif not self._all.parts or (can_end and rows.whole):
            mask = None
        else:
            mask = rows.everything if can_end else rows.ordinary
        self.outlook = Outlook(mask, can_end, is_open)
        return self.outlook

    def _dead_end(self) -> str:
        alone = [
            f"{_name(filter)} allows {self._count(part)}"
            for filter, part in zip(self.filters, self._all.parts, strict=True)
        ]
        together = ", and together they allow none" if len(alone) > 1 else ""
        return (
            f"no token is allowed after {len(self)} tokens, and the text may not end: "
            f"{', '.join(alone)}{together}"
        )

    def _count(self, part: Replay) -> str:
        row = np.zeros(self._rows.words, dtype=np.int32)
        if not part.fill(row):
            return "all"
        return str(len(tokens_of(row & self._rows.ordinary)) or "none")

    @property
    def is_wide(self) -> bool:
        """Whether tokens all over the vocabulary are known to be allowed, as in free text."""
        if self.outlook is None or self.outlook.mask is None:
            return self.outlook is not None
        return bool(2 * np.count_nonzero(self.outlook.mask) > len(self.outlook.mask))

    @property
    def rewinds(self) -> bool:
        """Whether every filter goes back by itself, without being fed the text again."""
        return all(part.rewinds for part in self._all.parts)

    def can_end(self) -> bool:
        """Whether the text may end here."""
        return self._all.can_end() if self.outlook is None else self.outlook.can_end

    def ended(self) -> bool:
        """Whether nothing but the end is possible."""
        return not self._look().is_open

    def forced(self) -> list[Token]:
        """Tokens that must come next: every filter agrees on them, and the text may not end.

        They are spelled as the tokenizer spells the forced text here. An empty list only means
        that none are known.
        """
        if self.can_end():
            return []
        run = list(takewhile(self._rows.is_ordinary, self._all.forced()))
        if run:
            return run
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

    def hint(self) -> list[Token]:
        """Allowed tokens that lead towards an end, if a filter knows any."""
        run = self._all.hint()
        return run[: self.validate(run)]

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, would be taken; changes nothing."""
        return self._all.validate(list(takewhile(self._rows.is_ordinary, tokens)))

    # ---- the history -----------------------------------------------------------------------

    def advance(self, token: Token) -> None:
        """One position that feeds its token to every filter. FilterError if one refuses it."""
        self.advance_as((token,))

    def advance_as(self, fed: Sequence[Token]) -> None:
        """One position that feeds these tokens instead: () for a token that was withheld."""
        for token in fed:
            if token in self.vocabulary.eos:
                raise FilterError(f"token {token} ends the text and is never fed to filters")
            most = self._rows.limit - 1
            if not 0 <= token <= most:
                raise FilterError(f"token {token} is outside the vocabulary; expected 0 to {most}")
        self._all.advance_as(fed)
        if fed:
            self.outlook = None

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` positions; does nothing if there are no more than that."""
        if to >= len(self._all):
            return
        self._all.rewind(to)
        self.outlook = None

    def fork(self) -> Constraint:
        """An independent copy. StateError if a filter cannot be copied."""
        twin = object.__new__(Constraint)
        twin.vocabulary = self.vocabulary
        twin.vocab_size = self.vocab_size
        twin.strips_space = self.strips_space
        twin.filters = self.filters
        twin._all = self._all.fork()
        twin._rows = self._rows
        twin._row = None
        twin.outlook = self.outlook
        return twin


class _Rows:
    """The rows that all constraints share that have one vocabulary and one width of logits."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.words = word_count(vocab_size)
        self._eos = vocabulary.eos
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
        return 0 <= token < self.limit and token not in self._eos


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
