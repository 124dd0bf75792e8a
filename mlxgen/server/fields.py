"""The types of fields in request bodies, the fields of every request for text, and how messages
show places and values.

Numbers are never strings or booleans. Fields have the names of the engine's options, and so mean
the same in all APIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from ..chat.calls.use import Form
from ..errors import MlxgenError
from ..filters import JsonObject, JsonSchema
from ..options.table import OPTIONS, understood
from .errors import RequestError, as_request_error

MAX_CHOICES = 128
"""The most answers to one prompt."""
MAX_NAME = 256
"""The most characters of the name of a model or a tool."""


def _whole(value: Any) -> Any:
    """5.0 as 5: JSON does not distinguish integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and value and not isinstance(value[0], dict):
        return [_whole(each) for each in value]
    return value


class Body(BaseModel):
    """Base of all bodies: strict, frozen, unknown names are refused. ``rules``: the meaning of
    other servers' names in it (see ``peers``)."""

    rules: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    _integers = field_validator("*", mode="before")(_whole)


class Lenient(Body):
    """Base of bodies whose unknown names are left out and reported, unless fields are strict."""


class Piece(Body):
    """Base of the parts of a conversation; unknown names are ignored."""

    model_config = ConfigDict(extra="ignore")


def _no_zero(value: int) -> int:
    """-1 means no limit, as in other servers."""
    if value == 0:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return value


Count: TypeAlias = Annotated[int, Field(ge=0)]
Limit: TypeAlias = Annotated[int, Field(ge=-1)]
Budget: TypeAlias = Annotated[
    Limit,
    AfterValidator(_no_zero),
    WithJsonSchema({"type": "integer", "minimum": -1, "not": {"const": 0}}),
]
Json: TypeAlias = dict[str, Any]
ModelName: TypeAlias = Annotated[str, Field(max_length=MAX_NAME)]


class ModelRequest(Body):
    """A model of ``/v1/models``."""

    model: ModelName


Path: TypeAlias = tuple[str | int, ...]
"""The keys and indexes that lead from a body to a value in it."""


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
    """A field for an option of the engine. A number has the option's range, or one from ``low`` on
    to allow for values of other servers."""
    found = OPTIONS[name]
    least = found.rule.low if low is None else low
    return Field(default=None, description=found.brief + also, ge=least, le=found.rule.high)


def place_of(path: Path) -> str:
    """The name of a place in a body, for messages: ``messages[0].content``."""
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
    """A value that was not expected, for messages: only the type of a list or an object."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(value)


# ---- fields read without pydantic ------------------------------------------------------------

_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def need(piece: Mapping[str, Any], name: str, kind: type, at: str) -> Any:
    """A field of a piece; raises ``RequestError`` if it is missing or of another type."""
    place = f"{at}.{name}" if at else name
    if name not in piece:
        raise RequestError.at(place, "is required", "missing_required_parameter")
    return of_type(piece[name], kind, place)


def of_type(value: Any, kind: type, place: str) -> Any:
    """The value; raises ``RequestError`` unless it is of this type."""
    if not isinstance(value, kind):
        raise RequestError.at(place, f"expected {_KINDS[kind]}, got {got(value)}", "invalid_type")
    return value


def one_of(piece: Mapping[str, Any], name: str, known: Iterable[str], at: str) -> str:
    """A field of a piece; raises ``RequestError`` unless it is one of the ``known`` words."""
    value = piece.get(name)
    if isinstance(value, str) and value in known:
        return value
    need(piece, name, object, at)
    wanted, place = ", ".join(known), f"{at}.{name}" if at else name
    raise RequestError.at(place, f"expected one of {wanted}, got {shown(value)}")


# ---- the fields of every request for text -----------------------------------------------------

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
Schema: TypeAlias = Annotated[
    Json | bool, WithJsonSchema({"type": ["object", "boolean"], "description": "a JSON schema"})
]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
ShortText: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
_NEVER = -100.0  # a bias that rules a token out


def _biases(given: Any) -> Any:
    """Biases by token id; also llama.cpp's list of pairs, in which false means never."""
    if isinstance(given, list) and all(isinstance(each, list) and len(each) == 2 for each in given):
        given = {str(token): bias for token, bias in given} if given else given
    if not isinstance(given, dict):
        return given
    for token in given:
        if not (token.isdecimal() and token.isascii() and len(token) <= 12):
            wrong = {"token": ascii(token[:40])}
            raise PydanticCustomError(
                "value_error", "expected token ids as keys, not {token}", wrong
            )
    return {int(token): _NEVER if bias is False else bias for token, bias in given.items()}


