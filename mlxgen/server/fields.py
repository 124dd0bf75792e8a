"""The types of fields in request bodies, and how messages show their places and values.

Numbers are never strings or booleans.
"""

from __future__ import annotations

import json
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

MAX_DEPTH = 64
"""How deep a body may be nested."""
MAX_CHOICES = 128
"""How many answers one prompt may have."""
MAX_NAME = 256
"""How long the name of a model or a tool may be."""


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


def place_of(path: Path) -> str:
    """A place in a body as messages name it: ``messages[0].content``."""
    place = ""
    for step in path:
        name = step if isinstance(step, int) or len(step) <= 64 else f"{step[:61]}..."
        place += f"[{name}]" if isinstance(name, int) else f".{name}" if place else name
    return place[:200]


def shown(value: Any) -> str:
    """A value for a message: short, in ASCII, on one line."""
    if isinstance(value, (dict, list)):
        return f"{got(value)} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    if isinstance(value, str):
        return ascii(value if len(value) <= 80 else f"{value[:77]}...")
    return json.dumps(value)


def got(value: Any) -> str:
    """What was sent in place of something else: the type of a list or an object, or the value."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(value)
