"""Whether a value is valid against a schema: in bounded time, and without a network.

References are looked up only in the schema itself, and expressions are searched with a time limit.
``format`` is an annotation here, as in JSON Schema. Each evaluation of a value gives the keys or
items that the schema evaluates, which is what ``unevaluatedProperties`` needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from operator import gt, lt
from typing import Any, TypeAlias

import regex

from ...errors import GrammarError
from .keywords import items_of, parsed
from .patterns import UnsupportedError, searched
from .references import References

_MOST = 50_000  # subschemas that are evaluated for one value
_PATIENCE = 0.02  # seconds for one search

_KINDS: Mapping[type, Set[str]] = {
    type(None): {"null"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    list: {"array"},
    dict: {"object"},
}
_TYPES = frozenset().union(*_KINDS.values())
_SIZED = {"Length": str, "Items": list, "Properties": dict}
Known: TypeAlias = Set[str | int]
_NONE: frozenset[str | int] = frozenset()


class UncheckedError(Exception):
    """The value cannot be checked, or not in time."""


class _ViolationError(Exception):
    """The value violates the keyword that this names."""


@dataclass(frozen=True, slots=True)
class Check:
    """A schema, as JSON text, to check texts of its grammar.

    - ``keywords``: those that the grammar does not enforce, so that a text may violate them.
    - ``notes``: what is not even checked.
    - ``lenient``: whether a text that violates the schema may stand if no valid one is found.
    - ``one_of_as_any_of``: as in ``JsonSchema``.
    """

    schema: str
    keywords: Sequence[str] = ()
    notes: Sequence[str] = ()
    lenient: bool = False
    one_of_as_any_of: bool = False

    def objection(self, text: str) -> str | None:
        """What is wrong with a finished text, if anything is."""
        try:
            return _fitting(self.schema, self.one_of_as_any_of).objection(text)
        except UncheckedError as error:
            return f"it cannot be checked: {error}" if self.keywords else None


@lru_cache(64)
def _fitting(schema: str, one_of_as_any_of: bool) -> Fitting:
    return Fitting(parsed(schema), one_of_as_any_of=one_of_as_any_of)


class Fitting:
    """Checks values against one schema, and against its parts."""

    def __init__(self, schema: Any, *, one_of_as_any_of: bool = False) -> None:
        self.references = References(schema)
        self._schema = schema
        self._any_of = one_of_as_any_of
        self._left = 0

    def objection(self, text: str) -> str | None:
        """What is wrong with a value, given as JSON text: a keyword of the schema, never a value.

        Raises ``UncheckedError`` if that cannot be told.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "it is not JSON"
        violated = self._violated(value, self._schema)
        return None if violated is None else f"it violates {violated}"

    def fits(self, value: Any, part: Any) -> bool:
        """Whether a value is valid against a part of the schema; True if that cannot be told."""
        try:
            return self._violated(value, part) is None
        except UncheckedError:
            return True

    def _violated(self, value: Any, part: Any) -> str | None:
        self._left = _MOST
        try:
            self._look(value, part)
        except _ViolationError as violation:
            return str(violation)
        except UncheckedError:
            raise
        except Exception as error:  # a schema may be wrong in any way
            raise UncheckedError(f"the schema cannot be followed: {type(error).__name__}") from None
        return None

    def _look(self, value: Any, schema: Any) -> Known:
        """The keys or items that a schema evaluates; raises ``_ViolationError``."""
        self._left -= 1
        if self._left < 0:
            raise UncheckedError(f"the schema takes more than {_MOST} steps")
        if isinstance(schema, bool):
            if not schema:
                raise _ViolationError("a schema that nothing satisfies")
            return set()
        known: Known = set()
        for keyword, given in schema.items():
            kinds, holds = _TESTS.get(keyword, ((), None))
            if holds is None:
                found = self._said(keyword, given, value, schema)
                if found is None:
                    raise _ViolationError(keyword)
                known |= found
            elif (not kinds or type(value) in kinds) and not holds(value, given, schema):
                raise _ViolationError(keyword)
        for keyword, kind in (("unevaluatedProperties", dict), ("unevaluatedItems", list)):
            if keyword in schema and isinstance(value, kind):
                keys = value if isinstance(value, dict) else range(len(value))
                known |= self._each(value, [k for k in keys if k not in known], schema[keyword])
        return known

    def _tried(self, value: Any, schema: Any) -> Known | None:
        """The same; ``None`` if the value is not valid."""
        try:
            return self._look(value, schema)
        except _ViolationError:
            return None

    def _each(self, value: Any, keys: Iterable[Any], schema: Any) -> Known:
        """These keys or items of a value, all of which must be valid against one schema."""
        known = {key: self._look(value[key], schema) for key in keys}
        return set(known)

    def _said(self, keyword: str, given: Any, value: Any, schema: Any) -> Known | None:
        """The keys or items that a keyword with subschemas evaluates; ``None`` if the value
        violates the keyword."""
        match keyword:
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                if keyword != "$ref" and not self.references.is_one_document:
                    raise UncheckedError(f"{keyword} depends on the way through several documents")
                return self._look(value, self.references.find(schema, given))
            case "allOf":
                return _NONE.union(*[self._look(value, part) for part in given])
            case "anyOf" | "oneOf":
                found = [known for part in given if (known := self._tried(value, part)) is not None]
                is_one = keyword == "anyOf" or self._any_of or len(found) == 1
                return _NONE.union(*found) if found and is_one else None
            case "not":
                return set() if self._tried(value, given) is None else None
            case "if":
                met = self._tried(value, given)
                then = schema.get("else" if met is None else "then", True)
                return (met or set()) | self._look(value, then)
        if isinstance(value, list):
            return self._said_of_list(keyword, given, value, schema)
        if isinstance(value, dict):
            return self._said_of_object(keyword, given, value, schema)
        return set()

    def _said_of_list(self, keyword: str, given: Any, value: Any, schema: Any) -> Known | None:
        if keyword == "contains":
            fit = {i for i, each in enumerate(value) if self._tried(each, given) is not None}
            least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
            return {*fit} if least <= len(fit) <= most else None
        if keyword == "items" or (keyword == "prefixItems" and "items" not in schema):
            first, rest = items_of(schema)
            for each, inner in zip(value, first, strict=False):
                self._look(each, inner)
            known: Known = set(range(min(len(first), len(value))))
            if ("additionalItems" if first is given else "items") in schema:
                known |= self._each(value, range(len(known), len(value)), rest)
            return known
        return set()

    def _said_of_object(self, keyword: str, given: Any, value: Any, schema: Any) -> Known | None:
        match keyword:
            case "properties":
                return _NONE.union(
                    *[self._each(value, {n} & value.keys(), given[n]) for n in given]
                )
            case "patternProperties":
                found = [(p, [key for key in value if matches(p, key)]) for p in given]
                return _NONE.union(*[self._each(value, keys, given[p]) for p, keys in found])
            case "additionalProperties":
                patterns = schema.get("patternProperties", {})
                rest = [key for key in value if key not in schema.get("properties", {})]
                rest = [key for key in rest if not any(matches(p, key) for p in patterns)]
                return self._each(value, rest, given)
            case "propertyNames":
                for key in value:
                    self._look(key, given)
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                known: Known = set()
                for part in [given[key] for key in given if key in value]:
                    if not isinstance(part, list):
                        known |= self._look(value, part)
                    elif not value.keys() >= set(part):
                        return None
                return known
        return set()


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text. UncheckedError if that takes too long."""
    with suppress(GrammarError, UnsupportedError):  # in another dialect
        pattern = searched(pattern)
    try:
        return regex.search(pattern, text, timeout=_PATIENCE) is not None
    except TimeoutError:
        raise UncheckedError("an expression of the schema takes too long") from None


def _has_type(value: Any, given: Any, schema: Any) -> bool:
    kinds = {*given} if isinstance(given, list) else {given}
    if not kinds <= _TYPES:
        raise ValueError(f"unknown types: {kinds - _TYPES}")
    known = _KINDS[type(value)]
    if isinstance(value, float) and value.is_integer():
        known = known | {"integer"}
    is_null = value is None and schema.get("nullable") is True
    return is_null or not kinds.isdisjoint(known)


def _exact(value: Any) -> Fraction:
    return Fraction(Decimal(repr(value)) if isinstance(value, float) else value)


def _plain(value: Any) -> Any:
    """A value in which equal numbers are equal, and numbers differ from truth values."""
    if isinstance(value, bool):
        return (value, "bool")  # which equals no list
    if isinstance(value, float | Decimal):
        return int(value) if value % 1 == 0 else float(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _is_option(value: Any, given: Any, schema: Any) -> bool:
    is_null = value is None and schema.get("nullable") is True
    return is_null or any(_plain(option) == _plain(value) for option in given)


def _is_beyond(value: Any, given: Any, bound: Any, beyond: Callable[[Any, Any], bool]) -> bool:
    """Whether a value is beyond an exclusive limit; in draft 4, ``True`` makes ``bound``, the
    inclusive one, exclusive."""
    limit = bound if given is True else None if given is False else given
    return limit is None or beyond(value, limit)


def _differ(items: Any) -> bool:
    return len({json.dumps(_plain(each), sort_keys=True) for each in items}) == len(items)


_NUMBERS = (int, float)
_TESTS: Mapping[str, tuple[Sequence[type], Callable[[Any, Any, Any], bool]]] = {
    "type": ((), _has_type),
    "enum": ((), _is_option),
    "const": ((), lambda v, given, _: bool(_plain(given) == _plain(v))),
    "minimum": (_NUMBERS, lambda v, given, _: bool(v >= given)),
    "maximum": (_NUMBERS, lambda v, given, _: bool(v <= given)),
    "exclusiveMinimum": (_NUMBERS, lambda v, given, s: _is_beyond(v, given, s.get("minimum"), gt)),
    "exclusiveMaximum": (_NUMBERS, lambda v, given, s: _is_beyond(v, given, s.get("maximum"), lt)),
    "multipleOf": (_NUMBERS, lambda v, given, _: (_exact(v) / _exact(given)).denominator == 1),
    "pattern": ((str,), lambda v, given, _: matches(given, v)),
    **{f"min{what}": ((of,), lambda v, given, _: len(v) >= given) for what, of in _SIZED.items()},
    **{f"max{what}": ((of,), lambda v, given, _: len(v) <= given) for what, of in _SIZED.items()},
    "uniqueItems": ((list,), lambda v, given, _: not given or _differ(v)),
    "required": ((dict,), lambda v, given, _: v.keys() >= set(given)),
}
"""Keywords without subschemas: the types to which they apply (all, if none are named), and a test
of a value, given the keyword's own value and the whole schema."""
