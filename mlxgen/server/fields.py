"""The types of fields in request bodies, and the checks of a body before those of its fields.

Numbers are never strings or booleans. Invariant: what passes can be walked recursively, encoded and
printed safely.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from ..options.table import OPTIONS
from .errors import RequestError

MAX_DEPTH = 64
"""How deep a body may be nested."""
MAX_CHOICES = 128
"""How many answers one prompt may have."""
MAX_NAME = 256
"""How long the name of a model or a tool may be."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class Body(BaseModel):
    """Base of what clients send: strict, frozen, unknown names refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


class Piece(Body):
    """Base of the parts of a conversation; unknown names are ignored."""

    model_config = ConfigDict(extra="ignore")


def _whole(value: Any) -> Any:
    """JSON has no integers: 5.0 is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _no_zero(value: int) -> int:
    """-1 means no limit, as in other servers."""
    if value == 0:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return value


def _range(name: str, low: float | None = None) -> dict[str, Any]:
    """The range of an option for ``Field``; ``low`` widens it for the values of other servers."""
    rule = OPTIONS[name].rule
    return {"ge": rule.low if low is None else low, "le": rule.high}


def _off(value: Any) -> Any:
    """For a literal, because pydantic takes 0 for False."""
    if value is not False:
        raise PydanticCustomError("literal_error", "use {expected}", {"expected": "false"})
    return value


Off: TypeAlias = Annotated[Literal[False], BeforeValidator(_off)]
Int: TypeAlias = Annotated[int, BeforeValidator(_whole)]
Count: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Budget: TypeAlias = Annotated[
    int,
    Field(ge=-1),
    AfterValidator(_no_zero),
    BeforeValidator(_whole),
    WithJsonSchema({"type": "integer", "minimum": -1, "not": {"const": 0}}),
]
Limit: TypeAlias = Annotated[int, Field(ge=-1), BeforeValidator(_whole)]
Choices: TypeAlias = Annotated[int, Field(ge=1, le=MAX_CHOICES), BeforeValidator(_whole)]
Drafted: TypeAlias = Annotated[
    int, Field(**_range("num_draft_tokens", low=0)), BeforeValidator(_whole)
]
DryLength: TypeAlias = Annotated[
    int, Field(**_range("dry_allowed_length")), BeforeValidator(_whole)
]
Alternatives: TypeAlias = Annotated[int, Field(**_range("top_logprobs")), BeforeValidator(_whole)]
Held: TypeAlias = Annotated[int, Field(**_range("hold_tokens")), BeforeValidator(_whole)]
Resampled: TypeAlias = Annotated[int, Field(**_range("max_resample")), BeforeValidator(_whole)]
TopK: TypeAlias = Annotated[int, Field(**_range("top_k", low=-1)), BeforeValidator(_whole)]
Breakers: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]],
    Field(max_length=64),
]
Json: TypeAlias = dict[str, Any]
ModelName: TypeAlias = Annotated[str, Field(max_length=MAX_NAME)]


class ModelRequest(Body):
    """A model of ``/v1/models``."""

    model: ModelName


Path: TypeAlias = tuple[str | int, ...]
"""The steps from a body to something in it."""


def named() -> Any:
    """The field for the name of the model."""
    return about(
        "one of /v1/models; any other name is the default model's, unless names are strict. The "
        "answer repeats it"
    )


def about(text: str) -> Any:
    """An optional field."""
    return Field(default=None, description=text)


def option(name: str, *, low: float | None = None, also: str = "") -> Any:
    """A field for an option of the engine; a float has its range, or one from ``low`` on."""
    found = OPTIONS[name]
    within = _range(name, low) if found.type is float else {}
    return Field(default=None, description=found.brief + also, **within)


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


def place_of(path: Path) -> str:
    """A place in a body as messages name it: ``messages[0].content``."""
    place = ""
    for step in path:
        name = step if isinstance(step, int) or len(step) <= 64 else f"{step[:61]}..."
        place += f"[{name}]" if isinstance(name, int) else f".{name}" if place else name
    return place[:200]


def name_of(value: Any) -> str:
    """The JSON type of a value, in words."""
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


def shown(value: Any) -> str:
    """A value for a message: short, in ASCII, on one line."""
    if isinstance(value, (dict, list)):
        return f"{name_of(value)} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    if isinstance(value, str):
        return ascii(value if len(value) <= 80 else f"{value[:77]}...")
    return json.dumps(value)


def got(value: Any) -> str:
    """What was sent in place of something else: the type of a list or an object, or the value."""
    return name_of(value) if isinstance(value, (dict, list)) else shown(value)


_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "an object"),
    (type(None), "null"),
)
