"""The shortest path to a valid end, for a budget that runs out inside a value.

The search runs over bytes: in a copy of the constraint's filters that is bound to a vocabulary of
bytes and kept in step. A place in a grammar that allows tens of thousands of tokens allows a
hundred bytes at most, and a step, mask included, takes a few µs. If a filter cannot be bound to
bytes, the search runs over single-byte tokens. The path is then spelled as the tokenizer would
spell it.

It is a best-first search over paths of symbols (Hart, Nilsson and Raphael, 1968): by their length,
in which forced symbols count a quarter, and by the number of open brackets, each of which takes at
least one symbol. The states of a grammar are hidden, so two paths count as the same if they have
the same ``Outline`` and the same mask; and once a value is finished, other ways to finish it are
dropped. Both are guesses that make an exponential search linear, and may be wrong for a grammar
unlike JSON.

Invariant: the constraint takes a returned run, and the text may end after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count, groupby
from math import inf, log2
from typing import NamedTuple, TypeAlias

import numpy as np

from ..errors import FilterError, GrammarError, OptionError, PromptError, StateError
from ..forks import forked
from ..tokens import Token, Vocabulary, in_common
from .constraint import Constraint
from .protocol import allows, is_by_bytes, word_count

WORK = 2500
"""The steps of one search. A step takes some 4 µs, and as much again for its share of Python."""

Path: TypeAlias = tuple[Token, ...]
Place: TypeAlias = tuple[bytes | int, ...]
"""For each open bracket: the latest key of an object, or the number of commas of a list."""

_OPEN = 2.0  # symbols that a path is charged for an open bracket

_LONGEST = 16  # bytes of a first token that the tokenizer would not have chosen
_KEY = 64  # bytes of a key that are compared
_TEXT = (b"z", b"}", b" ")  # a place that allows all of these is in free text
_ORDER = b"}]),:;>0ntf\"'`a.-@/T+_(=*!?#$%&~^|A"  # closing signs, shortest values, other signs
_LATE = b"\\[<{"  # opening signs
_PROBES = (
    *(sign * times + b'"' for sign in (b"n", b"0", b"A") for times in range(1, 5)),
    *(bytes([sign]) + rest for sign in b".-:/@T+ " for rest in (b"n", b"0", b'nn"', b'00"')),
)
"""Short texts that often end identifiers, dates or addresses. They are never fed. Two places may
allow the same bytes, for example before and after the dot of an address, and still differ in what
they allow two or three bytes later; with probes, the mask shows that."""


class EndSearch:
    """Searches for ends of one sequence, from its current place."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._bytes: Constraint | None = None  # compiled now, unless that was done before
        vocabulary, strips = ByteVocabulary.beside(constraint.vocabulary), constraint.strips_space
        if all(map(is_by_bytes, constraint.filters)):
            with suppress(GrammarError, OptionError):  # it names an ordinary token by its id
                self._bytes = Constraint(
                    constraint.filters, vocabulary, vocabulary.size, strips_space=strips
                )
        with suppress(PromptError):  # makes tables now rather than in a search
            constraint.vocabulary.longest(b" ")
            constraint.vocabulary.continue_with(b" ")
        self._outlines = [Outline()]

    def fork(self, constraint: Constraint) -> EndSearch:
        """The same search for a copy of the constraint."""
        return forked(self, _constraint=constraint)

    def rewind(self, to: int) -> None:
        """Forget what came after ``to`` positions, to which the constraint has gone back."""
        del self._outlines[to + 1 :]
        if self._bytes is not None:
            try:
                self._bytes.rewind(to)
            except FilterError:  # a limit of the engine
                self._bytes = None

    def follow(self) -> None:
        """Catches up with the constraint; call it after each token, and after each rewind."""
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
                self._bytes.advance(*vocabulary.spelled(fed))
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

        It is the first run found that does not begin with a token of ``without``; short ones are
        tried first. ``work`` bounds the search. The constraint does not change.
        """
        if limit < 0:
            raise OptionError("limit", f"expected 0 or more, got {limit}")
        self.follow()
        if self._constraint.can_end():
            return []
        if limit == 0:
            return None
        at = self._bytes
        if at is None:
            at = self._constraint
            with suppress(StateError):  # if it cannot be copied, it is moved and moved back
                at = at.fork()
        start = tuple(at.hint() or at.agreed())  # what has to come first, such as a trigger
        spelled = map(self._constraint.vocabulary.piece, without)
        hunt = Hunt(at, set(map(at.vocabulary.token_of, spelled)))
        try:
            for way in hunt.ways(start, self._outlines[-1], work):
                hunt.to(())
                runs = self._spellings(way, at.vocabulary.pieces)
                taken = (self._taken(run) for run in runs if run[0] not in without)
                first = next(filter(None, taken), None)
                if first is not None and len(first) <= limit:
                    return first
        except FilterError:  # the engine gave up
            pass
        finally:
            hunt.to(())
        return None

    # ---- from bytes to tokens --------------------------------------------------------------

    def _spellings(self, way: Path, pieces: Sequence[bytes]) -> Iterator[list[Token]]:
        """Spellings: the tokenizer's, or one of fewer tokens; then with ever shorter first ones."""
        vocabulary = self._constraint.vocabulary
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
        """``run`` up to where the text may first end; None if the constraint refuses the run."""
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


