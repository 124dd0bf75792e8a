"""The shortest way from here to a valid end, for a budget that runs out inside a value.

Owns the search. Must never know a grammar: it asks a constraint what any caller may ask.

Grammars allow tens of thousands of tokens in a string, and an end may be dozens of tokens away,
so this is no exhaustive search. Four steps:

    dive     goes greedily, at each place by the first of a few tokens (closing signs first)
             that leads where the dive has not been often; what is forced is taken as it is
    respell  the text of it, as the tokenizer would spell it, which is mostly shorter
    shorten  at each place of the dive, tries other tokens that lead back to a later part of
             it; what remains is respelled again
    widen    breadth first, for anything shorter than that, while the work lasts; tokens of a
             wide place that lead to the same mask are taken for one

Invariant: a run that is returned was fed to a copy of the constraint, which could end after
it and not before. It is a shortest one if no place on the way allows more than ``_NARROW``
tokens, and the work sufficed to look at all shorter ones.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from ..errors import FilterError, OptionError, PromptError, StateError
from ..tokens import Token, TokenIds, Vocabulary
from .constraint import Constraint
from .protocol import Int32Words, allows, tokens_of

_NARROW = 64  # a place that allows more tokens is wide
_CHOICE = 48  # tokens that lead on from a wide place
_TRIED = 6  # tokens that a dive tries at one place
_JOINS = 3  # places of a way at which a detour tries to join it
_OFTEN = 10  # times that a dive comes to the same mask before it tries another way


def shortest_end(
    constraint: Constraint, limit: int, *, enough: int = 0, work: int = 768
) -> list[Token] | None:
    """A run of at most ``limit`` tokens after which the text may end; None if none was found.

    The run is near the shortest; one of at most ``enough`` tokens is taken as soon as it is
    found (with ``enough=limit``: any that fits, which is much quicker). ``work`` bounds the
    search: it feeds at most that many tokens to copies of the constraint, with one rewind or
    copy and one mask at most for each, whatever the grammar. Of filters that cannot be
    copied, only the greedy way is tried. The constraint itself is left as it is.
    """
    if limit < 0:
        raise OptionError("limit", f"must be at least 0, not {limit}")
    if constraint.can_end():
        return []
    if limit == 0:
        return None
    search = _Search(constraint, work)
    best = search.dive(4 * limit + 16, enough, work // 2)
    if best is None or len(best) > max(enough, 1):
        shorter = search.widen(limit if best is None else min(limit, len(best) - 1))
        best = shorter or best
    return best if best is not None and len(best) <= limit else None


class _SpentError(Exception):
    """The work that a step was given is used up."""


class _Search:
    """What the steps of one search share: the origin, the tokens to try, the work left."""

    def __init__(self, constraint: Constraint, work: int) -> None:
        self._origin = constraint
        self._left = work
        self._spared = 0  # what the present step must leave
        self._table = _Table.of(constraint.vocabulary)

    def _work(self) -> None:
        if self._left <= self._spared:
            raise _SpentError
        self._left -= 1

    def _step(self, at: Constraint, token: Token) -> None:
        self._work()
        at.advance(token)

    # ---- greedily --------------------------------------------------------------------------

    def dive(self, most: int, enough: int, work: int) -> list[Token] | None:
        """A run that ends validly, found greedily in ``most`` tokens, and then improved.

        ``work`` bounds the greedy part, so that something is left for the others.
        """
        try:
            at = self._origin.fork()
        except StateError:
            at = self._origin
        start = len(at)
        path: list[Token] | None = None
        self._spared = self._left - work
        try:
            path = found = self._dived(at, most)
            if found is not None:
                self._spared = 0
                path = self._respelled(at, start, found) or found
                if len(path) > enough:
                    with suppress(_SpentError):
                        self._spared = len(found)
                        self._shorten(at, start, found)
                    self._spared = 0
                    path = min(path, self._respelled(at, start, found) or found, key=len)
        except (_SpentError, FilterError):  # an engine that gave up, or the work did
            pass
        finally:
            self._spared = 0
            at.rewind(start)
        return path

    def _dived(self, at: Constraint, most: int) -> list[Token] | None:
        path: list[Token] = []
        visits: Counter[bytes] = Counter()
        while not at.can_end():
            if len(path) >= most:
                return None
            run = (at.forced() or at.hint())[: most - len(path)]
            for token in run:
                self._step(at, token)
            if not run:
                run = self._onwards(at, visits)
                if not run:
                    return None
            path += run
        return path

    def _onwards(self, at: Constraint, visits: Counter[bytes]) -> list[Token]:
        """Take the first token of a few that leads where the dive has not been too often."""
        here = len(at)
        mask = at.mask()
        visits[_signature(mask)] += 1
        best: list[Token] = []
        least = 0
        for token in self._table.tried(mask):
            self._step(at, token)
            try:
                seen = 0 if at.can_end() else visits[_signature(at.mask())]
            except FilterError:
                at.rewind(here)
                continue
            if seen < _OFTEN:
                return [token]
            at.rewind(here)
            if not best or seen < least:
                best, least = [token], seen
        for token in best:
            self._step(at, token)
        return best

    def _shorten(self, at: Constraint, start: int, path: list[Token]) -> None:
        """Replace parts of ``path`` by shorter ones; it is valid whenever the work ends."""
        at.rewind(start)
        done = 0
        while done < len(path):
            detour = self._detour(at, path[done:])
            if detour is not None:
                path[done:] = detour
            self._step(at, path[done])
            done += 1

    def _detour(self, at: Constraint, rest: list[Token]) -> list[Token] | None:
        """A shorter way to the end than ``rest``, that begins otherwise and joins it later."""
        here = len(at)
        for token in self._table.tried(at.mask()):
            if token == rest[0]:
                continue
            way: list[Token] = []
            run = [token]
            try:
                while run and len(way) + len(run) < len(rest):
                    for forced in run:
                        self._step(at, forced)
                    way += run
                    if at.can_end():
                        return way
                    for skipped in self._joins(at.mask(), rest, len(way) + 1):
                        end = self._end_of(at, rest[skipped:])
                        if end is not None:
                            return way + end
                    run = at.forced()
            except FilterError:
                continue
            finally:
                at.rewind(here)
        return None

    def _joins(self, mask: Int32Words | None, rest: list[Token], first: int) -> list[int]:
        """The next few places of ``rest`` from which it might go on."""
        places = range(first, len(rest))
        return [p for p in places if mask is None or allows(mask, rest[p])][:_JOINS]

    def _end_of(self, at: Constraint, run: list[Token]) -> list[Token] | None:
        """``run`` up to where the text may end, if it is taken that far."""
        self._work()
        if at.validate(run) < len(run):
            return None
        here = len(at)
        try:
            for count, token in enumerate(run, 1):
                self._step(at, token)
                if at.can_end():
                    return run[:count]
        finally:
            at.rewind(here)
        return None

    def _respelled(self, at: Constraint, start: int, path: Sequence[Token]) -> list[Token] | None:
        """The tokenizer's own tokens for the text of ``path``, if fewer, and valid too."""
        vocabulary = at.vocabulary
        try:
            run = vocabulary.continue_with(b"".join(map(vocabulary.piece, path)))
        except PromptError:
            return None
        at.rewind(start)
        if len(run) >= len(path) or at.validate(run) < len(run):
            return None
        for count, token in enumerate(run, 1):
            self._step(at, token)
            if at.can_end():
                return run[:count]
        return None

    # ---- breadth first ---------------------------------------------------------------------

    def widen(self, most: int) -> list[Token] | None:
        """A shortest run of at most ``most`` tokens, unless the work ends before."""
        try:
            return self._widened(most)
        except (_SpentError, StateError):
            return None

    def _widened(self, most: int) -> list[Token] | None:
        level: list[tuple[Constraint, tuple[Token, ...]]] = [(self._origin.fork(), ())]
        for _ in range(most):
            beyond: list[tuple[Constraint, tuple[Token, ...]]] = []
            for before, path in level:
                try:
                    wide, tokens = self._table.onwards(before.mask())
                except FilterError:
                    continue
                seen: set[bytes] = set()
                for token in tokens:
                    at = before.fork()
                    self._step(at, token)
                    if at.can_end():
                        return [*path, token]
                    if not wide or self._is_new(at, seen):
                        beyond.append((at, (*path, token)))
            level = beyond
        return None

    def _is_new(self, at: Constraint, seen: set[bytes]) -> bool:
        try:
            signature = _signature(at.mask())
        except FilterError:
            return False
        known = signature in seen
        seen.add(signature)
        return not known


