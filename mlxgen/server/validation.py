"""From the bytes of a body to one of the models, or to an error that says which field is wrong.

Invariant: whatever the body, the outcome is a model or a ``RequestError`` with a 4xx status, whose
``param`` is the path of the field at fault, and whose message is short.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import RequestError
from .fields import MAX_DEPTH, Path, got, place_of, shown

M = TypeVar("M", bound=BaseModel)

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_NOTHING = object()


def validated(body: Mapping[str, Any], model: type[M]) -> M:
    """Check a body with nothing but our own names; raises ``RequestError``."""
    check_body(body)
    return modelled(body, model)


# ---- JSON ------------------------------------------------------------------------------------


def parse_body(data: bytes) -> dict[str, Any]:
    """The object in a body, without duplicate names, NaN and infinity. May run in any thread."""
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
            parse_int=_integer,
        )
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
    if len(value) == len(pairs):
        return value
    names = [name for name, _ in pairs]
    twice = next(name for place, name in enumerate(names) if name in names[:place])
    raise _malformed(f"the name {shown(twice)} appears twice in one object")


def _no_number(name: str) -> NoReturn:
    raise _malformed(f"{name} is not JSON; leave out the field, or send a number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _malformed(f"the number {text[:40]} is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > 400:
        raise _malformed(f"the number {text[:40]}... is too large")
    return int(text)


def check_body(body: Mapping[str, Any]) -> None:
    """Raise ``RequestError`` for a body that cannot be handled: too deep, or with other than text.

    JSON can spell two things that are no text: half a character, and NUL, which no model reads.
    """
    level: list[tuple[Path, Any]] = [((), body)]
    for _ in range(MAX_DEPTH + 1):
        below: list[tuple[Path, Any]] = []
        for path, value in level:
            if isinstance(value, str):
                _check_text(value, path)
                continue
            if isinstance(value, Mapping):
                for key in value:
                    _check_text(key, path)
            inside = value.items() if isinstance(value, Mapping) else enumerate(value)
            below += [((*path, step), v) for step, v in inside if isinstance(v, (str, dict, list))]
        if not below:
            return
        level = below
    field = place_of(level[0][0][:1])
    raise RequestError.at(field, f"nested more than {MAX_DEPTH} levels deep; make it flatter")


def _check_text(text: str, path: Path) -> None:
    """Raise ``RequestError`` for what is no text, at this place or as a name in it."""
    if text.isascii() and "\0" not in text:
        return
    found = _NO_TEXT.search(text)
    if found is None:
        return
    wrong = "a NUL character" if found[0] == "\0" else "a lone surrogate"
    place = place_of(path)
    raise RequestError(
        f"{place}{': ' if place else ''}expected text, got {wrong} at {found.start()} of "
        f"{shown(text)}; leave it out",
        param=place or None,
        code="invalid_value",
    )


# ---- pydantic's errors -----------------------------------------------------------------------


def modelled(body: Mapping[str, Any], model: type[M]) -> M:
    """The model of a body; of what is wrong with the first field at fault, what its closest
    alternative says."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        placed = [(_path(detail, body), detail) for detail in error.errors(include_url=False)]
    first = placed[0][0][:1]
    here = [(path, detail) for path, detail in placed if path[:1] == first]
    deepest = max(len(path) for path, _ in here)
    path = next(path for path, _ in here if len(path) == deepest)
    wrong = [detail for other, detail in here if other == path]
    detail = next((d for d in wrong if _CODES.get(d["type"]) == "invalid_value"), wrong[0])
    code = _CODES.get(detail["type"], "invalid_type")
    raise RequestError.at(place_of(path), _sentence(detail, wrong, path, model), code)


def _path(detail: Any, body: Mapping[str, Any]) -> Path:
    """Where in the body: pydantic's location without the names it gives to alternatives."""
    path = _walked(body, tuple(detail["loc"]), detail["type"]) or ()
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return (*path, detail["ctx"]["discriminator"].strip("'"))
    return path


def _walked(at: Any, location: tuple[Any, ...], kind: str) -> Path | None:
    """The steps that lead somewhere; None where they miss the field that is unknown.

    The name of an alternative may be that of a field as well: ``text`` is both, in a part of a
    message. So each step is a field if what follows can be found in there.
    """
    if not location:
        return () if kind != "extra_forbidden" else None
    step, *rest = location
    inner: Any = _NOTHING
    if isinstance(at, Mapping):
        inner = at.get(step, _NOTHING)
    elif isinstance(at, list) and isinstance(step, int) and step < len(at):
        inner = at[step]
    if inner is not _NOTHING:
        below = _walked(inner, tuple(rest), kind) if rest else ()
        if below is not None:
            return (step, *below)
    elif not rest and kind == "missing":
        return (step,)
    return _walked(at, tuple(rest), kind)


def _sentence(detail: Any, wrong: Sequence[Any], path: Path, model: type[BaseModel]) -> str:
    """What is wrong with a field, for the complaints of all its alternatives: in pydantic's words,
    apart from those that would say nothing to whoever knows only the API."""
    kind = detail["type"]
    if kind == "extra_forbidden":
        # What is known further inside is not worth the search.
        fields = model.model_fields.items() if len(path) == 1 else ()
        known = [field.alias or name for name, field in fields]
        close = difflib.get_close_matches(str(path[-1])[:64], known, 1)
        return f"there is no such field{f'; did you mean {close[0]}?' if close else ''}"
    if kind in ("missing", "union_tag_not_found"):
        return "is required"
    context = detail.get("ctx") or {}
    if kind == "union_tag_invalid":
        return f"expected one of {context['expected_tags']}, got {shown(context['tag'])}"
    if kind in _WANTED:
        wanted = dict.fromkeys(_WANTED[d["type"]] for d in wrong if d["type"] in _WANTED)
        return f"expected {' or '.join(wanted)}, got {got(detail.get('input'))}"
    said = detail["msg"].removeprefix("Input ")
    return f"{said[0].lower()}{said[1:]}, got {got(detail.get('input'))}"


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
    **dict.fromkeys(("missing", "union_tag_not_found"), "missing_required_parameter"),
    **dict.fromkeys(("greater_than", "greater_than_equal", "less_than_equal"), "invalid_value"),
    **dict.fromkeys(("too_long", "too_short", "string_too_long"), "invalid_value"),
    **dict.fromkeys(("string_too_short", "string_pattern_mismatch"), "invalid_value"),
    **dict.fromkeys(("literal_error", "union_tag_invalid"), "invalid_value"),
}
"""Of the kinds of what is wrong; of any other kind it is a wrong type."""
