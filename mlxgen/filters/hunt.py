"""The search for a short way to an end, over the symbols of a vocabulary of bytes.

Best first, over paths of symbols (Hart, Nilsson and Raphael, 1968): by their length, of which
forced symbols count a quarter, and by how many brackets are open, as each will take a symbol at
least. The states of a grammar are hidden, so paths count as the same if they have the same
``Outline`` and show the same; and as soon as a value is finished, no other way to finish it is
followed. Both are guesses that make an exponential search linear, and may be
wrong for a grammar that is not like JSON.

Invariant: each path that is found ends validly with its last symbol, and is shorter than those
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from heapq import heappop, heappush
from math import inf, log2
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import FilterError
from ..tokens import Token, Vocabulary, in_common
from .bytewise import ByteVocabulary
from .constraint import Constraint
from .protocol import word_count

Path: TypeAlias = tuple[Token, ...]
Place: TypeAlias = tuple[bytes | int, ...]
"""For each open bracket: the latest key of an object, or the number of commas of a list."""

# What a path is charged, in symbols:
_OPEN = 2.0  # for an open bracket
_SAME = 2.0  # for a step that seems to lead nowhere

_KEY = 64  # bytes of a key that count
_TEXT = (b"z", b"}", b" ")  # a place that allows all of these is in free text
_ORDER = b"}]),:;>0ntf\"'`a.-@/T+_(=*!?#$%&~^|A"  # closing signs, shortest values, other signs
_LATE = b"\\[<{"  # opening signs


class Outline(NamedTuple):
    """Where a text stands, with everything that is finished left out.

    After a finished value it rarely matters what the value was: in JSON, and in most of what
    grammars describe, what may follow depends on the brackets that are open, the latest key of
    each object, and the number of items in each list.
    """

    place: Place = ()
    string: bytes | None = None  # the beginning of the open string
    escaped: bool = False
    latest: bytes = b""  # the string that was closed last, which may be a key
    in_value: bool = True  # not in a key, nor after a finished value
    since: int = 0  # bytes since the latest sign

    def then(self, data: bytes, finished: list[Place]) -> Outline:
        """The outline after more text; places at which a value ends go to ``finished``."""
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


class Alphabet:
    """The symbols of a vocabulary in the order in which to try them: added tokens, then bytes.

    A vocabulary of bytes also has probes, which masks show but nobody tries.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        late = _LATE + bytes([*range(128, 256), *range(32), 127, 32])
        rest = bytes(byte for byte in range(256) if byte not in _ORDER + late)
        ordered = [vocabulary.token_of(bytes([byte])) for byte in _ORDER + rest + late]
        singles = [token for token in ordered if token is not None]
        special = (vocabulary.added | vocabulary.special) - vocabulary.eos
        self.symbols = [*sorted(t for t in special if vocabulary.piece(t)), *singles]
        probes = vocabulary.probes if isinstance(vocabulary, ByteVocabulary) else []
        shown = np.array([*self.symbols, *probes], dtype=np.int64)
        self.words, self.bits = shown >> 5, (shown & 31).astype(np.int32)
        self.pieces = vocabulary.pieces

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Alphabet:
        return vocabulary.derived("alphabet", lambda: cls(vocabulary))

    def choice(self, shown: bytes, *, in_word: bool) -> list[Token]:
        """The symbols to try at a place; a blank beside others only if it may end a word. In free
        text a quote may end it, spaces are long tokens, and a backslash needs another symbol."""
        pieces = self.pieces
        allowed = [symbol for symbol, yes in zip(self.symbols, shown, strict=False) if yes]
        blank = [symbol for symbol in allowed if pieces[symbol].isspace()]
        inked = [symbol for symbol in allowed if not pieces[symbol].isspace()]
        if {pieces[symbol] for symbol in allowed}.issuperset(_TEXT):
            quotes = [symbol for symbol in inked if pieces[symbol] == b'"']
            rest = [s for s in inked if pieces[s].isascii() and pieces[s] != b"\\"]
            return [*quotes, blank[-1], *rest]
        return [*inked, *blank[: in_word or not inked]]


class _Step(NamedTuple):
    run: Path  # a symbol, and what it forces
    shown: bytes  # what may follow; b"" if the text may end