# ---- which tokens to try -------------------------------------------------------------------


class _Table:
    """The tokens of a vocabulary that are worth trying, best first."""

    # One digit and one letter early, so that the first few are signs of different kinds.
    _SIGNS = "}])>\"'`,:;0a.[({<-+_/\\|=*!?#$%&@~^" + string.digits + string.ascii_letters

    def __init__(self, vocabulary: Vocabulary) -> None:
        signs = _known(vocabulary, (sign.encode() for sign in self._SIGNS))
        rest = _known(vocabulary, [bytes([byte]) for byte in (32, 10, *range(128, 256), 9, 13)])
        quotes = _known(vocabulary, (b'"', b"'", b"`"))
        pairs = _made_of(vocabulary, b"\"}])>'")
        fillers = _fillers(vocabulary)
        self._pieces = vocabulary.pieces
        self._text_signs = _known(vocabulary, (b"z", b"}"))
        self._structure = _ids([*signs, *rest], pairs)
        self._text = _ids([*quotes[:1], *fillers, *quotes, *signs, *rest], pairs)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> _Table:
        return vocabulary.derived("closing", lambda: cls(vocabulary))

    def tried(self, mask: Int32Words | None) -> list[Token]:
        """A few allowed tokens, best first; blanks last, except as text."""
        free_text, best = self._best(mask)
        if mask is not None and len(best) < _TRIED:
            best = list(dict.fromkeys([*best, *map(int, tokens_of(mask))]))
        inked = best if free_text else [t for t in best if not self._pieces[t].isspace()]
        return (inked or best)[:_TRIED]

    def onwards(self, mask: Int32Words | None) -> tuple[bool, list[Token]]:
        """Whether a place is wide, and the tokens by which to leave it: all if it is not."""
        if mask is not None and np.count_nonzero(mask) <= _NARROW:
            allowed = tokens_of(mask)
            if len(allowed) <= _NARROW:
                return False, [int(token) for token in allowed]
        return True, self._best(mask)[1][:_CHOICE]

    def _best(self, mask: Int32Words | None) -> tuple[bool, list[Token]]:
        """Whether a mask looks like free text, and which tokens of the table it allows."""
        if mask is None:
            return True, list(map(int, self._text))
        free_text = all(allows(mask, token) for token in self._text_signs)
        table = self._text if free_text else self._structure
        table = table[table < len(mask) * 32]
        found: list[Token] = table[(mask[table >> 5] >> (table & 31)) & 1 == 1].tolist()
        return free_text, found


