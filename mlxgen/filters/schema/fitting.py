"""Whether a value fits a schema: in bounded time, and without a network.

Only what the schema itself holds is looked up, and expressions are searched with a time limit.
``format`` is a note here, as in JSON Schema. Each look at a value gives the keys or the items about
which the schema says something, which is what ``unevaluatedProperties`` needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import regex

from ...errors import GrammarError
from .keywords import items_of, parsed
from .patterns import UnsupportedError, searched
from .references import References

_MOST = 50_000  # schemas that are looked at for one value
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
Known: TypeAlias = set[str | int]


class UncheckedError(Exception):
    """The value cannot be checked, or not in time."""


class _ViolationError(Exception):
    """The value violates the keyword that this names."""


@dataclass(frozen=True, slots=True)
class Check:
    """A schema, as JSON text, for texts of its grammar.

    - ``keywords``: those that the grammar does not hold, so that the text may not fit.
    - ``notes``: what is not even checked.
    - ``lenient``: whether a text that does not fit may stand, if no other one is found.
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
        """Whether a value fits a part of the schema; what cannot be told counts as fitting."""
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
        """The keys or items about which a schema says something; raises ``_ViolationError``."""
        self._left -= 1
        if self._left < 0:
            raise UncheckedError(f"the schema takes more than {_MOST} steps")
        if isinstance(schema, bool):
            if not schema:
                raise _ViolationError("a schema that nothing satisfies")
            return set()
        known: Known = set()
        for keyword, given in schema.items():
            found = self._said(keyword, given, value, schema)
            if found is False:
                raise _ViolationError(keyword)
            if found is not True:
                known |= found
        for keyword, kind in (("unevaluatedProperties", dict), ("unevaluatedItems", list)):
            if keyword in schema and isinstance(value, kind):
                keys = value if isinstance(value, dict) else range(len(value))
                known |= self._each(value, [k for k in keys if k not in known], schema[keyword])
        return known

    def _tried(self, value: Any, schema: Any) -> Known | None:
        """The same; ``None`` if the value does not fit."""
        try:
            return self._look(value, schema)
        except _ViolationError:
            return None

    def _each(self, value: Any, keys: Iterable[Any], schema: Any) -> Known:
        """These keys or items of a value, which all have to fit one schema."""
        known = {key: self._look(value[key], schema) for key in keys}
        return set(known)

    def _said(self, keyword: str, given: Any, value: Any, schema: Any) -> bool | Known:
        """Whether a keyword of a schema holds; or about which keys or items it says something."""
        match keyword, value:
            case "type", _:
                return _has_type(value, given) or (value is None and schema.get("nullable") is True)
            case "enum", _:
                is_null = value is None and schema.get("nullable") is True
                return is_null or any(_plain(option) == _plain(value) for option in given)
            case "const", _:
                return bool(_plain(given) == _plain(value))
            # ---- schemas about the same value
            case (("$ref" | "$dynamicRef" | "$recursiveRef"), _):
                if keyword != "$ref" and not self.references.is_one_document:
                    raise UncheckedError(f"{keyword} depends on the way through several documents")
                return self._look(value, self.references.find(schema, given))
            case "allOf", _:
                return set[str | int]().union(*[self._look(value, part) for part in given])
            case (("anyOf" | "oneOf"), _):
                found = [known for part in given if (known := self._tried(value, part)) is not None]
                is_one = keyword == "anyOf" or self._any_of or len(found) == 1
                return bool(found) and is_one and set[str | int]().union(*found)
            case "not", _:
                return self._tried(value, given) is None
            case "if", _:
                met = self._tried(value, given)
                then = schema.get("else" if met is None else "then", True)
                return (met or set()) | self._look(value, then)
            # ---- numbers and strings
            case _, bool():
                return True
            case "minimum", int() | float():
                return bool(value >= given)
            case "maximum", int() | float():
                return bool(value <= given)
            case "exclusiveMinimum", int() | float():
                limit = _limit(given, schema.get("minimum"))
                return limit is None or value > limit
            case "exclusiveMaximum", int() | float():
                limit = _limit(given, schema.get("maximum"))
                return limit is None or value < limit
            case "multipleOf", int() | float():
                return (_exact(value) / _exact(given)).denominator == 1
            case "pattern", str():
                return matches(given, value)
            case ("minLength", str()) | ("minItems", list()) | ("minProperties", dict()):
                return bool(len(value) >= given)
            case ("maxLength", str()) | ("maxItems", list()) | ("maxProperties", dict()):
                return bool(len(value) <= given)
            # ---- lists
            case "uniqueItems", list():
                different = {json.dumps(_plain(each), sort_keys=True) for each in value}
                return not given or len(different) == len(value)
            case (("items" | "prefixItems"), list()) if keyword == "items" or "items" not in schema:
                first, rest = items_of(schema)
                for each, inner in zip(value, first, strict=False):
                    self._look(each, inner)
                known = set(range(min(len(first), len(value))))
                if ("additionalItems" if first is given else "items") in schema:
                    known.update(self._each(value, range(len(known), len(value)), rest))
                return known
            case "contains", list():
                known = {i for i, each in enumerate(value) if self._tried(each, given) is not None}
                least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
                return least <= len(known) <= most and known
            # ---- objects
            case "required", dict():
                return value.keys() >= set(given)
            case "properties", dict():
                names = [name for name in given if name in value]
                return {name for name in names if self._look(value[name], given[name]) is not None}
            case "patternProperties", dict():
                return {
                    key
                    for pattern, inner in given.items()
                    for key in self._each(value, [k for k in value if matches(pattern, k)], inner)
                }
            case "additionalProperties", dict():
                patterns = schema.get("patternProperties", {})
                rest = [key for key in value if key not in schema.get("properties", {})]
                rest = [key for key in rest if not any(matches(p, key) for p in patterns)]
                return self._each(value, rest, given)
            case "propertyNames", dict():
                return all(self._look(key, given) is not None for key in value)
            case (("dependentRequired" | "dependentSchemas" | "dependencies"), dict()):
                wanted = [given[key] for key in given if key in value]
                if not all(
                    value.keys() >= set(names) for names in wanted if isinstance(names, list)
                ):
                    return False
                parts = [part for part in wanted if not isinstance(part, list)]
                return set[str | int]().union(*[self._look(value, part) for part in parts])
        return True


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text. UncheckedError if that takes too long."""
    with suppress(GrammarError, UnsupportedError):  # in another dialect
        pattern = searched(pattern)
    try:
        return regex.search(pattern, text, timeout=_PATIENCE) is not None
    except TimeoutError:
        raise UncheckedError("an expression of the schema takes too long") from None


def _has_type(value: Any, given: Any) -> bool:
    kinds = {*given} if isinstance(given, list) else {given}
    if not kinds <= _TYPES:
        raise ValueError(f"unknown types: {kinds - _TYPES}")
    known = _KINDS[type(value)]
    if isinstance(value, float) and value.is_integer():
        known = known | {"integer"}
    return not kinds.isdisjoint(known)


def _limit(given: Any, bound: Any) -> Any:
    """A bound that is out itself; as in draft 4, ``True`` says that another one is."""
    return bound if given is True else None if given is False else given


def _exact(value: Any) -> Fraction:
    return Fraction(Decimal(repr(value)) if isinstance(value, float) else value)


def _plain(value: Any) -> Any:
    """A value in which equal numbers are alike, and numbers unlike the truth values."""
    if isinstance(value, bool):
        return [value, "bool"]
    if isinstance(value, float | Decimal):
        return int(value) if value % 1 == 0 else float(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