class Outline(NamedTuple):
    """Where a text stands, without the values that are finished.

    A finished value rarely matters for the text after it: in JSON, and in most languages that
    grammars describe, that depends on the open brackets, the latest key of each object, and the
    number of items in each list.
    """

    place: Place = ()
    string: bytes | None = None  # the beginning of the open string
    escaped: bool = False
    latest: bytes = b""  # the string that was closed last, which may be a key
    in_value: bool = True  # not in a key, nor after a finished value
    since: int = 0  # bytes since the latest sign

    def then(self, data: bytes, finished: list[Place]) -> Outline:
        """The outline after more text; appends the places at which a value ends to ``finished``."""
        place, string, escaped, latest, in_value, since = self
        for byte in data:
            sign, since = bytes([byte]), since + 1
            if string is not None and (sign != b'"' or escaped):
                escaped = sign == b"\\" and not escaped
                string += sign if len(string) <= _KEY else b""
                continue
            if string is not None:
                finished += [place] if in_value else []
                latest, string, in_value = string, None, False
            elif sign == b'"':
                string = b""
            elif sign in b"{[(":
                place, in_value = (*place, b"" if sign == b"{" else 0), sign != b"{"
            elif sign in b"}])":
                finished += (place, place[:-1])
                place, in_value = place[:-1], False
            elif sign == b":" and place:
                place, in_value = (*place[:-1], latest), True
            elif sign == b"," and place:
                finished.append(place)
                last, in_value = place[-1], isinstance(place[-1], int)
                place = (*place[:-1], last + 1) if isinstance(last, int) else place
            else:
                continue
            since = 0
        return Outline(place, string, escaped, latest, in_value, since)

    def is_within(self, finished: Set[Place]) -> bool:
        """Whether the text is in the middle of a value at one of these places."""
        depth = len(self.place) if self.in_value else len(self.place) - 1
        return any(self.place[:length] in finished for length in range(1, depth + 1))


def _symbols(vocabulary: Vocabulary) -> list[Token]:
    """The symbols of a vocabulary in the order in which to try them: added tokens, then bytes."""
    late = _LATE + bytes([*range(128, 256), *range(32), 127, 32])
    rest = bytes(byte for byte in range(256) if byte not in _ORDER + late)
    ordered = [vocabulary.token_of(bytes([byte])) for byte in _ORDER + rest + late]
    special = (vocabulary.added | vocabulary.special) - vocabulary.eos
    symbols = sorted(token for token in special if vocabulary.piece(token))
    return [*symbols, *(token for token in ordered if token is not None)]


