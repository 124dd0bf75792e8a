"""From a body to one of the models, or to an error that says which field is wrong and why.

Invariant: whatever the body, the outcome is a model or a ``RequestError`` whose ``param`` is the
path of the field at fault, and whose message is short.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import RequestError
from .fields import Path, check_body, got, place_of, shown

M = TypeVar("M", bound=BaseModel)
_NOTHING = object()


def read(body: Mapping[str, Any], model: type[M]) -> M:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong."""
    check_body(body)
    return validated(body, model)


def validated(body: Mapping[str, Any], model: type[M]) -> M:
    """The same for a body that was checked."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _translated(error, body, model) from None


def _translated(
    error: ValidationError, body: Mapping[str, Any], model: type[BaseModel]
) -> RequestError:
    """The error for the first field at fault; of its alternatives, the closest one."""
    details = error.errors(include_url=False)
    placed = [(_path(detail, body), detail) for detail in details]
    first = placed[0][0][:1]
    here = [(path, detail) for path, detail in placed if path[:1] == first]
    deepest = max(len(path) for path, _ in here)
    path = next(path for path, _ in here if len(path) == deepest)
    wrong = [detail for other, detail in here if other == path]
    param = place_of(path)
    code = _CODES.get(wrong[0]["type"], "invalid_type")
    return RequestError.at(param, _sentence(wrong, path, model), code)


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
    inner = _inside(at, step)
    if inner is not _NOTHING:
        if not rest:
            return (step,)
        below = _walked(inner, tuple(rest), kind)
        if below is not None:
            return (step, *below)
    elif not rest and kind == "missing":
        return (step,)
    return _walked(at, tuple(rest), kind)


def _inside(at: Any, step: str | int) -> Any:
    if isinstance(at, Mapping):
        return at.get(step, _NOTHING)
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return at[step]
    return _NOTHING


def _sentence(wrong: Sequence[Any], path: Path, model: type[BaseModel]) -> str:
    """What is wrong with a field, for the complaints of all its alternatives."""
    detail = next((d for d in wrong if d["type"] in _LIMITS), wrong[0])
    kind, value = detail["type"], detail.get("input")
    context = detail.get("ctx") or {}
    if kind in _WANTED:
        wanted = dict.fromkeys(_WANTED[d["type"]] for d in wrong if d["type"] in _WANTED)
        return f"expected {' or '.join(wanted)}, got {got(value)}"
    if kind == "extra_forbidden":
        # What is known further inside is not worth the search.
        fields = model.model_fields.items() if len(path) == 1 else ()
        known = [field.alias or name for name, field in fields]
        close = difflib.get_close_matches(str(path[-1])[:64], known, 1)
        return f"there is no such field{f'; did you mean {close[0]}?' if close else ''}"
    if kind in ("missing", "union_tag_not_found"):
        return "is required"
    if kind == "union_tag_invalid":
        others, _, last = context["expected_tags"].rpartition(", ")
        return f"expected {f'{others} or ' if others else ''}{last}, got {shown(context['tag'])}"
    if kind in _LIMITS:
        return _LIMITS[kind](value, context)
    return f"{shown(value)}: {detail['msg']}"


_WANTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "nothing",
}

_LIMITS: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "greater_than": lambda value, c: f"expected more than {c['gt']:g}, got {shown(value)}",
    "greater_than_equal": lambda value, c: f"expected {c['ge']:g} or more, got {shown(value)}",
    "less_than_equal": lambda value, c: f"expected at most {c['le']:g}, got {shown(value)}",
    "too_long": lambda value, c: f"expected at most {c['max_length']} items, got {len(value)}",
    "too_short": lambda value, c: f"expected {c['min_length']} or more items, got {len(value)}",
    "string_too_long": lambda value, c: (
        f"expected at most {c['max_length']} characters, got {len(value)}"
    ),
    "string_too_short": lambda value, c: "expected some text, got an empty string",
    "string_pattern_mismatch": lambda value, c: (
        f"expected a match of {c['pattern']}, got {shown(value)}"
    ),
    "literal_error": lambda value, c: f"expected {c['expected']}, got {shown(value)}",
}

_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "union_tag_not_found": "missing_required_parameter",
    "literal_error": "invalid_value",
    "union_tag_invalid": "invalid_value",
    **dict.fromkeys(_LIMITS, "invalid_value"),
}
