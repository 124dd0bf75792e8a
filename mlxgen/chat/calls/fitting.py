"""Whether the arguments of a call fit the schema of its tool: in bounded time, without a network.

For schemas that cannot be compiled into a grammar, or only in part. Only what the schema itself
holds is looked up, and expressions are searched with a time limit. A schema that says nothing
sensible, or takes too long, has nothing to object to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import regex
from jsonschema import ValidationError
from jsonschema.validators import Draft202012Validator, extend, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

_MOST = 20_000  # keywords that are looked at for one call
_PATIENCE = 0.02  # seconds for one search

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class UncheckedError(Exception):
    """The arguments cannot be checked, or not in time."""


class Fitting:
    """Checks arguments against one schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._left = 0
        known: Any = Draft202012Validator
        if isinstance(schema.get("$schema"), str):
            known = validator_for(schema, default=known)
        rules = {name: _OWN.get(name, rule) for name, rule in known.VALIDATORS.items()}
        counted = {name: self._counted(rule) for name, rule in rules.items()}
        made: Any = extend(known, counted)  # type: ignore[no-untyped-call]
        self._checker = made(schema, registry=REGISTRY)

    def objection(self, arguments: str) -> str | None:
        """What is wrong with arguments, given as JSON text: a keyword of the schema, never a value.

        Raises ``UncheckedError`` if that cannot be told.
        """
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return "they are not JSON"
        self._left = _MOST
        try:
            error = next(self._checker.iter_errors(value), None)
        except UncheckedError:
            raise
        except Exception as error:  # a schema may be wrong in any way
            raise UncheckedError(f"the schema cannot be followed: {type(error).__name__}") from None
        return None if error is None else f"they violate {error.validator}"

    def _counted(self, rule: Keyword) -> Keyword:
        def counted(*given: Any) -> Iterator[ValidationError] | None:
            self._left -= 1
            if self._left < 0:
                raise UncheckedError(f"the schema takes more than {_MOST} steps")
            return rule(*given)

        return counted


def _matches(pattern: str, text: str) -> bool:
    try:
        return regex.search(pattern, text, timeout=_PATIENCE) is not None
    except TimeoutError:
        raise UncheckedError("an expression of the schema takes too long") from None


def _pattern(checker: Any, pattern: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError("does not match")


def _pattern_properties(
    checker: Any, patterns: Any, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, inner in patterns.items():
            for key, each in value.items():
                if _matches(pattern, key):
                    yield from checker.descend(each, inner, path=key, schema_path=pattern)


def _unique_items(checker: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not wanted or not isinstance(value, list):
        return
    if len({json.dumps(_plain(each), sort_keys=True) for each in value}) < len(value):
        yield ValidationError("has an item twice")


def _plain(value: Any) -> Any:
    """A value in which equal numbers are written alike."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
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
        if key not in named and not any(_matches(pattern, key) for pattern in patterns):
            yield from checker.descend(each, inner, path=key)


def _unevaluated(checker: Any, inner: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Jsonschema would search for expressions without a limit here."""
    raise UncheckedError("unevaluatedProperties is not checked")


_OWN: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _unevaluated,
    "uniqueItems": _unique_items,
}