class Hunt:
    """One search from where a constraint stands; no path begins with a token of ``without``.
    ``to(())`` leaves the constraint as it was."""

    def __init__(self, at: Constraint, without: Set[Token | None]) -> None:
        vocabulary = at.vocabulary
        self._pieces = vocabulary.pieces
        self._symbols = vocabulary.derived("symbols", lambda: _symbols(vocabulary))
        self._at, self._from, self._without = at, len(at), without
        self._steps = 0  # the work so far
        self._path: Path = ()
        self._row = np.empty(word_count(at.vocab_size), dtype=np.int32)
        self._choices: dict[tuple[int, bool], list[Token]] = {}  # by the mask

    def to(self, path: Path) -> None:
        """Moves to the end of a path. FilterError if the path is not allowed."""
        common = in_common(self._path, path)
        if common < len(self._path):
            self._at.rewind(self._from + common)
            self._path = path[:common]
        for token in path[common:]:
            self._at.advance(token)
            self._path += (token,)
        self._steps += 1 + (len(path) - common) // 8

    def ways(self, start: Path, outline: Outline, work: int) -> Iterator[Path]:
        """Ever shorter paths to an end that begin with ``start``, until ``work`` steps were taken,
        or a few more. ``outline``: the outline of the text so far."""
        self.to(start)
        if start and self._at.can_end():
            yield start
        outline = outline.then(b"".join(self._pieces[token] for token in start), [])
        heap: list[tuple[float, int, float, Path, Outline, list[Place]]] = []
        heappush(heap, (0, 0, 0, start, outline, []))
        seen: set[tuple[object, ...]] = set()
        finished: set[Place] = set()
        order, least = 0, inf
        while heap and self._steps <= work:
            _, _, far, path, outline, ended = heappop(heap)
            if len(path) >= least or outline.is_within(finished):
                continue
            finished.update(ended)
            inner = outline.string is not None and outline.in_value
            steps = self._steps_after(path, is_first=path == start)
            for rank, (run, shown) in enumerate(steps, 1):
                if len(path + run) >= least:
                    continue
                if shown is None:
                    least = len(path + run)
                    yield path + run
                    continue
                ends: list[Place] = []
                then = outline.then(b"".join(self._pieces[token] for token in run), ends)
                state = (then._replace(string=None), then.string is None, shown)
                if state in seen:
                    continue
                seen.add(state)
                beyond = far + 1 - (len(steps) == 1) / 2 + (len(run) - 1) / 4
                beyond += (1 + inner) * log2(rank)
                order -= 1
                bound = beyond + _OPEN * (len(then.place) + (then.string is not None) / 2)
                heappush(heap, (bound, order, beyond, path + run, then, ends))

    def _steps_after(self, path: Path, *, is_first: bool) -> list[tuple[Path, int | None]]:
        """Each symbol that may follow a path, with the symbols that it forces, and the mask after
        them; None if the text may end. Of symbols with the same outcome, only the first; at a place
        with the mask of an earlier one, only those that differed there."""
        found: dict[tuple[Path, int | None], Token] = {}
        try:
            self.to(path)
            at = self._look()
        except FilterError:
            return []
        in_word = is_first or self._pieces[path[-1]][-1:].isalnum()
        for symbol in self._choices.get((at, in_word)) or self._choice(in_word=in_word):
            if is_first and symbol in self._without:
                continue
            try:
                run: Path = (symbol,)
                self.to(path + run)
                if not self._at.can_end() and (forced := tuple(self._at.agreed())):
                    run += forced
                    self.to(path + run)
                shown = None if self._at.can_end() else self._look()
            except FilterError:
                continue
            found.setdefault((run[1:], shown), symbol)
        self._choices[at, in_word] = list(found.values())
        return [((symbol, *forced), shown) for (forced, shown), symbol in found.items()]

    def _look(self) -> int:
        """Writes the allowed tokens to the row; returns its hash. FilterError if there are none."""
        if not self._at.fill(self._row):
            self._row[:] = -1
        elif not self._row.any():
            raise FilterError("nothing may follow")
        return hash(self._row.tobytes())

    def _choice(self, *, in_word: bool) -> list[Token]:
        """The symbols to try at a place; a blank among others only if it may end a word. In free
        text, a quote comes first, as it may end that, then spaces, which long tokens spell; a
        backslash is left out, as it needs another symbol."""
        pieces = self._pieces
        allowed = [symbol for symbol in self._symbols if allows(self._row, symbol)]
        blank = [symbol for symbol in allowed if pieces[symbol].isspace()]
        inked = [symbol for symbol in allowed if not pieces[symbol].isspace()]
        if {pieces[symbol] for symbol in allowed}.issuperset(_TEXT):
            quotes = [symbol for symbol in inked if pieces[symbol] == b'"']
            rest = [s for s in inked if pieces[s].isascii() and pieces[s] != b"\\"]
            return [*quotes, blank[-1], *rest]
        return [*inked, *blank[: in_word or not inked]]


class ByteVocabulary(Vocabulary):
    """One token for each byte, the added tokens of ``vocabulary``, and the probes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        kept = vocabulary.added | vocabulary.special
        free = (token for token in count() if token not in kept)
        pieces = {token: vocabulary.piece(token) for token in kept}
        self._bytes = [next(free) for _ in range(256)]
        pieces.update((token, bytes([byte])) for byte, token in enumerate(self._bytes))
        self.probes = [next(free) for _ in _PROBES]
        pieces.update(zip(self.probes, _PROBES, strict=True))
        self._whole = vocabulary
        self.pieces = tuple([pieces.get(token, b"") for token in range(1 + max(pieces))])
        self.size = len(self.pieces)
        self.eos, self.special, self.added = vocabulary.eos, vocabulary.special, vocabulary.added
        self.strips_space, self._byte_tokens = vocabulary.strips_space, frozenset()
        self._derived = {}
        self._lock = threading.RLock()

    def has(self, token: Token) -> bool:
        return token in self.added or token in self.special

    def opening(self, token: Token) -> bytes:
        return self.piece(token)

    @classmethod
    def beside(cls, vocabulary: Vocabulary) -> ByteVocabulary:
        """The byte vocabulary of a vocabulary, made once."""
        return vocabulary.derived("bytes", lambda: cls(vocabulary))

    def spelled(self, tokens: Iterable[Token]) -> list[Token]:
        """Tokens of the original vocabulary, spelled in this one."""
        spelled: list[Token] = []
        for token in tokens:
            if token in self.added or token in self.special:
                spelled.append(token)
            else:
                spelled += map(self._bytes.__getitem__, self._whole.piece(token))
        return spelled

    def continue_with(self, data: bytes) -> list[Token]:
        """Each byte by itself."""
        return list(map(self._bytes.__getitem__, data))