def _known(vocabulary: Vocabulary, texts: Iterable[bytes]) -> list[Token]:
    found = map(vocabulary.token_of, texts)
    return [token for token in found if token is not None]


def _made_of(vocabulary: Vocabulary, signs: bytes) -> list[Token]:
    """The tokens that consist of several of these signs, the shortest first."""
    found = [
        int(token)
        for sign in signs
        for token in vocabulary.starting_with(bytes([sign]))
        if len(vocabulary.piece(token)) > 1 and not vocabulary.piece(token).strip(signs)
    ]
    return sorted(found, key=lambda token: len(vocabulary.piece(token)))


def _fillers(vocabulary: Vocabulary) -> list[Token]:
    """Tokens to fill a string up to its least length: of spaces, the longest first."""
    found = [
        int(token)
        for token in vocabulary.starting_with(b" ")
        if not vocabulary.piece(token).strip(b" ")
    ]
    found.sort(key=lambda token: -len(vocabulary.piece(token)))
    wanted = (64, 32, 16, 8, 4, 2)
    return [
        next(token for token in found if len(vocabulary.piece(token)) <= length)
        for length in wanted
        if found and len(vocabulary.piece(found[-1])) <= length <= len(vocabulary.piece(found[0]))
    ]


def _ids(first: Sequence[Token], pairs: Sequence[Token]) -> TokenIds:
    """The most useful single signs, then pairs, then the other signs; each once."""
    order = dict.fromkeys([*first[:20], *pairs[:24], *first[20:]])
    return np.array(list(order), dtype=np.int32)


def _signature(mask: Int32Words | None) -> bytes:
    return b"" if mask is None else mask.tobytes()
