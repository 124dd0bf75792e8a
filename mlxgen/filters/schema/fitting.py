"""Whether a value fits a schema: in bounded time, and without a network.

Only what the schema itself holds is looked up, and expressions are searched with a time limit.
``format`` is a note here, as in JSON Schema.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import regex
from jsonschema import ValidationError
from jsonschema.validators import Draft202012Validator, extend, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from ...errors import GrammarError
from .patterns import UnsupportedError, searched

_MOST = 50_000  # keywords that are looked at for one value
_PATIENCE = 0.02  # seconds for one search

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class UncheckedError(Exception):
    """The value cannot be checked, or not in time."""


class Fitting:
    """Checks values against one schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._left = 0
        known: Any = Draft202012Validator
        if isinstance(schema.get("$schema"), str):
            known = validator_for(schema, default=known)
        rules = {name: _OWN.get(name, rule) for name, rule in known.VALIDATORS.items()}
        rules |= {name: _OWN[name] for name in _IN_ANY_DRAFT}
        counted = {name: self._counted(rule) for name, rule in rules.items()}
        made: Any = extend(known, counted)  # type: ignore[no-untyped-call]
        self._checker = made(schema, registry=REGISTRY)

    def objection(self, text: str) -> str | None:
        """What is wrong with a value, given as JSON text: a keyword of the schema, never a value.

        Raises ``UncheckedError`` if that cannot be told.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "it is not JSON"
        error = self._first(self._checker, value)
        if error is None:
            return None
        return f"it violates {error.validator or 'a schema that nothing satisfies'}"

    def fits(self, value: Any, part: Any) -> bool:
        """Whether a value fits a part of the schema; what cannot be told counts as fitting."""
        try:
            return self._first(self._checker.evolve(schema=part), value) is None
        except UncheckedError:
            return True

    def _first(self, checker: Any, value: Any) -> ValidationError | None:
        self._left = _MOST
        try:
            first: ValidationError | None = next(checker.iter_errors(value), None)
        except UncheckedError:
            raise
        except Exception as error:  # a schema may be wrong in any way
            raise UncheckedError(f"the schema cannot be followed: {type(error).__name__}") from None
        return first

    def _counted(self, rule: Keyword) -> Keyword:
        def counted(*given: Any) -> Iterator[ValidationError] | None:
            self._left -= 1
            if self._left < 0:
                raise UncheckedError(f"the schema takes more than {_MOST} steps")
            return rule(*given)

        return counted


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text. UncheckedError if that takes too long."""
    with suppress(GrammarError, UnsupportedError):  # in another dialect
        pattern = searched(pattern)
    try:
        return regex.search(pattern, text, timeout=_PATIENCE) is not None
    except TimeoutError:
        raise UncheckedError("an expression of the schema takes too long") from None


