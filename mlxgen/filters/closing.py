"""The shortest way from here to a valid end, for a budget that runs out inside a value.

Ways are searched for over bytes (see ``Hunt``), in a copy of the constraint's filters that is
bound to a vocabulary of bytes and kept in step; if that is impossible, over the tokens of one
byte. A way that was found is spelled as the tokenizer would spell it.

Invariant: the constraint takes a returned run, and the text may end after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from itertools import groupby

from ..errors import FilterError, OptionError, PromptError, StateError
from ..forks import forked
from ..tokens import Token
from .bytewise import ByteVocabulary, bound_to_bytes
from .constraint import Constraint
from .hunt import Hunt, Outline, Path

WORK = 2500
"""Steps of one search. A step takes some 4 µs, and its share of Python as much again."""

_LONGEST = 16  # bytes of a first token that the tokenizer would not have chosen


class EndSearch:
    """Searches for ends of one sequence, wherever it stands."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._bytes = bound_to_bytes(constraint)
        with suppress(PromptError):  # makes tables now that a search would have to make
            constraint.vocabulary.longest(b" ")
            constraint.vocabulary.continue_with(b" ")
        self._outlines = [Outline()]

    def fork(self, constraint: Constraint) -> EndSearch:
        """The same search for a copy of the constraint."""
        return forked(self, _constraint=constraint)

    @property
    def _place(self) -> Constraint:
        return self._constraint if self._bytes is None else self._bytes

    def follow(self) -> None:
        """Catches up with the constraint: to be called after each token, and after each rewind."""
        kept = max(0, min(len(self._outlines), len(self._constraint)) - 1)
        new = self._constraint.fed_since(kept)
        pieces = self._constraint.vocabulary.pieces
        del self._outlines[kept + 1 :]
        for fed in new:
            data = b"".join(pieces[token] for token in fed)
            self._outlines.append(self._outlines[-1].then(data, []))
        if self._bytes is None:
            return
        vocabulary = ByteVocabulary.beside(self._constraint.vocabulary)
        try:
            self._bytes.rewind(kept)
            for fed in new:
                self._bytes.advance_as(vocabulary.spelled(fed))
        except FilterError:  # a limit of the engine
            self._bytes = None

    def find(
        self,
        limit: int,
        *,
        work: int = WORK,
        without: Set[Token] = frozenset(),
    ) -> list[Token] | None:
        """A run of at most ``limit`` tokens after which the text may end; None if none was found.

        It is the first one that was found, of those that do not begin with a token of ``without``;
        short ones are tried first. ``work`` bounds the search. The constraint does not change.
        """
        if limit < 0:
            raise OptionError("limit", f"expected 0 or more, got {limit}")
        self.follow()
        if self._constraint.can_end():
            return []
        if limit == 0:
            return None
        at = self._place
        if self._bytes is None:
            with suppress(StateError):  # if it cannot be copied, it is walked there and back
                at = at.fork()
        start = tuple(at.hint())  # what has to come first, such as a trigger
        pieces, token_of = at.vocabulary.pieces, at.vocabulary.token_of
        outline = self._outlines[-1].then(b"".join(pieces[token] for token in start), [])
        spelled = map(self._constraint.vocabulary.piece, without)
        avoided = {token for piece in spelled if (token := token_of(piece)) is not None}
        hunt = Hunt(at, outline, start, avoided)
        try:
            for way in hunt.ways(work):
                hunt.to(())
                run = self._spelled(way, without)
                if run is not None and len(run) <= limit:
                    return run
        except FilterError:  # the engine gave up
            pass
        finally:
            hunt.to(())
        return None

    # ---- from bytes to tokens --------------------------------------------------------------

    def _spelled(self, way: Path, without: Set[Token]) -> list[Token] | None:
        for run in self._spellings(way):
            if run[0] not in without:
                until_end = self._taken(run)
                if until_end is not None:
                    return until_end
        return None

    def _spellings(self, way: Path) -> Iterator[list[Token]]:
        """As the tokenizer spells it, or in fewer tokens; then with ever shorter first tokens."""
        vocabulary = self._constraint.vocabulary
        pieces = self._place.vocabulary.pieces
        special = vocabulary.added | vocabulary.special
        plain = next((n for n, symbol in enumerate(way) if symbol in special), len(way))
        data = b"".join(pieces[symbol] for symbol in way[:plain])
        try:
            rest: list[Token] = []
            for is_special, group in groupby(way[plain:], special.__contains__):
                symbols = list(group)
                text = b"".join(pieces[symbol] for symbol in symbols)
                rest += symbols if is_special else vocabulary.continue_with(text)
            yield min(vocabulary.continue_with(data), vocabulary.longest(data), key=len) + rest
            for length in range(min(plain, _LONGEST), 0, -1):
                first = vocabulary.token_of(data[:length])
                if first is not None:
                    yield [first, *vocabulary.continue_with(data[length:]), *rest]
        except PromptError:
            pass
        if self._bytes is None:
            yield list(way)

    def _taken(self, run: Sequence[Token]) -> list[Token] | None:
        """``run`` up to the place where the text may end, if the constraint takes it so far."""
        at, start = self._constraint, len(self._constraint)
        if at.validate(run) < len(run):
            return None
        try:
            for count, token in enumerate(run, 1):
                at.advance(token)
                if at.can_end():
                    return list(run[:count])
        except FilterError:
            pass
        finally:
            at.rewind(start)
        return None
