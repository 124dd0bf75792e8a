"""The parts of a schema, written as a grammar in Lark.

Places that no text satisfies are left out: branches of a choice, optional keys, further items.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ...errors import GrammarError
from .keywords import literal
from .places import ANY_KEY, ANY_KEY_IS, Array, Either, Given, Leaf, Node, Object, Places

MAX_DEPTH = 500  # places within places; the engine would overflow the stack


@dataclass(frozen=True, slots=True)
class Held:
    """A schema as a grammar: ``lark``, of which the texts are JSON. ``checked``: the keywords that
    it does not hold, so that a finished text is to be checked. ``notes``: what is left out."""

    lark: str
    checked: Sequence[str] = ()
    notes: Sequence[str] = ()


def held(
    schema: Any,
    *,
    whitespace: str | None,
    separators: tuple[str, str] = (",", ":"),
    closed: bool = False,
    one_of_as_any_of: bool = False,
) -> Held:
    """The grammar of a schema; ``whitespace`` is an expression for what may stand between its parts
    (None: nothing). GrammarError if nothing satisfies it, or it is no schema."""
    places = Places(schema, closed=closed, one_of_as_any_of=one_of_as_any_of)
    return Held(
        _Writer(places.nodes, separators, whitespace).text(),
        tuple(places.checked),
        tuple(places.notes),
    )


def parsed(text: str) -> Any:
    """A schema's JSON, in which no number is rounded."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> float | Decimal:
    """A float if it is exactly what is written."""
    return float(text) if Decimal(repr(float(text))) == Decimal(text) else Decimal(text)


@dataclass(slots=True)
class _Writer:
    nodes: Sequence[Node]
    separators: tuple[str, str]
    whitespace: str | None
    _alive: list[bool] = field(default_factory=list)
    _rules: dict[str, str] = field(default_factory=dict)
    _terminals: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        self._alive = _productive(self.nodes)
        if not self._alive[0]:
            raise GrammarError(f"no text satisfies it: {self._why()}")
        lines = []
        if self.whitespace is not None:
            lines = ['%llguidance { "ignore_once": true }', f"%ignore /{slashed(self.whitespace)}/"]
        self._rules["start"] = self._name(0)
        depths = {0: 0}
        for number in (order := [0]):
            node = self.nodes[number]
            for inner in _inside(node):
                if self._alive[inner] and inner not in depths:
                    depths[inner] = depths[number] + 1
                    order.append(inner)
            if depths[number] > MAX_DEPTH:
                raise GrammarError("the schema is nested too deeply")
            if not isinstance(node, Leaf):
                self._rules[f"v{number}"] = self._rule(number, node)
        lines += [f"{name}: {text}" for name, text in self._rules.items()]
        lines += [f"{name}: {text}" for text, name in self._terminals.items()]
        if any(ANY_KEY in text for text in self._terminals):
            lines.append(f"{ANY_KEY}: {ANY_KEY_IS}")
        return "\n".join((*lines, ""))

    def _name(self, number: int) -> str:
        node = self.nodes[number]
        return self._terminal(node.text) if isinstance(node, Leaf) else f"v{number}"

    def _terminal(self, text: str) -> str:
        return self._terminals.setdefault(text, f"T{len(self._terminals)}")

    def _rule(self, number: int, node: Node) -> str:
        if isinstance(node, Given):
            options = {"x-guidance": {"whitespace_flexible": False}}
            return f"%json {json.dumps({**node.schema, **options})}"
        if isinstance(node, Either):
            return " | ".join([self._name(place) for place in node.places if self._alive[place]])
        if isinstance(node, Array):
            return self._array(number, node)
        assert isinstance(node, Object)
        return self._object(number, node)

    def _array(self, number: int, node: Array) -> str:
        comma = json.dumps(self.separators[0])
        first, rest, least, most = _bounds(node, self._alive)
        more = "" if rest is None else self._name(rest)
        count = len(first)
        if not count:
            return f'"[" {_several(more, comma, least, most)} "]"'
        tail = ""
        if more and (most is None or most > count):
            tail = repeated(f"{comma} {more}", max(least - count, 0), most and most - count)
        items = [f"{comma if i else ''} {self._name(place)}" for i, place in enumerate(first)]
        needed, free = " ".join(items[:least]), items[least:]
        if free:
            start, whole = self._beginnings(free, f"v{number}i")
            tail = f"({start} | {whole} {tail})" if tail else start
        return f'"[" {needed} {tail} "]"'

    def _beginnings(self, items: Sequence[str], name: str) -> tuple[str, str]:
        """Any number of the first items, and all of them; in halves, as ``_some``."""
        if len(items) == 1:
            return f"({items[0]})?", items[0]
        half = len(items) // 2
        start, whole = self._beginnings(items[:half], f"{name}a")
        more, rest = self._beginnings(items[half:], f"{name}b")
        self._rules[f"{name}s"] = f"{start} | {whole} {more}"
        self._rules[f"{name}w"] = f"{whole} {rest}"
        return f"{name}s", f"{name}w"

    def _object(self, number: int, node: Object) -> str:
        colon = json.dumps(self.separators[1])
        named = [
            (f"{literal(name)} {colon} {self._name(place)}", needed)
            for name, place, needed in node.named
            if self._alive[place]
        ]
        kinds = [
            f"{self._terminal(key)} {colon} {self._name(place)}"
            for key, place in node.others
            if self._alive[place]
        ]
        other = f"({' | '.join(kinds)})" if kinds else ""
        if not named:
            inner = _several(other, json.dumps(self.separators[0]), node.least, node.most)
        elif node.most is not None and node.most <= 1:
            one = [item for item, needed in named if needed] or [*(i for i, _ in named), *kinds]
            must = node.least or any(needed for _, needed in named)
            inner = f"({' | '.join(one)}){'' if must else '?'}" if node.most else ""
        else:
            inner = self._ordered(number, named, other, "" if node.least else "?")
        return f'"{{" {inner} "}}"'

    def _ordered(
        self, number: int, named: Sequence[tuple[str, bool]], other: str, none: str
    ) -> str:
        """Keys in order; each but the first one after a comma. ``none``: "?" if none will do."""
        comma = json.dumps(self.separators[0])
        first = next((i for i, (_, needed) in enumerate(named) if needed), len(named))
        rest = [f"({comma} {other})*"] if other else []
        if first < len(named):
            items = named[first + 1 :]
            after = [
                f"{comma} {item}" if needed else f"({comma} {item})?" for item, needed in items
            ]
            rest = [named[first][0], *after, *rest]
        tail = " ".join(rest)
        if not first:
            return tail
        free = self._some([item for item, _ in named[:first]], f"v{number}", comma)[0]
        if first < len(named):
            return f"({free} {comma} {tail} | {tail})"
        return f"({free} {tail} | {other} {tail}){none}" if other else f"({free}){none}"

    def _some(self, items: Sequence[str], name: str, comma: str) -> tuple[str, str]:
        """At least one of some keys in order; and any of them, each after a comma.

        In halves, because the engine follows rules within rules only so deep.
        """
        if len(items) == 1:
            return items[0], f"({comma} {items[0]})?"
        half = len(items) // 2
        first, first_more = self._some(items[:half], f"{name}a", comma)
        second, more = self._some(items[half:], f"{name}b", comma)
        self._rules[f"{name}f"] = f"{first} {more} | {second}"
        self._rules[f"{name}p"] = f"{first_more} {more}"
        return f"{name}f", f"{name}p"

    def _why(self) -> str:
        """Why nothing satisfies the document: the first reason on the way down."""
        number, seen = 0, set[int]()
        path: list[str] = []
        while number not in seen:
            seen.add(number)
            node = self.nodes[number]
            if isinstance(node, Either) and node.why and not node.places:
                return f"{''.join(path)}{node.why}"
            if isinstance(node, Object):
                dead = [
                    (name, place)
                    for name, place, needed in node.named
                    if needed and not self._alive[place]
                ]
                if not dead:
                    return f"{''.join(path)}it has fewer keys than minProperties wants"
                path.append(f"the required property {dead[0][0]!r}: ")
                number = dead[0][1]
                continue
            inner = [each for each in _inside(node) if not self._alive[each]]
            if not inner:
                return f"{''.join(path)}it has no value"
            number = inner[0]
        *before, last = path or [""]
        if last:
            return f"{''.join(before)}{last.removesuffix(': ')} always needs another one like it"
        return "it always needs another one like itself, and never ends"


