"""The expressions of a grammar, written in Lark without their impossible parts.

A place is an expression that others refer to by its number. Options, and optional repetitions, that
no text satisfies are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import GrammarError
from .characters import ANY_CHAR
from .keywords import literal

MAX_DEPTH = 500  # places within places; the engine would overflow the stack
_SIGNS = {"{0,1}": "?", "{0,}": "*", "{1,1}": ""}
ANY_KEY = "ANY_KEY"
"""The terminal of all keys."""


@dataclass(frozen=True, slots=True)
class Term:
    """One terminal: the texts that this expression of Lark matches."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence; ``name``: the required key in it, for messages."""

    parts: Sequence[Expression]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """One of several; ``why``: the reason if there are none."""

    options: Sequence[Expression] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """From ``least`` to ``most`` times the same; by default, once or not at all."""

    part: Expression
    least: int = 0
    most: int | None = 1


Expression: TypeAlias = "str | int | Term | Row | Either | Times"
"""A text is Lark as it stands, and a number refers to a place."""


class Grammar:
    """The places of a grammar, and how arrays and objects are built from them."""

    def __init__(self, comma: str, colon: str) -> None:
        self.places: list[Expression] = []
        self._comma, self._colon = json.dumps(comma), json.dumps(colon)
        self._alive: list[bool] = []
        self._terminals: dict[str, str] = {}  # their names

    def added(self, part: Expression) -> int:
        """The number of a new place."""
        self.places.append(part)
        return len(self.places) - 1

    def array(
        self, first: Sequence[Expression], rest: Expression | None, least: int, most: int | None
    ) -> Row:
        """A list of the ``first`` items, then others like ``rest``."""
        if not first:
            inner = "" if rest is None else self._several(rest, least, most)
            return Row(('"["', inner, '"]"'))
        tail: Expression = ""
        if rest is not None and most != len(first):
            more = None if most is None else most - len(first)
            tail = Times(Row((self._comma, rest)), max(least - len(first), 0), more)
        for i in reversed(range(len(first))):
            item = Row((self._comma, first[i]) if i else (first[i],))
            tail = self.added(Times(Row((item, tail)), int(i < least)))
        return Row(('"["', tail, '"]"'))

    def _several(self, item: Expression, least: int, most: int | None) -> Expression:
        """From ``least`` to ``most`` items, with commas between them."""
        more = Times(Row((self._comma, item)), max(least - 1, 0), most and most - 1)
        some = Row((item, more))
        return some if least else Times(some, 0, 0 if most == 0 else 1)

    def object(
        self,
        named: Sequence[tuple[str, Expression, bool]],
        others: Sequence[tuple[str, int]],
        least: int = 0,
        most: int | None = None,
    ) -> Row:
        """An object of ``named`` keys in order, each with its place and whether it is required;
        then of ``others``, each kind with the terminal of its keys. With named keys, only bounds up
        to 1 are enforced, for ``least`` as for ``most``."""
        other = Either([Row((Term(key), self._colon, place)) for key, place in others])
        items = [
            Row((literal(name), self._colon, place), name if needed else None)
            for name, place, needed in named
        ]
        after = [Times(Row((self._comma, item)), int(item.name is not None)) for item in items]
        first = next((i for i, item in enumerate(items) if item.name is not None), len(items))
        inner: Expression
        if not items:
            inner = self._several(other, least, most)
        elif most is not None and most <= 1:
            one = Either(items[first : first + 1] or (*items, other))
            inner = Times(one, int(least > 0 or first < len(items)), most)
        else:
            free = self._some(items[:first])[0] if first else None
            more = Times(Row((self._comma, other)), 0, None)
            if first < len(items):
                inner = Row((items[first], *after[first + 1 :], more))
                inner = inner if free is None else Row((Times(Row((free, self._comma))), inner))
            elif free is not None:
                inner = Times(Either((Row((free, more)), Row((other, more)))), int(least > 0))
        return Row(('"{"', inner, '"}"'))

    def _some(self, items: Sequence[Expression]) -> tuple[Expression, Expression]:
        """At least one of some keys, in order; and any number of them, each after a comma.

        Split in halves, because the engine limits how deep rules are nested.
        """
        if len(items) == 1:
            return items[0], Times(Row((self._comma, items[0])))
        half = len(items) // 2
        first, first_more = self._some(items[:half])
        second, more = self._some(items[half:])
        some = self.added(Either((Row((first, more)), second)))
        return some, self.added(Row((first_more, more)))

    # ---- as Lark -----------------------------------------------------------------------------

    def _mark_alive(self) -> None:
        """Marks the places that some text satisfies: the least fixed point."""
        self._alive = [False] * len(self.places)
        users: list[list[int]] = [[] for _ in self.places]
        for number, place in enumerate(self.places):
            for inner in _inside(place):
                users[inner].append(number)
        waiting = list(range(len(self.places)))
        while waiting:
            number = waiting.pop()
            if not self._alive[number] and self._lives(self.places[number]):
                self._alive[number] = True
                waiting += users[number]

    def _lives(self, part: Expression) -> bool:
        match part:
            case int():
                return self._alive[part]
            case Row():
                return all(map(self._lives, part.parts))
            case Either():
                return any(map(self._lives, part.options))
            case Times():
                return part.least == 0 or self._lives(part.part)
        return True

    def text(self, whitespace: str | None) -> str:
        """The grammar of the first place; ``whitespace`` is an expression for what may stand
        between its parts (None: nothing). GrammarError if no text satisfies it."""
        self._mark_alive()
        if not self._alive[0]:
            raise GrammarError(f"no text satisfies it: {self._why()}")
        lines = []
        if whitespace is not None:
            ignored = whitespace.replace("/", "\\x{2f}").replace("\n", "\\n")
            lines = ['%llguidance { "ignore_once": true }', f"%ignore /{ignored}/"]
        lines.append(f"start: {self._written(0)}")
        depths = {0: 0}
        for number in (order := [0]):
            for inner in _inside(self.places[number]):
                if self._alive[inner] and inner not in depths:
                    depths[inner] = depths[number] + 1
                    order.append(inner)
            if depths[number] > MAX_DEPTH:
                raise GrammarError("the schema is nested too deeply")
            if not isinstance(self.places[number], Term):
                text = self._written(self.places[number]) or '""'
                lines.append(f"v{number}: {text}")
        lines += [f"{name}: {text}" for text, name in self._terminals.items()]
        if any(ANY_KEY in text for text in self._terminals):
            lines.append(f"{ANY_KEY}: /\\x{{22}}{ANY_CHAR}*\\x{{22}}/")
        return "\n".join((*lines, ""))

    def _written(self, part: Expression) -> str:
        match part:
            case str():
                return part
            case int():
                place = self.places[part]
                return self._written(place) if isinstance(place, Term) else f"v{part}"
            case Term():
                return self._terminals.setdefault(part.text, f"T{len(self._terminals)}")
            case Row():
                return " ".join(filter(None, map(self._written, part.parts)))
            case Either():
                options = [self._written(each) for each in part.options if self._lives(each)]
                return options[0] if len(options) == 1 else f"({' | '.join(options)})"
        inner = self._written(part.part) if self._lives(part.part) and part.most != 0 else ""
        if not inner:
            return ""
        counts = f"{{{part.least},{'' if part.most is None else part.most}}}"
        return f"({inner}){_SIGNS.get(counts, counts)}"

    def _why(self) -> str:
        """Why nothing satisfies the grammar: the first reason on the way down."""
        part: Expression = 0
        seen, path = set[int](), ""
        while True:
            match part:
                case int() if part in seen:
                    return f"{path}it always needs another one like itself, and never ends"
                case int():
                    seen.add(part)
                    part = self.places[part]
                case Row():
                    if part.name is not None:
                        path += f"the required property {part.name!r}: "
                    part = next(each for each in part.parts if not self._lives(each))
                case Times():
                    part = part.part
                case Either() if part.options:
                    part = part.options[0]
                case _:
                    return f"{path}{part.why if isinstance(part, Either) else 'it has no value'}"


def _inside(part: Expression) -> Iterator[int]:
    """The places in an expression."""
    match part:
        case int():
            yield part
        case Row(parts) | Either(parts):
            for each in parts:
                yield from _inside(each)
        case Times():
            yield from _inside(part.part)