class Hunt:
    """One search in the filters of a constraint, from ``start`` on; ``outline`` is that of the text
    up to there. Back at the beginning of the path, the constraint is as it was."""

    def __init__(
        self,
        constraint: Constraint,
        outline: Outline,
        start: Path,
        without: Set[Token],
    ) -> None:
        self._alphabet = Alphabet.of(constraint.vocabulary)
        self._outline, self._start, self._without = outline, start, without
        self._steps = 0  # the work so far
        self._path: Path = ()
        self._filter, self._fed = constraint.filter, constraint.fed
        self._row = np.empty(word_count(constraint.vocab_size), dtype=np.int32)
        self._choices: dict[tuple[bytes, bool], list[Token]] = {}  # by what is shown

    def to(self, path: Path) -> None:
        """Goes to the end of a path. FilterError if it is not allowed."""
        common = in_common(self._path, path)
        if common < len(self._path):
            self._filter.rewind(self._fed + common)
            self._path = path[:common]
        for token in path[common:]:
            self._filter.advance(token)
            self._path += (token,)
        self._steps += 1 + (len(path) - common) // 8

    def _look(self) -> bytes:
        """What is allowed: one byte for each symbol and each probe. FilterError if nothing is."""
        words, bits = self._alphabet.words, self._alphabet.bits
        if not self._filter.fill(self._row):
            return bytes([1]) * len(words)
        if not self._row.any():
            raise FilterError("nothing may follow")
        flags: npt.NDArray[np.uint8] = ((self._row[words] >> bits) & 1).astype(np.uint8)
        return flags.tobytes()

    def ways(self, work: int) -> Iterator[Path]:
        """Ever shorter ways, as long as no more than ``work`` steps were taken, or a few more."""
        pieces, last = self._alphabet.pieces, self._steps + work
        self.to(self._start)
        if self._start and self._filter.can_end():
            yield self._start
        heap: list[tuple[float, int, float, Path, Outline, bytes, list[Place]]] = []
        heappush(heap, (0, 0, 0, self._start, self._outline, b"", []))
        seen: set[tuple[object, ...]] = set()
        finished: set[Place] = set()
        order, least = 0, inf
        while heap and self._steps <= last:
            _, _, far, path, outline, before, ended = heappop(heap)
            if len(path) >= least or outline.is_within(finished):
                continue
            finished.update(ended)
            inner = outline.string is not None and outline.in_value
            shown: set[bytes] = set()
            steps = self._steps_after(path)
            for step in steps:
                run = step.run
                if len(path + run) >= least:
                    continue
                if not step.shown:
                    least = len(path + run)
                    yield path + run
                    continue
                if step.shown in shown and len(run) == 1:
                    continue
                ends: list[Place] = []
                then = outline.then(b"".join(pieces[token] for token in run), ends)
                state = (then._replace(string=None), then.string is None, step.shown)
                if state in seen:
                    continue
                seen.add(state)
                beyond = far + 1 - (len(steps) == 1) / 2 + (len(run) - 1) / 4
                beyond += (1 + inner) * log2(1 + len(shown)) + _SAME * (step.shown == before)
                shown.add(step.shown)
                order -= 1
                bound = beyond + _OPEN * (len(then.place) + (then.string is not None) / 2)
                heappush(heap, (bound, order, beyond, path + run, then, step.shown, ends))

    def _steps_after(self, path: Path) -> list[_Step]:
        """Where the symbols after a path lead; of those that were alike at a place that showed the
        same, only the first."""
        different: dict[_Step, Token] = {}
        try:
            self.to(path)
            at = self._look()
        except FilterError:
            return []
        found: list[_Step] = []
        in_word = path == self._start or self._alphabet.pieces[path[-1]][-1:].isalnum()
        known = self._choices.get((at, in_word))
        for symbol in known or self._alphabet.choice(at, in_word=in_word):
            if path == self._start and symbol in self._without:
                continue
            try:
                run: Path = (symbol,)
                self.to(path + run)
                if not self._filter.can_end() and (forced := tuple(self._filter.forced())):
                    run += forced
                    self.to(path + run)
                shown = b"" if self._filter.can_end() else self._look()
            except FilterError:
                continue
            if different.setdefault(_Step(run[1:], shown), symbol) == symbol:
                found.append(_Step(run, shown))
        self._choices[at, in_word] = list(different.values())
        return found
