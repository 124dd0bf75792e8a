"""The search for a short way to an end, over the symbols of an alphabet.

Best first, over paths of symbols (Hart, Nilsson and Raphael, 1968): by the length so far (forced
symbols count half), by how many brackets are open (each will take at least a symbol), and by
steps that seem to lead nowhere. The states of a grammar are hidden, so paths count as the same if
they have the same ``Outline`` and showed the same masks since its last sign; and as soon as a value
is finished, no other way to finish it is followed. Both are guesses that make an exponential search
linear, and may be wrong for a grammar that is not like JSON. So a ``thorough`` search also follows
blanks between other symbols, and each symbol once if another one shows the same.

Invariant: each path that is found ends validly with its last symbol, and is shorter than those
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import heappop, heappush
from math import log2
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import FilterError
from ..tokens import Token, Vocabulary, in_common
from .bytewise import ByteVocabulary
from .constraint import Constraint
from .protocol import Int32Words, word_count

Path: TypeAlias = tuple[Token, ...]
Place: TypeAlias = tuple[bytes | int, ...]
"""For each open bracket: the latest key of an object, or the number of commas of a list."""

# What a path is charged, in half symbols:
_OPEN = 4  # for an open bracket
_RANK = 2  # for a second choice
_INNER = 4  # for a second choice inside a string that is a value
_SAME = 4  # for a step that seems to lead nowhere

_KEY = 64  # bytes of a key that count
_BLANKS = (b" ", b"\n", b"\t", b"\r")
_TEXT = (b"z", b"}", b" ")  # a place that allows all of these is in free text
_WIDE = 8  # a place that allows more symbols is wide
_ORDER = b"}]),:;>0ntf\"'`a.-@/T+_(=*!?#$%&~^|A"  # closing signs, shortest values, other signs
_LATE = b"\\[<{"  # opening signs


class Outline(NamedTuple):
    """Where a text stands, with everything that is finished left out.

    After a finished value it rarely matters what the value was: in JSON, and in most of what
    grammars describe, what may follow depends on the brackets that are open, the latest key of
    each object, and the number of items in each list.
    """

    place: Place = ()
    sign: bytes = b""  # the latest one outside of strings; '"' after what is finished
    string: bytes | None = None  # the beginning of the open string
    escaped: bool = False
    latest: bytes | None = None  # the string that was closed last, which may be a key
    since: int = 0  # bytes since the last sign

    def then(self, pieces: Iterable[bytes], finished: list[Place]) -> Outline:
        """The outline after these pieces; places at which a value ends go to ``finished``."""
        place, sign, string, escaped, latest, since = self
        for piece in pieces:
            if string is not None:
                if piece == b'"' and not escaped:
                    if sign == b":" or not _holds_keys(place):
                        finished.append(place)
                    latest, string, sign, since = string, None, piece, 0
                    continue
                escaped = piece == b"\\" and not escaped
                string = string if len(string) > _KEY else string + piece
                since += len(piece)
            elif piece == b'"':
                string, since = b"", 0
            elif piece == b"{":
                place, sign, since = (*place, b""), piece, 0
            elif piece in (b"[", b"("):
                place, sign, since = (*place, 0), piece, 0
            elif piece in (b"}", b"]", b")"):
                finished += (place, place[:-1])
                place, sign, since = place[:-1], b'"', 0
            elif piece == b":" and latest is not None:
                place, sign, since = (*place[:-1], latest), piece, 0
                latest = None
            elif piece == b",":
                finished.append(place)
                if place and isinstance(place[-1], int):
                    place = (*place[:-1], place[-1] + 1)
                sign, since = piece, 0
            else:
                since += len(piece)
        return Outline(place, sign, string, escaped, latest, since)

    def is_within(self, finished: Set[Place]) -> bool:
        """Whether the text is in the middle of a value at one of these places."""
        place, depth = self.place, len(self.place) - 1
        if self.sign == b":" or (self.sign != b'"' and place and not _holds_keys(place)):
            depth += 1
        return any(place[:length] in finished for length in range(1, depth + 1))


def _holds_keys(place: Place) -> bool:
    return bool(place) and isinstance(place[-1], bytes)


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
        self.kinds = {token: _kind(self.pieces[token][0]) for token in singles}

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Alphabet:
        return vocabulary.derived("alphabet", lambda: cls(vocabulary))

    def shown(self, mask: Int32Words) -> bytes:
        """One byte for each symbol and each probe: whether a mask allows it."""
        flags: npt.NDArray[np.uint8] = ((mask[self.words] >> self.bits) & 1).astype(np.uint8)
        return flags.tobytes()


def _kind(byte: int) -> int:
    """The kind of a byte: letters are alike in patterns, and so are digits, and non-ASCII bytes."""
    sign = chr(byte)
    return -1 if byte >= 128 else -2 if sign.isdigit() else -3 if sign.isalpha() else byte


class Walk:
    """The filters of a constraint, on their way along paths; ``steps`` counts the work.

    Back at the beginning of the path, the constraint is as it was.
    """

    def __init__(self, constraint: Constraint, alphabet: Alphabet) -> None:
        self.steps = 0
        self._path: list[Token] = []
        self._filter = constraint.filter
        self._start = constraint.fed
        self._shown = alphabet.shown
        self._everything = bytes([1]) * len(alphabet.words)
        self._row = np.empty(word_count(constraint.vocab_size), dtype=np.int32)

    def to(self, path: Sequence[Token]) -> None:
        """Goes to the end of a path. FilterError if it is not allowed."""
        common = in_common(self._path, list(path))
        if common < len(self._path):
            self._filter.rewind(self._start + common)
            del self._path[common:]
        for token in path[common:]:
            self._filter.advance(token)
            self._path.append(token)
        self.steps += 1 + (len(path) - common) // 8

    def look(self) -> bytes:
        """What is allowed, as ``Alphabet.shown``. FilterError if nothing is."""
        if not self._filter.fill(self._row):
            return self._everything
        if not self._row.any():
            raise FilterError("nothing may follow")
        return self._shown(self._row)

    def can_end(self) -> bool:
        return self._filter.can_end()

    def forced(self) -> Path:
        """What must come next, as far as it is known."""
        return tuple(self._filter.forced())


class _Step(NamedTuple):
    run: Path
    shown: bytes
    ends: bool


class _Turns(NamedTuple):
    """What the places of a path showed since the last sign of its outline, without repetitions."""

    before: int = 0
    shown: bytes = b""
    kind: int = 0

    def then(self, step: _Step, kind: int, since: int) -> _Turns:
        run = step.run
        if not since:
            return _Turns()
        if since < len(run):
            return _Turns(hash(run[1:]), step.shown, kind)
        if len(run) == 1 and self[1:] == (step.shown, kind):
            return self
        return _Turns(hash((self, run[1:])), step.shown, kind)


class Hunt:
    """One search, from ``start`` on; ``outline`` is that of the text before it."""

    def __init__(
        self,
        walk: Walk,
        alphabet: Alphabet,
        outline: Outline,
        start: Path,
        blanks: bool,
        alike: bool,
        without: Set[Token],
    ) -> None:
        self._walk, self._alphabet = walk, alphabet
        self._outline, self._start = outline, start
        self._blanks, self._alike, self._without = blanks, alike, without
        self._choices: dict[bytes, tuple[list[Token], bool]] = {}  # by what is shown
        self._tried: set[bytes] = set()  # of these, wide ones whose symbols were told apart

    def ways(self, steps: int) -> Iterator[Path]:
        """Ever shorter ways, as long as no more than ``steps`` were taken, or a few more."""
        pieces, kinds = self._alphabet.pieces, self._alphabet.kinds
        last = self._walk.steps + steps
        heap: list[tuple[float, int, float, int, Path, Outline, _Turns, list[Place]]] = []
        heappush(heap, (0.0, 0, 0.0, 0, self._start, self._outline, _Turns(), []))
        seen: set[tuple[object, ...]] = set()
        alike: set[tuple[object, ...]] = set()
        finished: set[Place] = set()
        order, least = 0, float("inf")
        while heap and self._walk.steps <= last:
            _, _, far, length, path, outline, turns, ended = heappop(heap)
            if length >= least or outline.is_within(finished):
                continue
            finished.update(ended)
            steps_from, is_text, only = self._steps(path)
            inner = outline.string is not None and _is_value(outline)
            shown: set[bytes] = set()
            for step in steps_from:
                run = step.run
                now = length + len(run) + (not only)
                if now >= least:
                    continue
                if step.ends:
                    least = now
                    yield path + run
                    continue
                ends: list[Place] = []
                then = outline.then((pieces[token] for token in run), ends)
                kind = 0 if is_text else kinds.get(run[-1], run[-1])
                after = turns.then(step, kind, then.since)
                if step.shown in shown and len(run) == 1:
                    again = (outline.place, outline.sign, turns[1:], run)
                    if not self._alike or again in alike:
                        continue
                    alike.add(again)
                if inner and not self._alike:
                    after = after._replace(before=0)  # probes tell places in patterns apart
                state = (then._replace(string=None), then.string is None, after, step.shown)
                if state in seen:
                    continue
                seen.add(state)
                rank = (_INNER if inner else _RANK) * log2(1 + len(shown))
                shown.add(step.shown)
                same = _SAME * (turns.shown == step.shown)
                beyond = far + 2 - only + 0.5 * (len(run) - 1) + rank + same
                order -= 1
                bound = beyond + _OPEN * (len(then.place) + (then.string is not None) / 2)
                heappush(heap, (bound, order, beyond, now, path + run, then, after, ends))

    def _steps(self, path: Path) -> tuple[list[_Step], bool, bool]:
        """Where the symbols after a path lead, with what they force; whether it is in free text,
        and whether there is only one symbol."""
        walk, kinds, found = self._walk, self._alphabet.kinds, list[_Step]()
        try:
            walk.to(path)
            at = walk.look()
        except FilterError:
            return found, False, False
        symbols, is_text = self._choice(at)
        different: dict[tuple[object, ...], Token] = {}
        for symbol in symbols:
            if path == self._start and symbol in self._without:
                continue
            try:
                run: Path = (symbol,)
                walk.to(path + run)
                if not walk.can_end() and (forced := walk.forced()):
                    run += forced
                    walk.to(path + run)
                ends = walk.can_end()
                step = _Step(run, b"" if ends else walk.look(), ends)
            except FilterError:
                continue
            kind = 0 if is_text else kinds.get(symbol, symbol)
            if different.setdefault((run[1:], step.shown, kind), symbol) == symbol:
                found.append(step)
        if len(symbols) > _WIDE and at not in self._tried:
            self._tried.add(at)
            self._choices[at] = list(different.values()), is_text
        return found, is_text, len(symbols) == 1

    def _choice(self, shown: bytes) -> tuple[list[Token], bool]:
        """The symbols to try at a place, and whether it is in free text."""
        if shown in self._choices:
            return self._choices[shown]
        pieces, kinds = self._alphabet.pieces, self._alphabet.kinds
        allowed = [
            symbol for symbol, yes in zip(self._alphabet.symbols, shown, strict=False) if yes
        ]
        is_text = {pieces[symbol] for symbol in allowed}.issuperset(_TEXT)
        blank = [symbol for symbol in allowed if pieces[symbol] in _BLANKS]
        inked = [symbol for symbol in allowed if pieces[symbol] not in _BLANKS]
        if is_text:  # a quote may end it, spaces are long tokens, and a backslash needs another
            first = [symbol for symbol in inked if pieces[symbol] == b'"']
            rest = [symbol for symbol in inked if kinds.get(symbol) not in (-1, ord("\\"))]
            symbols = [*first, blank[-1], *rest]
        else:
            symbols = inked + blank[: self._blanks] if inked else blank
        self._choices[shown] = symbols, is_text
        return symbols, is_text


def _is_value(outline: Outline) -> bool:
    return outline.sign == b":" or not _holds_keys(outline.place)