def _pattern(checker: Any, pattern: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not matches(pattern, value):
        yield ValidationError("does not match")


def _type(checker: Any, types: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """OpenAPI has a keyword for types that may be null, too."""
    if value is None and schema.get("nullable") is True:
        return
    kinds = types if isinstance(types, list) else [types]
    if not any(checker.is_type(value, kind) for kind in kinds):
        yield ValidationError("has another type")


def _enum(checker: Any, options: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if value is None and schema.get("nullable") is True:
        return
    if not any(_plain(option) == _plain(value) for option in options):
        yield ValidationError("is not one of the values")


def _const(checker: Any, option: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if _plain(option) != _plain(value):
        yield ValidationError("is another value")


def _multiple_of(checker: Any, step: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if checker.is_type(value, "number") and (_exact(value) / _exact(step)).denominator > 1:
        yield ValidationError("is not a multiple")


def _exact(value: Any) -> Fraction:
    return Fraction(Decimal(repr(value)) if isinstance(value, float) else value)


def _pattern_properties(
    checker: Any, patterns: Any, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, inner in patterns.items():
            for key, each in value.items():
                if matches(pattern, key):
                    yield from checker.descend(each, inner, path=key, schema_path=pattern)


def _unique_items(checker: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not wanted or not isinstance(value, list):
        return
    if len({json.dumps(_plain(each), sort_keys=True) for each in value}) < len(value):
        yield ValidationError("has an item twice")


def _plain(value: Any) -> Any:
    """A value in which equal numbers are alike, and numbers unlike the truth values."""
    if isinstance(value, bool):
        return [value, "bool"]
    if isinstance(value, float | Decimal) and value % 1 == 0:
        return int(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _additional_properties(
    checker: Any, inner: Any, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, each in value.items():
        if key not in named and not any(matches(pattern, key) for pattern in patterns):
            yield from checker.descend(each, inner, path=key)


def _items(checker: Any, items: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """A list of schemas, as before 2020-12, or one for all."""
    if not isinstance(items, list):
        yield from _PLAIN["items"](checker, items, value, schema)
    elif isinstance(value, list):
        others = [schema.get("additionalItems", True)] * max(0, len(value) - len(items))
        for index, (each, inner) in enumerate(zip(value, [*items, *others], strict=False)):
            yield from checker.descend(each, inner, path=index)


def _dependencies(checker: Any, given: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """What keys want of the others, as before 2019-09."""
    for key, wanted in given.items() if isinstance(value, dict) else ():
        if key in value and isinstance(wanted, list) and not value.keys() >= set(wanted):
            yield ValidationError("lacks a key")
        elif key in value and not isinstance(wanted, list):
            yield from checker.descend(value, wanted, schema_path=key)


def _excluded(bound: str, beyond: Callable[[Any, Any], bool]) -> Keyword:
    """A number that is out itself; or as in draft 4, whether that of ``bound`` is."""

    def check(checker: Any, given: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        limit = schema.get(bound) if given is True else given
        is_number = isinstance(limit, int | float | Decimal) and not isinstance(limit, bool)
        if is_number and checker.is_type(value, "number") and beyond(value, limit):
            yield ValidationError("is out of bounds")

    return check


def _unevaluated(checker: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """As jsonschema, but for searches that end in time."""
    if not isinstance(value, dict):
        return
    known = _evaluated(checker, value, {**schema, "unevaluatedProperties": None})
    for key in value.keys() - known:
        yield from checker.descend(value[key], inner, path=key)


def _evaluated(checker: Any, value: dict[str, Any], schema: Any) -> set[str]:
    """The keys about which a schema says something, in the branches that hold."""
    if not isinstance(schema, dict):
        return set()
    if "additionalProperties" in schema or schema.get("unevaluatedProperties") is not None:
        return set(value)
    patterns = schema.get("patternProperties", {})
    known = {
        key
        for key in value
        if key in schema.get("properties", {}) or any(matches(p, key) for p in patterns)
    }
    if isinstance(schema.get("$ref"), str):
        found = checker._resolver.lookup(schema["$ref"])
        there = checker.evolve(schema=found.contents, _resolver=found.resolver)
        known |= _evaluated(there, value, found.contents)
    parts = [*schema.get("allOf", ()), *_met(schema.get("dependentSchemas", {}), value)]
    choices = [part for name in ("anyOf", "oneOf", "if") for part in _listed(schema.get(name))]
    parts += [part for part in choices if checker.evolve(schema=part).is_valid(value)]
    if "if" in schema:
        holds = checker.evolve(schema=schema["if"]).is_valid(value)
        parts.append(schema.get("then" if holds else "else"))
    return known.union(*(_evaluated(checker, value, part) for part in parts))


def _met(given: dict[str, Any], value: dict[str, Any]) -> list[Any]:
    return [part for key, part in given.items() if key in value]


def _listed(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [] if part is None else [part]


_PLAIN: Mapping[str, Any] = Draft202012Validator.VALIDATORS
_OWN: Mapping[str, Keyword] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "items": _items,
    "dependencies": _dependencies,
    "exclusiveMinimum": _excluded("minimum", operator.le),
    "exclusiveMaximum": _excluded("maximum", operator.ge),
    "unevaluatedProperties": _unevaluated,
    "uniqueItems": _unique_items,
}
_IN_ANY_DRAFT = ("dependencies", "exclusiveMinimum", "exclusiveMaximum")
