"""What every request for text may say, whichever API it comes by: the model's name, sampling, and
the form of the text.

Invariant: the fields are called as the engine's options are, and so mean the same in all APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from ..chat.calls.use import Form
from ..filters import JsonObject, JsonSchema
from ..options.table import OPTIONS, understood
from .errors import RequestError
from .fields import (
    Body,
    Breakers,
    Count,
    DryLength,
    Int,
    Json,
    Limit,
    ModelName,
    TopK,
    about,
    named,
    option,
)

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
Schema: TypeAlias = Annotated[
    Json | bool, WithJsonSchema({"type": ["object", "boolean"], "description": "a JSON schema"})
]
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


class TextRequest(SamplingFields):
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


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


def standard_format(given: Any, *, nested: bool = True) -> Any:
    """A format as OpenAI's chat completions have it, ``nested``, or their Responses; peers put the
    schema beside the type, or in the other API's place, or name the type otherwise."""
    if not isinstance(given, dict) or given.get("type") not in (
        "json_object",
        "json_schema",
        "json",
    ):
        return given
    inner = given.get("json_schema")
    named = dict(inner) if isinstance(inner, dict) else {}
    beside = {key: value for key, value in given.items() if key not in ("type", "json_schema")}
    if "value" in beside:
        beside["schema"] = beside.pop("value")
    if given["type"] != "json_schema" and named.get("schema", beside.get("schema")) is None:
        return {"type": "json_object"} if set(beside) <= {"schema"} else given
    if any(named.get(key, value) != value for key, value in beside.items()):
        return given  # it says two things
    whole = {**named, **{key: value for key, value in beside.items() if value is not None}}
    return {"type": "json_schema", **({"json_schema": whole} if nested else whole)}


def json_form(field: str, schema: Any) -> Form:
    """JSON that matches a schema; any object without one. Objects are closed, unless the schema
    opens them."""
    if schema is None:
        return Form(field, JsonObject(), is_json=True)
    return Form(field, JsonSchema(schema, closed=True), is_json=True)
