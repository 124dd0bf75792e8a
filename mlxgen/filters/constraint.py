"""All filters of a sequence as one, as the engine sees them: it allows what every filter allows.

A constraint handles what filters do not: end tokens, ids that the tokenizer does not have, and
messages that name the filters. A position of it feeds the filters one token, several, or none.

Invariant: a mask allows an end token if and only if every filter may end, never an id at or beyond
the vocabulary's size, and otherwise what every filter allows. All filters have the same history: an
operation happens in all of them, or raises and happens in none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TypeAlias

import numpy as np

from ..errors import DeadEndError, FilterError, OptionError, RewindError
from ..forks import forked
from ..tokens import AnyTokenizer, Token, Vocabulary
from ..workers import Work
from .engine import shortened
from .matcher import GrammarFilter
from .protocol import (
    Filter,
    Int32Words,
    Objection,
    Running,
    Specification,
    bind_opening,
    is_filter,
    is_specification,
    left_out,
    tokens_of,
    word_count,
    words_of,
)
from .replay import whole


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """Allows the tokens that every one of the specifications allows."""

    specifications: tuple[Specification, ...]

    def __init__(self, *specifications: Specification) -> None:
        for spec in specifications:
            if not is_specification(spec):
                raise OptionError("filters", f"AllOf: expected specifications, got {spec!r}")
        object.__setattr__(self, "specifications", specifications)

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> Constraint:
        """As ``Specification.bind``."""
        vocabulary = Vocabulary.of(tokenizer)
        return Constraint(self.specifications, vocabulary, vocab_size, strips_space=False)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> Constraint:
        """As ``bind``, for the start of a text that loses its leading space."""
        vocabulary = Vocabulary.of(tokenizer)
        return Constraint(self.specifications, vocabulary, vocab_size, strips_space=True)


Outlook: TypeAlias = tuple[Int32Words | None, bool]
"""The tokens that may follow a position (None: all), and whether anything but the end may."""


class Constraint(Running):
    """The filters of one sequence: what may come next, what must, and whether it may end.

    filters       specifications, which are bound, and filters that were fed nothing so far,
                  which are used as they are; if there are any, and the tokenizer has fewer ids
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
        self.vocabulary = vocabulary
        self.vocab_size = vocab_size
        self.strips_space = strips
        self.filters = tuple(_flat(filters))  # as they were passed
        self.parts = tuple(_running(f, vocabulary, vocab_size, strips) for f in self.filters)
        self.rewinds = all(part.rewinds for part in self.parts)
        self.checks = any(part.checks for part in self.parts)
        self.is_grammar = len(self.parts) == 1 and isinstance(self.parts[0], GrammarFilter)
        notes = (note for spec in self.filters for note in left_out(spec))
        self.left_out = tuple(dict.fromkeys(notes))
        self._fed: list[Token] = []  # every token fed, in order
        self._ends: list[int] = []  # how many had been fed after each position
        self._rows: _Rows = vocabulary.derived(
            ("rows", vocab_size), lambda: _Rows(vocabulary, vocab_size)
        )
        self.outlook: Outlook | None = None  # of this position, as soon as it is known
        self._may_end: bool | None = None  # whether the text may end here, as soon as it is known

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
        return (self.outlook or self.look())[0]

    @property
    def ordinary(self) -> Int32Words:
        """All tokens but those that end the text."""
        return self._rows.ordinary

    def fill(self, row: Int32Words) -> bool:
        filled = False
        for part in self.parts:
            if not filled:
                filled = part.fill(row)
            elif part.fill(spare := np.empty_like(row)):
                np.bitwise_and(row, spare, out=row)
        return filled

    def look(self) -> Outlook:
        """The outlook of this position, which is kept until the next step. Raises as ``mask``."""
        rows = self._rows
        row = np.empty(rows.words, dtype=np.int32)
        filled = self.fill(row)
        can_end = self.can_end() if self._may_end is None else self._may_end
        is_open = True
        mask: Int32Words | None
        if filled:
            mask = np.bitwise_and(row, rows.ordinary, out=row)
            is_open = mask.tobytes() != rows.nothing  # faster than any()
            if can_end:
                np.bitwise_or(mask, rows.ends, out=mask)
            elif not is_open:
                raise DeadEndError(self._dead_end())
        elif not self.filters or (can_end and rows.whole):
            mask = None
        else:
            mask = rows.everything if can_end else rows.ordinary
        self.outlook = mask, is_open
        return self.outlook

    def _dead_end(self) -> str:
        alone = []
        for filter, part in zip(self.filters, self.parts, strict=True):
            name = repr(filter) if is_specification(filter) else type(filter).__name__
            row = np.zeros(self._rows.words, dtype=np.int32)
            count = len(tokens_of(row & self._rows.ordinary)) if part.fill(row) else "all"
            alone.append(f"{shortened(name)} allows {count or 'none'}")
        together = ", and together they allow none" if len(alone) > 1 else ""
        return (
            f"no token is allowed after {len(self)} tokens, and the text may not end: "
            f"{', '.join(alone)}{together}"
        )

    def can_end(self) -> bool:
        """Whether the text may end here."""
        if self._may_end is None:
            for part in self.parts:
                if not part.can_end():
                    self._may_end = False
                    break
            else:
                self._may_end = True
        return self._may_end

    def ended(self) -> bool:
        """Whether the text must end here. Computes a mask only where it may end."""
        return self.can_end() and not (self.outlook or self.look())[1]

    def forced(self) -> list[Token]:
        """Tokens that must come next: every filter agrees on them, and the text may not end.

        They are spelled as the tokenizer spells the forced text here. An empty list only means that
        none are known. If the filters name none, a mask that allows a single token forces that one;
        a grammar names all that it forces, so no mask is computed for it.
        """
        if self.can_end() if self._may_end is None else self._may_end:
            return []
        run = self.agreed()
        if run or (self.is_grammar and self.outlook is None):
            return run
        only = self.only()
        return [] if only is None else [only]

    def agreed(self) -> list[Token]:
        """The longest run that one filter forces and all others would take."""
        best: list[Token] = []
        for part in self.parts:
            run = list(takewhile(self._rows.is_ordinary, part.forced()))
            if len(run) > len(best):
                for other in self.parts:
                    if other is not part and run:
                        del run[other.validate(run) :]
                best = max(best, run, key=len)
        return best

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
        run = list(next((run for part in self.parts if (run := part.hint())), ()))
        return run[: self.validate(run)]

    def validate(self, tokens: Sequence[Token]) -> int:
        """How many of ``tokens``, in order, would be taken; changes nothing."""
        run = list(takewhile(self._rows.is_ordinary, tokens))
        for part in self.parts:
            if run:
                del run[part.validate(run) :]
        return len(run)

    # ---- texts that may have to be taken back ------------------------------------------------

    def unchecked(self) -> tuple[int, bool]:
        """How many of the newest positions may be taken back, and whether a check is due now."""
        each = [part.unchecked() for part in self.parts]
        count = max((count for count, _ in each), default=0)
        return self._positions(count), any(is_due for _, is_due in each)

    def objection(self, *, ends: bool = False) -> Objection | Work | None:
        """The first objection to a text that may end here, or to a part that is due for a check,
        and how many positions to draw again; or the work to wait for."""
        due = [part for part in self.parts if not ends and part.unchecked()[1]] or self.parts
        all_found = (part.objection(ends=ends) for part in due)
        found = next((found for found in all_found if found is not None), None)
        if isinstance(found, Objection):
            return found._replace(tokens=self._positions(found.tokens))
        return found

    def _positions(self, tokens: int) -> int:
        """How many of the newest positions fed any of the newest ``tokens``."""
        return len(self) - bisect_right(self._ends, len(self._fed) - tokens)

    # ---- the history -----------------------------------------------------------------------

    def advance(self, *fed: Token) -> None:
        """Adds a position that feeds its token to every filter; or several tokens, or none if it is
        withheld. FilterError, and no change, if a filter refuses one."""
        start, rows, parts = len(self._fed), self._rows, self.parts
        try:
            for token in fed:
                if not 0 <= token < rows.limit or token in rows.eos:
                    raise self._refused(token)
                for part in parts:
                    part.advance(token)
                self._fed.append(token)
        except BaseException:
            for part in parts:
                part.rewind(start)
            del self._fed[start:]
            raise
        self._ends.append(len(self._fed))
        if fed:
            self.outlook = self._may_end = None

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
        done: list[Running] = []
        for part in self.parts:
            try:
                part.rewind(fed)
            except BaseException:
                for other in done:
                    for token in self._fed[fed:]:
                        other.advance(token)
                raise
            done.append(part)
        del self._fed[fed:], self._ends[to:]
        self.outlook = self._may_end = None

    def fork(self) -> Constraint:
        """An independent copy. StateError if a filter cannot be copied."""
        shared = ("vocabulary", "_rows", "outlook")
        return forked(self, shared=shared, parts=tuple(part.fork() for part in self.parts))


