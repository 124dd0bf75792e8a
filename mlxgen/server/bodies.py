"""From the bytes of a body to one of the models, or to an error that says which field is wrong.

Invariant: whatever the body, the outcome is a model or a ``RequestError`` with a 4xx status, whose
``param`` is the path of the field at fault as the client wrote it, and whose message is short.
"""

from __future__ import annotations

import difflib
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import RequestError
from .fields import MAX_DEPTH, Path, got, place_of, shown
from .logs import log
from .peers import CHATS, Rules, effects

M = TypeVar("M", bound=BaseModel)

_NOTHING = object()
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_TALKS = ("messages", "system", "input", "instructions")
_CACHED = "cache_control"  # prefixes are always cached
_MOST_NAMES = 1000  # of unknown fields in the log
_CLOSE = 0.8  # of 1, for names that are equal
_LONGEST = 1000  # characters of a header
_UNSAFE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")

# ---- JSON ------------------------------------------------------------------------------------


def parse_body(data: bytes) -> dict[str, Any]:
    """The object in a body, without duplicate names. May run in any thread."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise _malformed(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _malformed("nested too deeply; make it flatter") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
    if not isinstance(value, dict):
        raise _malformed("expected an object, such as {...}")
    return value


def _malformed(reason: str) -> RequestError:
    return RequestError(f"invalid JSON body: {reason}", code="invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise _malformed(f"the name {shown(twice)} appears twice in one object")
    return value


def checked(value: Any, path: Path = (), *, mends: bool = False) -> Any:
    """A value of a body; raises ``RequestError`` if it is nested too deeply, or has what is neither
    text nor a finite number.

    JSON can spell two things that are no text: half a character, and NUL, which no model reads. In
    a conversation, which ``mends`` them, they become U+FFFD.
    """
    if len(path) > MAX_DEPTH:
        reason = f"nested more than {MAX_DEPTH} levels deep; make it flatter"
        raise RequestError.at(place_of(path[:1]), reason)
    if isinstance(value, str):
        found = None if value.isascii() and "\0" not in value else _NO_TEXT.search(value)
        if found is None:
            return value
        if mends:
            return _NO_TEXT.sub("\ufffd", value)
        wrong = "a NUL character" if found[0] == "\0" else "a lone surrogate"
        place = place_of(path)
        raise RequestError(
            f"{place}{': ' if place else ''}expected text, got {wrong} at {found.start()} of "
            f"{shown(value)}; leave it out",
            param=place or None,
            code="invalid_value",
        )
    if isinstance(value, dict):
        return {
            checked(key, path, mends=mends): checked(inner, (*path, key), mends=mends)
            for key, inner in value.items()
        }
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError.at(place_of(path), "expected a finite number; send one or leave it out")
    if isinstance(value, list):
        return [
            each if isinstance(each, int) else checked(each, (*path, i), mends=mends)
            for i, each in enumerate(value)
        ]
    return value


# ---- a body as a model -----------------------------------------------------------------------


class Read(NamedTuple, Generic[M]):
    """A request; ``idle`` are its fields without effect, by the names that the client used, and
    ``names`` those that it used instead of ours."""

    request: M
    idle: list[str]
    names: Mapping[str, str]

    def ignored(
        self, also: Iterable[str] = (), names: Mapping[str, str] = MappingProxyType({})
    ) -> list[str]:
        """The fields without effect, and others of our names that had none; ``names`` are those of
        an API for ours."""
        told = (names.get(name.partition("[")[0], name) for name in also)
        return [*self.idle, *(_given(name, self.names) for name in told)]


def read(
    body: Mapping[str, Any], model: type[M], rules: Rules, *, unknown: set[str] | None
) -> Read[M]:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong.

    What in a conversation is no text is replaced. A field that nobody here knows is left out and
    named; ``unknown`` are those that the log has named, or nothing if they are refused.
    """
    body = {
        checked(name): checked(value, (name,), mends=name in _TALKS) for name, value in body.items()
    }
    known = {field.alias or name for name, field in model.model_fields.items()}
    fields, names, idle = _translated(body, known, rules)
    for name in [name for name in fields if name not in known]:
        if unknown is None:
            raise _no_such(name, known)
        del fields[name]
        idle.append(name)
        _tell(name, [*known, *rules], unknown)
    if any(_is_marked(body.get(place)) for place in (*_TALKS, "tools")):
        idle.append(_CACHED)
    return Read(_modelled(fields, model, names), idle, names)


def validated(body: Mapping[str, Any], model: type[M]) -> M:
    """Validate a body with nothing but our own names; raises ``RequestError``."""
    for name in checked(body).keys() - {f.alias or n for n, f in model.model_fields.items()}:
        raise _no_such(name, model.model_fields)
    return _modelled(body, model, {})


