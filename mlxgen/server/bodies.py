"""Turns the bytes of a body into a pydantic model, or into an error that names the field at fault.

pydantic gets the object after other servers' names have been replaced: its own aliases do not tell
which name was used, nor that two contradict each other, and hide other keys of inner objects.

Invariant: whatever the body, the outcome is a model or a ``RequestError`` with a 4xx status, whose
``param`` is the path of the field at fault as the client wrote it, and whose message is short.
"""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from .errors import RequestError
from .fields import Body, Lenient, Path, got, place_of
from .logs import log
from .peers import CHATS, TAKEN, Rule, Same

M = TypeVar("M")
B = TypeVar("B", bound=Body)

_TALKS = ("messages", "system", "input", "instructions")
_ODD = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|[eE]\+?[0-9]{3}|[0-9]{309}")
"""What may spell NUL, which no model reads, a lone surrogate, or a number that is not finite."""
_ESCAPE = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(0000|[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
"""A pair of escapes that spells one character, or, in the second group, an escape that spells no
text; the first group has the backslashes before it."""
_MENDED = "\ufffd"
_CACHED = re.compile(rb'"cache_control"\s*:\s*\{\s*"type"\s*:\s*"ephemeral"')
"""Asks a remote service to cache something; here prefixes are always cached."""
_MOST_NAMES = 1000  # of unknown fields in the log
_CLOSE = 0.8  # similarity of a suggested name; 1: equal
_LONGEST = 1000  # characters of a header
_UNSAFE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")

# ---- a body as a model -----------------------------------------------------------------------


class Read(NamedTuple, Generic[M]):
    """A request; ``idle``: its fields without effect, by the client's names; ``names``: the
    client's names for our fields, if they differ."""

    request: M
    idle: list[str]
    names: Mapping[str, str]


def read(data: bytes, model: type[B], unknown: set[str] | None = None) -> Read[B]:
    """A body as a model; raises ``RequestError`` for the first thing that is wrong. May run in any
    thread.

    In a conversation, NUL and lone surrogates become U+FFFD. If the model is lenient, an unknown
    field is left out and named; ``unknown`` are those already in the log. None: they are refused.
    """
    odd = _ODD.search(data) is not None
    text = _ESCAPE.sub(_mended, data) if odd else data
    mends = text != data
    try:
        body = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"invalid JSON body: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        wrong = "invalid JSON body: expected an object, such as {...}"
        raise RequestError(wrong, code="invalid_json")
    known, rules = names_of(model), model.rules
    fields, names, idle = dict[str, Any](), dict[str, str](), list[str]()
    for name in known.intersection(body):
        fields[name] = body[name]

    def apply(rule: Rule, value: Any, at: str) -> None:
        """Apply a rule to the value of a field that is not one of the model's."""
        if value is None:
            return
        if isinstance(rule, str):
            raise RequestError.at(at, rule, "unsupported_parameter")
        if rule is TAKEN:
            idle.append(at)
        elif isinstance(rule, Same):
            try:
                value = rule.convert(value)
            except ValueError as error:
                raise RequestError.at(at, str(error), "unsupported_parameter") from None
            if rule.field and rule.field.partition(".")[0] not in known:
                raise RequestError.at(at, CHATS, "unsupported_parameter")
            if rule.field and value is not None:
                _put(fields, names, rule.field, value, at)
            elif value is not None:
                idle.append(at)
        elif not isinstance(value, dict):
            apply(rule.otherwise, value, at)
        else:
            for key, inner in value.items():
                place = f"{at}.{key[:64]}"
                if key not in rule.rules:
                    reason = f"there is no such field; known are {', '.join(rule.rules)}"
                    raise RequestError.at(place, reason, "unknown_parameter")
                apply(rule.rules[key], inner, place)

    for name, value in body.items():
        if odd:
            _check({name: value}, mended=mends and name not in _TALKS)
        if name in known:
            for key in [*value] if isinstance(value, dict) else ():
                if f"{name}.{key}" in rules:
                    fields[name] = {**fields[name]}
                    apply(rules[f"{name}.{key}"], fields[name].pop(key), f"{name}.{key}")
        elif name in rules:
            apply(rules[name], value, name)
        elif unknown is None or not issubclass(model, Lenient):
            meant = difflib.get_close_matches(name[:64], list(known), 1, _CLOSE)
            hint = f"; did you mean {meant[0]}?" if meant else ""
            reason = f"there is no such field{hint}"
            raise RequestError.at(place_of((name,)), reason, "unknown_parameter")
        else:
            idle.append(name)
            if name not in unknown and len(unknown) < _MOST_NAMES:
                unknown.add(name)
                log(logging.WARNING, "ignored an unknown field", field=name[:64])
    if "cache_control" not in idle and _CACHED.search(data):
        idle.append("cache_control")
    return Read(modelled(fields, model.model_validate, names), idle, names)


@cache
def names_of(model: type[BaseModel]) -> frozenset[str]:
    """The names of a model's fields in bodies."""
    return frozenset([field.alias or name for name, field in model.model_fields.items()])


def _mended(escape: re.Match[bytes]) -> bytes:
    return escape[1] + rb"\ufffd" if escape[2] else escape[0]


def _check(value: Any, path: Path = (), *, mended: bool) -> None:
    """Raise ``RequestError`` for a number that is not finite, and, if escapes were ``mended``, for
    a text that has U+FFFD."""
    wrong = ""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check(name, path, mended=mended)
            _check(inner, (*path, name), mended=mended)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _check(inner, (*path, i), mended=mended)
    elif isinstance(value, float) and not math.isfinite(value):
        wrong = "expected a finite number; send one or leave it out"
    elif mended and isinstance(value, str) and _MENDED in value:
        wrong = "expected text, got a NUL character or a lone surrogate; leave it out"
    if wrong:
        place = place_of(path)
        raise RequestError(
            f"{place or 'a name'}: {wrong}", param=place or None, code="invalid_value"
        )


def _put(fields: dict[str, Any], names: dict[str, str], path: str, value: Any, at: str) -> None:
    """Set a field, or the key in a field if the path has a dot; ``RequestError`` if it already has
    another value."""
    name, _, key = path.partition(".")
    within = fields.get(name) if key else fields
    within = within if isinstance(within, dict) else {}
    old = within.get(key or name)
    if old is not None and old != value:
        reason = f"means the same as {names.get(name, path)}, which has another value"
        raise RequestError.at(at, f"{reason}; send one of them")
    fields[name] = {**within, key: value} if key else value
    names.setdefault(name, at)


def name_used(ours: str, names: Mapping[str, str]) -> str:
    """The client's name for a field, or for the field that contains it."""
    for name, given in names.items():
        if ours == name or ours.startswith((f"{name}.", f"{name}[")):
            return given
    return ours


# ---- what had no effect ----------------------------------------------------------------------


def header_of(names: Iterable[str]) -> str:
    """The value of the header that lists these names, safe and short: names that would make it too
    long are left out."""
    safe = dict.fromkeys(_UNSAFE.sub("?", name[:100]) or '""' for name in names)
    text = ", ".join(safe)
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rpartition(", ")[0] + ", ..."


# ---- pydantic's errors -----------------------------------------------------------------------


def modelled(
    body: Mapping[str, Any],
    validate: Callable[[Mapping[str, Any]], M],
    names: Mapping[str, str] = MappingProxyType({}),
) -> M:
    """What pydantic makes of a body. ``RequestError`` for the first field at fault, with the
    complaint of the alternative type that fits it best."""
    try:
        return validate(body)
    except ValidationError as error:
        placed = [(_path(detail, body), detail) for detail in error.errors(include_url=False)]
    here = [(path, detail) for path, detail in placed if path[:1] == placed[0][0][:1]]
    path = max((path for path, _ in here), key=len)
    wrong = [detail for other, detail in here if other == path]
    codes = [_code(detail["type"]) for detail in wrong]
    which = codes.index("invalid_value") if "invalid_value" in codes else 0
    place = name_used(place_of(path), names)
    raise RequestError.at(place, _sentence(wrong[which], wrong), codes[which])


def _path(detail: Any, body: Mapping[str, Any]) -> Path:
    """The place in the body: pydantic's location without its names for alternative types."""
    at: Any = body
    path: list[str | int] = []
    for step in detail["loc"]:
        step = str(step) if isinstance(at, dict) else step  # JSON has no other keys
        if step in at if isinstance(at, dict) else isinstance(at, list) and isinstance(step, int):
            at = at[step]
            path.append(step)
    return (*path, detail["loc"][-1]) if _code(detail["type"]) == _MISSING else tuple(path)


def _code(kind: str) -> str:
    return _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")


def _sentence(detail: Any, wrong: Sequence[Any]) -> str:
    """What is wrong with a field, in pydantic's words; ``wrong``: the complaints of all of its
    alternative types."""
    if _CODES.get(detail["type"]) in (_MISSING, _UNKNOWN):
        return "is required" if _CODES[detail["type"]] == _MISSING else "there is no such field"
    if detail["type"] == "value_error":
        return str(detail["msg"])
    said = [each["msg"] for each in wrong] if detail["type"].endswith("_type") else [detail["msg"]]
    words = " or ".join(dict.fromkeys(text.removeprefix("Input ") for text in said))
    return f"{words[0].lower()}{words[1:]}, got {got(detail.get('input'))}"


_UNKNOWN, _MISSING = "unknown_parameter", "missing_required_parameter"
_CODES = {
    "extra_forbidden": _UNKNOWN,
    "missing": _MISSING,
    "int_from_float": "invalid_type",
}
"""Codes by pydantic's types of errors, apart from wrong types and wrong values."""