class SamplingFields(Body):
    """How tokens are drawn."""

    temperature: float | None = option("temperature")
    top_p: float | None = option("top_p", low=0)
    top_k: int | None = option("top_k", low=-1)
    min_p: float | None = option("min_p")
    top_n_sigma: float | None = option("top_n_sigma")
    min_k: float | None = option("min_k")
    adaptive_target: float | None = option("adaptive_target")
    adaptive_decay: float | None = option("adaptive_decay")
    xtc_probability: float | None = option("xtc_probability")
    xtc_threshold: float | None = option("xtc_threshold")
    repetition_penalty: float | None = option("repetition_penalty")
    presence_penalty: float | None = option("presence_penalty")
    frequency_penalty: float | None = option("frequency_penalty")
    repetition_context_size: int | None = option("repetition_context_size")
    dry_multiplier: float | None = option("dry_multiplier")
    dry_base: float | None = option("dry_base")
    dry_allowed_length: int | None = option("dry_allowed_length")
    dry_penalty_last_n: int | None = option("dry_penalty_last_n")
    dry_sequence_breakers: Annotated[list[ShortText], Field(max_length=MAX_STOPS)] | None = option(
        "dry_sequence_breakers"
    )
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] | None = option("logit_bias")


class Named(Body):
    """The name of one of the operator's hooks or checks, with its arguments."""

    name: Text
    arguments: Json | None = None


class CheckField(Body):
    """The field for a check of the text while it is written."""

    check: Text | Named | None = about(
        "a check of the server's operator, by name or as an object with name and arguments: what "
        "it complains about is written again"
    )


class TextRequest(SamplingFields, CheckField, Lenient):
    """The common fields of requests for text."""

    model: ModelName | None = named()
    stream: bool | None = about("send events as the text grows")
    return_progress: bool | None = about(
        "begin a stream with prompt_progress while the prompt is run"
    )
    seed: int | None = option("seed")
    min_tokens: int | None = option("min_tokens")
    ignore_eos: bool | None = option("ignore_eos")
    loops: Literal["off", "stop", "take back"] | None = option(
        "loops", also=" (default: take back in chats, else off)"
    )
    stop_in_reasoning: bool | None = option("stop_in_reasoning")
    thinking_budget: int | None = option("thinking_budget")


def options_of(request: SamplingFields) -> dict[str, Any]:
    """The options that a request gives under their own names."""
    sent, given = request.model_fields_set, dict[str, Any]()
    for name in OPTIONS:
        if name in sent and (value := getattr(request, name)) is not None:
            given[name] = understood(name, value)
    return given


# ---- the form of the text ------------------------------------------------------------------------


class FormSchema(Body):
    """A JSON schema with its name."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None


class Format(FormSchema):
    """The format of a text, in the form of any API or peer: its schema is next to the type, in
    ``value``, or in ``json_schema``."""

    type: Literal["text", "json_object", "json_schema", "json"]
    json_schema: FormSchema | None = None
    value: Schema | None = None


def format_of(at: str, given: Format | None) -> Form | None:
    """The form that a ``Format`` asks for; raises ``RequestError``."""
    if given is None:
        return None
    if given.type == "text":
        for name in given.model_dump(exclude={"type"}, exclude_none=True, by_alias=True):
            raise RequestError.at(f"{at}.{name}", "is not for text", "unknown_parameter")
        return None
    inner = given.json_schema
    schemas = [given.schema_, given.value, None if inner is None else inner.schema_]
    found = [schema for schema in schemas if schema is not None]
    if any(schema != found[0] for schema in found):
        raise RequestError.at(f"{at}.schema", "contradicts another one here; send one of them")
    if not found and given.type == "json_schema" and inner is None:
        raise RequestError.at(f"{at}.schema", "is required", "missing_required_parameter")
    return json_form(at, found[0] if found else None)


def json_form(field: str, schema: Any) -> Form:
    """The form of JSON that matches a schema, or of any object if there is none. Objects are
    closed, unless the schema opens them. Raises ``RequestError``."""
    if schema is None:
        return Form(field, JsonObject(), is_json=True)
    try:
        return Form(field, JsonSchema(schema, closed=True), is_json=True)
    except MlxgenError as error:
        raise as_request_error(error, {"filters": field}) from error