def slashed(expression: str) -> str:
    """A regular expression between the slashes of Lark."""
    return expression.replace("/", "\\x{2f}").replace("\n", "\\n")


def repeated(part: str, least: int, most: int | None) -> str:
    """A part that comes so many times."""
    if most is None:
        return f"({part})*" if least == 0 else f"({part}){{{least},}}"
    return f"({part}){{{least},{most}}}" if most else ""


def _several(item: str, comma: str, least: int, most: int | None) -> str:
    """So many items, with commas between them."""
    if not item or most == 0:
        return ""
    more = repeated(f"{comma} {item}", max(least - 1, 0), most and most - 1)
    return f"{item} {more}" if least else f"({item} {more})?"


def _inside(node: Node) -> Sequence[int]:
    if isinstance(node, Either):
        return node.places
    if isinstance(node, Array):
        return [*node.first, *([] if node.rest is None else [node.rest])]
    if isinstance(node, Object):
        return [*(place for _, place, _ in node.named), *(place for _, place in node.others)]
    return ()


def _bounds(
    node: Array, alive: Sequence[bool]
) -> tuple[Sequence[int], int | None, int, int | None]:
    """The array without the items that nothing satisfies."""
    first, rest, most = node.first, node.rest, node.most
    dead = next((i for i, place in enumerate(first) if not alive[place]), None)
    if dead is not None:
        return first[:dead], None, node.least, dead
    if rest is None or not alive[rest]:
        return first, None, node.least, len(first) if most is None else min(most, len(first))
    return first, rest, node.least, most


def _productive(nodes: Sequence[Node]) -> list[bool]:
    """Which places some text satisfies: the least fixed point."""
    alive = [isinstance(node, Leaf | Given) for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for inner in _inside(node):
            users[inner].append(number)
    waiting = list(range(len(nodes)))
    while waiting:
        number = waiting.pop()
        if not alive[number] and _ends(nodes[number], alive):
            alive[number] = True
        elif not alive[number]:
            continue
        waiting += [user for user in users[number] if not alive[user]]
    return alive


def _ends(node: Node, alive: Sequence[bool]) -> bool:
    if isinstance(node, Either):
        return any(alive[place] for place in node.places)
    if isinstance(node, Array):
        first, rest, least, most = _bounds(node, alive)
        return least <= len(first) if rest is None else most is None or least <= most
    if isinstance(node, Object):
        if not all(alive[place] for _, place, needed in node.named if needed):
            return False
        others = any(alive[place] for _, place in node.others)
        known = sum(alive[place] for _, place, _ in node.named)
        needed = sum(needed for _, _, needed in node.named)
        return (others or known >= node.least) and (node.most is None or needed <= node.most)
    return True