def fill_masks(constraints: Iterable[Constraint]) -> None:
    """Computes every constraint's outlook while the device runs. ``mask()`` raises its errors."""
    for constraint in constraints:
        if constraint.outlook is None:
            with suppress(Exception):  # a caller's filter may raise anything
                constraint.look()


class _Rows:
    """The rows that all constraints with the same vocabulary and width of the logits share."""

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

    def is_ordinary(self, token: Token) -> bool:
        """Whether a token may be fed to filters."""
        return 0 <= token < self.limit and token not in self.eos


def _flat(filters: Sequence[Specification | Filter]) -> Iterator[Specification | Filter]:
    if not isinstance(filters, Sequence):
        raise OptionError("filters", f"expected a list of filters, got {filters!r}")
    for filter in filters:
        if isinstance(filter, AllOf):
            yield from _flat(filter.specifications)
        elif not is_specification(filter) and not is_filter(filter):
            raise OptionError(
                "filters",
                f"expected filters, got {filter!r}; a filter has bind(tokenizer, vocab_size), or "
                "fill, advance, can_end and reset",
            )
        else:
            yield filter


def _running(
    filter: Specification | Filter, vocabulary: Vocabulary, vocab_size: int, strips: bool
) -> Running:
    if not is_specification(filter):
        assert is_filter(filter)
        return whole(filter)
    if strips:
        return whole(bind_opening(filter, vocabulary, vocab_size))
    return whole(filter.bind(vocabulary, vocab_size))
