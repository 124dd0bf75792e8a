"""The expressions of a grammar, and how they are written in Lark without their impossible parts.

A place is an expression that others name by its number. What no text satisfies is left out:
options, and what may come any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import GrammarError
from .patterns import ANY_CHAR

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
    """One after the other; ``name``: of the key that has to be there, in messages."""

    parts: Sequence[Expression]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """One of several; ``why`` there are none."""

    options: Sequence[Expression] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """The same, at least and at most so many times; by default once or not at all."""

    part: Expression
    least: int = 0
    most: int | None = 1


Expression: TypeAlias = "str | int | Term | Row | Either | Times"
"""A text is Lark as it stands, and a number is that of a place."""


def written(places: Sequence[Expression], whitespace: str | None) -> str:
    """A grammar of the first place; ``whitespace`` is an expression for what may stand between its
    parts (None: nothing). GrammarError if no text satisfies it."""
    return _Writer(places, whitespace).text()


class _Writer:
    def __init__(self, places: Sequence[Expression], whitespace: str | None) -> None:
        self._places = places
        self._whitespace = whitespace
        self._terminals: dict[str, str] = {}
        self._alive = [False] * len(places)  # which places some text satisfies
        users: list[list[int]] = [[] for _ in places]
        for number, place in enumerate(places):
            for inner in _inside(place):
                users[inner].append(number)
        waiting = list(range(len(places)))
        while waiting:
            number = waiting.pop()
            if not self._alive[number] and self._lives(places[number]):
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

    def text(self) -> str:
        if not self._alive[0]:
            raise GrammarError(f"no text satisfies it: {self._why()}")
        lines = []
        if self._whitespace is not None:
            ignored = self._whitespace.replace("/", "\\x{2f}").replace("\n", "\\n")
            lines = ['%llguidance { "ignore_once": true }', f"%ignore /{ignored}/"]
        lines.append(f"start: {self._written(0)}")
        depths = {0: 0}
        for number in (order := [0]):
            for inner in _inside(self._places[number]):
                if self._alive[inner] and inner not in depths:
                    depths[inner] = depths[number] + 1
                    order.append(inner)
            if depths[number] > MAX_DEPTH:
                raise GrammarError("the schema is nested too deeply")
            if not isinstance(self._places[number], Term):
                text = self._written(self._places[number]) or '""'
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
                place = self._places[part]
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
                    part = self._places[part]
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
