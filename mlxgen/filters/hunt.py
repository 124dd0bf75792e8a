"""The search for the shortest way to an end.

Best first, over paths of bytes (Hart, Nilsson and Raphael, 1968): by the bytes so far (forced
ones count half), by how many brackets are open (each will take at least a byte), and by how
many symbols were preferred to those on the path. The states of a grammar are hidden, so paths
count as the same if mask, probes and outline are the same; and as soon as a value is finished,
no other way to finish it is followed. Both are guesses that make an exponential search linear,
and may be wrong for a grammar that is not like JSON. So some hunts also follow ``blanks``
between other symbols, and ``alike`` symbols: once each, if symbols of other kinds show the
same.

Invariant: each path that is found ends validly with its last byte, and is shorter than those
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log2
from typing import NamedTuple, TypeAlias

from ..errors import FilterError
from ..tokens import Token
from .outline import Outline, Place
from .walk import Alphabet, Walk, go

Path: TypeAlias = tuple[Token, ...]

# What a path is charged, in half bytes:
_OPEN = 4  # for an open bracket
_RANK = 2  # for a second choice
_INNER = 4  # for a second choice inside a string that is a value
_SAME = 4  # for a step that seems to lead nowhere

_BLANKS = (b" ", b"\n", b"\t", b"\r")
_TEXT = (b"z", b"}", b" ")  # a place that allows all of these is in free text
_WIDE = 8  # a place that allows more symbols is wide


class _Step(NamedTuple):
    run: Path
    shown: bytes
    ends: bool


@dataclass(slots=True)
class _Choice:
    """The symbols to try at places that allow the same."""

    symbols: Sequence[Token]
    is_text: bool
    is_wide: bool
    known: bool = False  # whether ``symbols`` are those that made a difference there


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


@dataclass(slots=True)
class Hunt:
    """A search from ``start`` on; ``outline`` is that of the text before it."""

    walk: Walk
    alphabet: Alphabet
    outline: Outline
    start: Path = ()
    blanks: bool = False
    alike: bool = False
    without: frozenset[Token] = frozenset()  # symbols that the way must not begin with
    _going: Iterator[Path | None] = field(init=False)
    _choices: dict[bytes, _Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._going = self._ways()

    def until(self, steps: int) -> Iterator[Path]:
        """Ever shorter ways, if they are found in ``steps`` more steps (or a few more)."""
        last = self.walk.steps + steps
        for way in self._going:
            if way is not None:
                yield way
            if self.walk.steps > last:
                return

    def _ways(self) -> Iterator[Path | None]:
        """The ways, and None after each place that was looked at."""
        pieces = self.alphabet.pieces
        heap: list[tuple[float, int, float, int, Path, Outline, _Turns, list[Place]]] = []
        heappush(heap, (0.0, 0, 0.0, 0, self.start, self.outline, _Turns(), []))
        seen: set[tuple[object, ...]] = set()
        alike: set[tuple[object, ...]] = set()
        finished: set[Place] = set()
        order, least = 0, float("inf")
        while heap:
            _, _, far, length, path, outline, turns, ended = heappop(heap)
            if length >= least or outline.is_within(finished):
                continue
            finished.update(ended)
            steps, choice = self._steps(path)
            only = len(choice.symbols) == 1
            inner = outline.string is not None and outline.is_value
            shown: set[bytes] = set()
            for step in steps:
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
                kind = 0 if choice.is_text else self.alphabet.kinds.get(run[-1], run[-1])
                after = turns.then(step, kind, then.since)
                is_alike = step.shown in shown and len(run) == 1
                if is_alike:
                    again = (outline.place, outline.sign, turns[1:], run)
                    if not self.alike or again in alike:
                        continue
                    alike.add(again)
                if inner and not self.alike:  # probes tell places in patterns apart
                    after = after._replace(before=0)
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
            yield None

    def _steps(self, path: Path) -> tuple[list[_Step], _Choice]:
        """Where the symbols after a path lead, with what they force."""
        walk, found = self.walk, list[_Step]()
        try:
            go(walk, path)
            choice = self._choice(walk.look())
        except FilterError:
            return found, _Choice((), False, False)
        kinds = self.alphabet.kinds
        different: dict[tuple[object, ...], Token] = {}
        for symbol in choice.symbols:
            if path == self.start and symbol in self.without:
                continue
            try:
                walk.forth((symbol,))
                run: Path = (symbol,)
                if not walk.can_end():
                    forced = tuple(walk.forced())
                    if forced:
                        walk.forth(forced)
                        run += forced
                ends = walk.can_end()
                step = _Step(run, b"" if ends else walk.look(), ends)
            except FilterError:
                continue
            finally:
                walk.back(len(path))
            kind = 0 if choice.is_text else kinds.get(symbol, symbol)
            if different.setdefault((run[1:], step.shown, kind), symbol) == symbol:
                found.append(step)
        if choice.is_wide and not choice.known:
            choice.symbols, choice.known = list(different.values()), True
        return found, choice

    def _choice(self, shown: bytes) -> _Choice:
        if shown in self._choices:
            return self._choices[shown]
        alphabet = self.alphabet
        allowed = [symbol for symbol, yes in zip(alphabet.symbols, shown, strict=False) if yes]
        text = {alphabet.pieces[symbol] for symbol in allowed}.issuperset(_TEXT)
        blank = [symbol for symbol in allowed if alphabet.pieces[symbol] in _BLANKS]
        inked = [symbol for symbol in allowed if alphabet.pieces[symbol] not in _BLANKS]
        if text:  # a quote may end it, and spaces are long tokens
            first = [symbol for symbol in inked if alphabet.pieces[symbol] == b'"']
            rest = [symbol for symbol in inked if alphabet.is_plain(symbol)]
            symbols = [*first, blank[-1], *rest]
        else:
            symbols = inked + blank[: self.blanks] if inked else blank
        choice = self._choices[shown] = _Choice(symbols, text, len(symbols) > _WIDE)
        return choice