def _translated(
    body: Mapping[str, Any], known: Iterable[str], rules: Rules
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The fields by our names, the names that the client used instead of these, and those of what
    has no effect. Unknown fields stay."""
    fields, names, idle = dict[str, Any](), dict[str, str](), list[str]()
    ruled: list[tuple[str, Any]] = []
    for name, value in body.items():
        if name not in known and name in rules:
            ruled.append((name, value))
            continue
        fields[name] = value
        keys = [key for key in value if f"{name}.{key}" in rules] if isinstance(value, dict) else []
        if keys and name in known:
            fields[name] = {key: inner for key, inner in value.items() if key not in keys}
            ruled += [(f"{name}.{key}", value[key]) for key in keys]
    for at, value in ruled:
        for effect in effects(rules[at], value, at) if value is not None else ():
            if effect.field is None:
                idle.append(effect.at)
            elif effect.field.partition(".")[0] not in known:
                raise RequestError.at(effect.at, CHATS, "unsupported_parameter")
            elif effect.value is not None:
                _put(fields, names, effect.field, effect.value, effect.at)
    return fields, names, idle


def _put(fields: dict[str, Any], names: dict[str, str], path: str, value: Any, at: str) -> None:
    """Set a field, or with a dot in its name a key in one, unless it has another value."""
    name, _, key = path.partition(".")
    within = fields.get(name) if key else fields
    within = within if isinstance(within, dict) else {}
    old = within.get(key or name)
    if old is not None and old != value:
        reason = f"means the same as {names.get(name, path)}, which has another value"
        raise RequestError.at(at, f"{reason}; send one of them")
    fields[name] = {**within, key: value} if key else value
    names.setdefault(name, at)


def _given(ours: str, names: Mapping[str, str]) -> str:
    """The name that the client used for a field, or for the one that this is in."""
    for name, given in names.items():
        if ours == name or ours.startswith((f"{name}.", f"{name}[")):
            return given
    return ours


# ---- fields that nobody knows, and those that have no effect ---------------------------------


def _meant(name: str, known: Iterable[str]) -> str | None:
    """The name that this one is a slip of, if it is that close to one."""
    return next(iter(difflib.get_close_matches(name[:64], list(known), 1, _CLOSE)), None)


def _no_such(name: str, known: Iterable[str]) -> RequestError:
    meant = _meant(name, known)
    hint = "" if meant is None else f"; did you mean {meant}?"
    return RequestError.at(place_of((name,)), f"there is no such field{hint}", "unknown_parameter")


def _tell(name: str, known: Iterable[str], told: set[str]) -> None:
    """Say in the log, once for each name, that a field is not known, and which may be meant."""
    if name in told or len(told) >= _MOST_NAMES:
        return
    told.add(name)
    meant = _meant(name, known)
    hint = {} if meant is None else {"did_you_mean": meant}
    log(logging.WARNING, "ignored an unknown field", field=name[:64], **hint)


def _is_marked(pieces: Any) -> bool:
    """Whether they say what a remote service should cache."""
    pieces = pieces if isinstance(pieces, list) else [pieces]
    return any(
        _CACHED in piece or _is_marked(piece.get("content")) or _is_marked(piece.get("function"))
        for piece in pieces
        if isinstance(piece, dict)
    )


def header_of(names: Iterable[str]) -> str:
    """The value of the header that names them, safe and short: names that would make it too long
    are left out."""
    safe = dict.fromkeys(_UNSAFE.sub("?", name[:100]) or '""' for name in names)
    text = ", ".join(safe)
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rpartition(", ")[0] + ", ..."


# ---- pydantic's errors -----------------------------------------------------------------------


def _modelled(body: Mapping[str, Any], model: type[M], names: Mapping[str, str]) -> M:
    """The model of a body; of what is wrong with the first field at fault, what its closest
    alternative says."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        placed = [(_path(detail, body), detail) for detail in error.errors(include_url=False)]
    here = [(path, detail) for path, detail in placed if path[:1] == placed[0][0][:1]]
    path = max((path for path, _ in here), key=len)
    wrong = [detail for other, detail in here if other == path]
    codes = [_code(detail["type"]) for detail in wrong]
    which = codes.index("invalid_value") if "invalid_value" in codes else 0
    place = _given(place_of(path), names)
    raise RequestError.at(place, _sentence(wrong[which], wrong), codes[which])


def _path(detail: Any, body: Mapping[str, Any]) -> Path:
    """Where in the body: pydantic's location without the names it gives to alternatives."""
    at: Any = body
    path: list[str | int] = []
    for step in detail["loc"]:
        if isinstance(at, dict):
            step = str(step)  # JSON has no other keys
            found = at.get(step, _NOTHING)
        else:
            found = at[step] if isinstance(at, list) and isinstance(step, int) else _NOTHING
        if found is not _NOTHING:
            at = found
            path.append(step)
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)


def _code(kind: str) -> str:
    return _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")


def _sentence(detail: Any, wrong: Sequence[Any]) -> str:
    """What is wrong with a field, for the complaints of all its alternatives: in pydantic's words,
    apart from those that would say nothing to whoever knows only the API."""
    kind, given = detail["type"], got(detail.get("input"))
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return str(detail["msg"])
    if kind in _WANTED:
        wanted = dict.fromkeys(_WANTED[d["type"]] for d in wrong if d["type"] in _WANTED)
        return f"expected {' or '.join(wanted)}, got {given}"
    said = detail["msg"].removeprefix("Input ")
    return f"{said[0].lower()}{said[1:]}, got {given}"


_WANTED = {
    "string_type": "a string",
    **dict.fromkeys(("int_type", "int_from_float"), "an integer"),
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "an object"),
}

_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "int_from_float": "invalid_type",
}
"""Of the kinds of what is wrong, apart from those of wrong types and wrong values."""
