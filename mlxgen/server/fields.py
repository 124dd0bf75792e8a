"""The types of fields in request bodies, what every request for text may say, and how messages show
places and values.

Numbers are never strings or booleans. The fields are called as the engine's options are, and so
mean the same in all APIs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
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

from ..chat.calls.use import Form
from ..errors import MlxgenError
from ..filters import JsonObject, JsonSchema
from ..options.table import OPTIONS, understood
from .errors import RequestError, as_request_error

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


# ---- fields that are read by hand ------------------------------------------------------------

_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def need(piece: Mapping[str, Any], name: str, kind: type, at: str) -> Any:
    """A field of a piece; raises ``RequestError`` unless it is there and of this type."""
    place = f"{at}.{name}" if at else name
    if name not in piece:
        raise RequestError.at(place, "is required", "missing_required_parameter")
    return of_type(piece[name], kind, place)


def of_type(value: Any, kind: type, place: str) -> Any:
    """A value; raises ``RequestError`` unless it is of this type."""
    if not isinstance(value, kind):
        raise RequestError.at(place, f"expected {_KINDS[kind]}, got {got(value)}", "invalid_type")
    return value


def one_of(piece: Mapping[str, Any], name: str, known: Iterable[str], at: str) -> str:
    """A field of a piece, likewise, which is one of the ``known`` words."""
    value = piece.get(name)
    if name in piece and value not in (names := list(known)):
        wanted = ", ".join(names)
        place = f"{at}.{name}" if at else name
        raise RequestError.at(place, f"expected one of {wanted}, got {shown(value)}")
    return str(need(piece, name, str, at))


# ---- what every request for text may say ------------------------------------------------------

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
Schema: TypeAlias = Annotated[
    Json | bool, WithJsonSchema({"type": ["object", "boolean"], "description": "a JSON schema"})
]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
ShortText: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
_NEVER = -100.0  # a bias that leaves no chance


def _pairs(given: Any) -> Any:
    """llama.cpp's way to say it: pairs of a token id and a bias, or false for never."""
    if (
        isinstance(given, list)
        and given
        and all(isinstance(each, list) and len(each) == 2 for each in given)
    ):
        given = {str(token): bias for token, bias in given}
    if isinstance(given, dict):
        return {token: _NEVER if bias is False else bias for token, bias in given.items()}
    return given


class SamplingFields(Body):
    """How tokens are drawn."""

    temperature: float | None = option("temperature")
    top_p: float | None = option("top_p", low=0)
    top_k: TopK | None = option("top_k")
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
    repetition_context_size: Count | None = option("repetition_context_size")
    dry_multiplier: float | None = option("dry_multiplier")
    dry_base: float | None = option("dry_base")
    dry_allowed_length: DryLength | None = option("dry_allowed_length")
    dry_penalty_last_n: Limit | None = option("dry_penalty_last_n")
    dry_sequence_breakers: Breakers | None = option("dry_sequence_breakers")
    logit_bias: Annotated[dict[str, float], BeforeValidator(_pairs)] | None = option("logit_bias")


class Named(Body):
    """Something of the server's operator, with its arguments."""

    name: Text
    arguments: Json | None = None


class CheckField(Body):
    """What looks at the text while it is written."""

    check: Text | Named | None = about(
        "a check of the server's operator, by name or as an object with name and arguments: what "
        "it complains about is written again"
    )


class TextRequest(SamplingFields, CheckField):
    """What requests for text have in common."""

    model: ModelName | None = named()
    stream: bool | None = about("send events as the text grows")
    return_progress: bool | None = about(
        "begin a stream with prompt_progress while the prompt is run"
    )
    seed: Int | None = option("seed")
    min_tokens: Count | None = option("min_tokens")
    ignore_eos: bool | None = option("ignore_eos")
    loops: Literal["off", "stop", "take back"] | None = option(
        "loops", also=" (default: take back in chats, else off)"
    )
    stop_in_reasoning: bool | None = option("stop_in_reasoning")
    thinking_budget: Count | None = option("thinking_budget")


def options_of(request: SamplingFields) -> dict[str, Any]:
    """The options that a request gives by their own names; raises ``RequestError``."""
    asked = {name: getattr(request, name, None) for name in OPTIONS}
    given = {name: understood(name, value) for name, value in asked.items() if value is not None}
    if request.logit_bias is not None:
        given["logit_bias"] = _biases(request.logit_bias)
    return given


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    biases = {}
    for text, bias in given.items():
        if not text.isdecimal() or not text.isascii() or len(text) > 12:
            raise RequestError.at("logit_bias", f"expected token ids as keys, got {text[:40]!r}")
        biases[int(text)] = bias
    return biases


def limit_of(max_tokens: int | None, default: int | None = None) -> int | None:
    """The most tokens to generate; ``None`` is as many as the context holds."""
    if max_tokens is None:
        return default
    return None if max_tokens < 0 else max_tokens


# ---- the form of the text ------------------------------------------------------------------------

_FORMATS = ("text", "json_object", "json_schema", "json")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ABOUT_FORM: Mapping[str, type] = {"name": str, "description": str, "strict": bool}
_FORMAT: Json = {
    "type": "object",
    "properties": {
        "type": {"enum": list(_FORMATS)},
        **{name: {} for name in ("json_schema", "schema", "value", *_ABOUT_FORM)},
    },
    "required": ["type"],
}
Format: TypeAlias = Annotated[Json, WithJsonSchema(_FORMAT)]
"""The format of a text, as any of the APIs and their peers spell it."""


def format_of(at: str, given: Json | None) -> Form | None:
    """The form that a ``Format`` asks for, with its schema in ``json_schema``, as ``value`` or
    beside the type; raises ``RequestError``."""
    if given is None:
        return None
    kind, inner = one_of(given, "type", _FORMATS, at), given.get("json_schema")
    whole = of_type({} if inner is None else inner, dict, f"{at}.json_schema")
    told = {name: value for name, value in whole.items() if value is not None}
    for name, value in given.items():
        name = "schema" if name == "value" else name
        if name in ("type", "json_schema") or value is None:
            continue
        if told.setdefault(name, value) != value:
            raise RequestError.at(f"{at}.{name}", "contradicts json_schema; leave out one of them")
    place = at if inner is None else f"{at}.json_schema"
    for name, value in told.items():
        if kind == "text" or name not in ("schema", *_ABOUT_FORM):
            at = f"{place}.{name[:64]}"
            raise RequestError.at(at, "there is no such field", "unknown_parameter")
        if name in _ABOUT_FORM:
            of_type(value, _ABOUT_FORM[name], f"{place}.{name}")
    if kind == "text":
        return None
    if "name" in told and not _NAME.fullmatch(told["name"]):
        raise RequestError.at(f"{place}.name", f"expected {_NAME.pattern}, got {got(told['name'])}")
    schema = told.get("schema")
    if schema is None and kind == "json_schema" and inner is None:
        raise RequestError.at(f"{at}.schema", "is required", "missing_required_parameter")
    if not isinstance(schema, dict | bool | None):
        wrong = f"expected an object, got {got(schema)}"
        raise RequestError.at(f"{place}.schema", wrong, "invalid_type")
    return json_form(at, schema)


def json_form(field: str, schema: Any) -> Form:
    """JSON that matches a schema; any object without one. Objects are closed, unless the schema
    opens them. Raises ``RequestError``."""
    if schema is None:
        return Form(field, JsonObject(), is_json=True)
    try:
        return Form(field, JsonSchema(schema, closed=True), is_json=True)
    except MlxgenError as error:
        raise as_request_error(error, {"filters": field}) from error
