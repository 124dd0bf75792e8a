"""Bodies with the fields of other servers: what these mean here, and which of them had no effect.

Each is another name of a field, is taken as it changes nothing about the answer, or is refused with
a sentence that says what to send. Invariant: a name in the table is never ignored where it would
have changed the answer.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel

from .conversation import as_text
from .errors import RequestError
from .fields import got
from .logs import log
from .served_model import ServedModel
from .validation import check_body, modelled

M = TypeVar("M", bound=BaseModel)

_MOST_NAMES = 1000  # of unknown fields in the log
_LONGEST = 1000  # characters of a header
_UNSAFE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")
_TALKS = ("messages", "system", "input", "instructions")
_CACHED = "cache_control"  # prefixes are always cached

Fields: TypeAlias = Mapping[str, Any]


class _NotDoneError(ValueError):
    """A value that is not supported here; the text says what to send."""


@dataclass(frozen=True, slots=True)
class SameAs:
    """Another name of ``field``; ``convert`` makes its value from the given one."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Neutral:
    """Accepted if it is one of ``values``, which ask for what is done anyway, or if these are None:
    then it has no effect on the answer, unless it is a list ``without`` something that has.
    ``otherwise`` says what to send."""

    values: tuple[Any, ...] | None
    otherwise: str = ""
    without: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Not supported; ``otherwise`` says what to send, and ``code`` tells a client's SDK."""

    otherwise: str
    code: str


Rule: TypeAlias = "SameAs | Neutral | Refused | str | Mapping[str, Rule]"
"""A text says what to send instead of a field that is not supported; a mapping has the rule of each
key of an object, and under "" that of any other value. The rule of ``text.verbosity`` is that of a
key in a field that is known."""


class Translated(NamedTuple):
    """A body with this server's names; ``names`` are those that the client used instead, and
    ``idle`` those of fields that have no effect."""

    fields: dict[str, Any]
    names: dict[str, str]
    idle: list[str]


def translated(body: Fields, known: Mapping[str, Any], rules: Mapping[str, Rule]) -> Translated:
    """A body with only ``known`` fields, and names that neither they nor the ``rules`` know.

    Raises ``RequestError`` for what is not supported here.
    """
    mine = {name: value for name, value in body.items() if name in known or name not in rules}
    result = Translated(mine, {}, [])
    for name, value in body.items():
        if name not in known and name in rules:
            _translate(rules[name], name, value, result, known)
        for key in value if name in known and isinstance(value, dict) else ():
            if (at := f"{name}.{key}") in rules:
                mine[name] = {k: v for k, v in mine[name].items() if k != key}
                _translate(rules[at], at, value[key], result, known)
    return result


def _translate(
    rule: Rule, at: str, value: Any, result: Translated, known: Mapping[str, Any]
) -> None:
    if value is None:
        return
    try:
        if isinstance(rule, str):
            raise _NotDoneError(rule)
        if isinstance(rule, Refused):
            raise RequestError.at(at, rule.otherwise, rule.code)
        if isinstance(rule, Neutral):
            if rule.values is not None and not _is_one_of(value, rule.values):
                raise _NotDoneError(f"{got(value)} is not supported here; {rule.otherwise}")
            if rule.without is not None and isinstance(value, list) and rule.without in value:
                raise _NotDoneError(rule.otherwise)
            if rule.values is None:
                result.idle.append(at)
            return
        if isinstance(rule, SameAs):
            if rule.field.partition(".")[0] not in known:
                raise _NotDoneError(_CHATS)
            _put(rule.field, rule.convert(value), at, result)
            return
        if not isinstance(value, dict) and "" in rule:
            _translate(rule[""], at, value, result, known)
            return
        if not isinstance(value, dict):
            raise _NotDoneError(f"expected an object, got {got(value)}")
    except _NotDoneError as error:
        raise RequestError.at(at, str(error), "unsupported_parameter") from None
    for key, inner in value.items():
        if not key or key not in rule:
            names = ", ".join(filter(None, rule))
            raise RequestError.at(
                f"{at}.{key[:64]}",
                f"there is no such field; known are {names}",
                "unknown_parameter",
            )
        _translate(rule[key], f"{at}.{key}", inner, result, known)


def _put(path: str, value: Any, at: str, result: Translated) -> None:
    """Set a field, or with a dot in its name one inside it, unless it has another value."""
    if value is None:
        return
    name, _, key = path.partition(".")
    fields = result.fields
    if key:
        inner = fields.get(name)
        inner = inner if isinstance(inner, dict) else {}
        old, new = inner.get(key), {**inner, key: value}
    else:
        old, new = fields.get(name), value
    if old is not None and old != value:
        other = result.names.get(name, path)
        raise RequestError.at(
            at,
            f"cannot be combined with {other}, which means the same here but has another value; "
            "send one of them",
        )
    fields[name] = new
    result.names.setdefault(name, at)


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The error with the name of the field that the client sent."""
    ours = error.param or ""
    given = name_given(ours, names)
    if given == ours:
        return error
    return RequestError(
        f"{given}{error.message.removeprefix(ours)}",
        status=error.status,
        param=given,
        code=error.code,
        type=error.type,
    )


def name_given(ours: str, names: Mapping[str, str]) -> str:
    """The name that the client used for a field, or for the one that this is in."""
    for name, given in names.items():
        if ours == name or ours.startswith((f"{name}.", f"{name}[")):
            return given
    return ours


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether the value equals one of these; a boolean does not equal a number."""
    return any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values)


# ---- reading a body --------------------------------------------------------------------------


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
        return [*self.idle, *(name_given(name, self.names) for name in told)]


def read(
    body: Mapping[str, Any],
    model: type[M],
    rules: Mapping[str, Rule],
    *,
    served: ServedModel,
) -> Read[M]:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong.

    What in a conversation is no text is replaced. A field that nobody here knows is left out and
    named, unless the ``served`` model wants fields strictly.
    """
    body = {name: as_text(each) if name in _TALKS else each for name, each in body.items()}
    check_body(body)
    fields, names, idle = translated(body, model.model_fields, rules)
    if not served.strict_fields:
        known = {field.alias or name for name, field in model.model_fields.items()}
        unknown = [name for name in fields if name not in known]
        fields = {name: value for name, value in fields.items() if name in known}
        idle += unknown
        for name in unknown:
            _tell(name, [*known, *rules], served)
    try:
        request = modelled(fields, model)
    except RequestError as error:
        raise renamed(error, names) from None
    return Read(request, [*idle, *cache_marks(body)], names)


def _tell(name: str, known: Iterable[str], served: ServedModel) -> None:
    """Say in the log, once for each name, that a field is not known, and which may be meant."""
    if name in served.unknown_fields or len(served.unknown_fields) >= _MOST_NAMES:
        return
    served.unknown_fields.add(name)
    close = difflib.get_close_matches(name[:64], list(known), 1)
    hint = {"did_you_mean": close[0]} if close else {}
    log(logging.WARNING, "ignored an unknown field", field=name[:64], **hint)


# ---- what had no effect ----------------------------------------------------------------------


def cache_marks(body: Mapping[str, Any]) -> list[str]:
    """That a conversation or its tools say what a remote service should cache, if they do."""
    places = ("system", "messages", "input", "tools")
    return [_CACHED] if any(_is_marked(body.get(place)) for place in places) else []


def _is_marked(pieces: Any) -> bool:
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


# ---- values --------------------------------------------------------------------------------------


def _schema(value: Any) -> Any:
    """vLLM also accepts schemas as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise _NotDoneError("invalid JSON; send the schema as an object") from None


def _format(value: Any) -> Any:
    """Ollama's: the word json, or a schema."""
    if value in ("", "json"):
        return {"type": "json_object"} if value else None
    if isinstance(value, dict):
        return {"type": "json_schema", "json_schema": {"schema": value}}
    raise _NotDoneError(f'expected "json" or a schema, got {got(value)}')


def _any_object(value: Any) -> Any:
    return None if _excluded(value) else {"type": "object"}


def _switch(value: Any) -> Any:
    """Whether to think, as Anthropic's and DeepSeek's clients say it."""
    kind = value.get("type") if isinstance(value, dict) else value
    known = {"enabled": True, "adaptive": True, "disabled": False, True: True, False: False}
    if isinstance(kind, (str, bool)) and kind in known:
        return known[kind]
    raise _NotDoneError(
        'send {"type": "enabled"} or {"type": "disabled"}, or reasoning_effort for how long'
    )


def _limit(value: Any) -> Any:
    """-1 is no limit."""
    return None if value == -1 else value


def _excluded(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    raise _NotDoneError(f"expected true or false, got {got(value)}")


def _newest(value: Any) -> Any:
    """-1 is the whole context, and 0 is no token at all."""
    if value == 0 and value is not False:
        raise _NotDoneError("0 would turn off the penalties; leave them out instead")
    return 0 if value == -1 else value


# ---- the table -----------------------------------------------------------------------------------

_TAKEN = Neutral(None)
_SAMPLER = "this sampler is not available; leave it out, or use top_p, top_k, min_p or top_n_sigma"
_CHATS = "belongs to POST /v1/chat/completions; leave it out"
_TO_RESPONSES = "belongs to POST /v1/responses; send messages"
_NO_TRIM = Neutral((False,), "stops are never part of the text; leave it out")
_NO_BEAMS = "there is no beam search here; leave it out"
_SYSTEM = 'send a message {"role": "system", "content": ...}'
_THINK = SameAs("chat_template_kwargs.enable_thinking", _switch)
_BUDGET = SameAs("thinking_budget", _limit)
_CONSTRAINTS: Mapping[str, Rule] = {
    "json": SameAs("json_schema", _schema),
    "regex": SameAs("regex"),
    "choice": SameAs("choice"),
    "grammar": SameAs("grammar"),
    "whitespace_pattern": "white space is fixed here; leave it out",
}

COMMON: Mapping[str, Rule] = {
    # whether to think
    "enable_thinking": SameAs("chat_template_kwargs.enable_thinking"),
    "think": _THINK,
    "thinking": {"": _THINK, "type": _THINK, "budget_tokens": _BUDGET},
    # prefixes are always cached, and nothing is kept
    **dict.fromkeys(("cache_control", "cache_salt", "context_management", "store"), _TAKEN),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_options"), _TAKEN),
    # who asks and pays, how fast it is, and how many words it likes
    **dict.fromkeys(("user", "metadata", "safety_identifier", "service_tier"), _TAKEN),
    **dict.fromkeys(("prompt_cache_retention", "verbosity"), _TAKEN),
}
"""What means the same in every API that has no field of this name."""

OPENAI: Mapping[str, Rule] = {
    **COMMON,
    # llama.cpp's server
    "n_predict": SameAs("max_tokens"),
    "repeat_penalty": SameAs("repetition_penalty"),
    "repeat_last_n": SameAs("repetition_context_size", _newest),
    "n_probs": "send logprobs: true and top_logprobs",
    "return_tokens": SameAs("return_token_ids"),
    "n_keep": _TAKEN,  # a prompt is never truncated
    "t_max_predict_ms": "there is no time limit for an answer; leave it out",
    "samplers": _TAKEN,  # their order is fixed here
    **dict.fromkeys(("typical_p", "tfs_z"), Neutral((1,), _SAMPLER)),
    "mirostat": Neutral((0,), _SAMPLER),
    "dynatemp_range": Neutral((0,), "leave it out, and send temperature"),
    # of the samplers above, which are off
    **dict.fromkeys(("mirostat_tau", "mirostat_eta", "dynatemp_exponent"), _TAKEN),
    "min_keep": Neutral((0, 1), "leave it out"),
    "post_sampling_probs": Neutral((False,), "logprobs are the model's own here; leave it out"),
    "reasoning_control": _TAKEN,  # every answer can be steered
    **dict.fromkeys(("thinking_budget_tokens", "reasoning_budget"), _BUDGET),
    "parse_tool_calls": Neutral((True,), "send tool_choice: none"),
    **dict.fromkeys(("lora", "adapters"), "name the adapter in model, as BASE:NAME; leave it out"),
    "speculative.n_max": SameAs("num_draft_tokens"),
    **dict.fromkeys(("speculative.n_min", "speculative.p_min"), _TAKEN),  # only matters of speed
    # vLLM and SGLang
    **{f"guided_{name}": rule for name, rule in _CONSTRAINTS.items()},
    "guided_decoding_backend": _TAKEN,  # there is one
    "structured_outputs": {
        **_CONSTRAINTS,
        "json_object": SameAs("json_schema", _any_object),
        "disable_fallback": _TAKEN,  # there is one engine
        "disable_any_whitespace": Neutral((False,), "leave it out"),
        "disable_additional_properties": Neutral(
            (False,), 'send "additionalProperties": false in the schema'
        ),
        "structural_tag": "send a grammar",
    },
    "ebnf": SameAs("grammar"),
    **dict.fromkeys(("bad_words", "banned_strings"), SameAs("banned")),
    "include_reasoning": _TAKEN,  # a completion is one text
    "thinking_token_budget": _BUDGET,
    "separate_reasoning": Neutral((True,), "thoughts are always separate; leave it out"),
    # special tokens are never text here
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), _TAKEN),
    **dict.fromkeys(("no_stop_trim", "include_stop_str_in_output"), _NO_TRIM),
    **dict.fromkeys(("use_beam_search", "early_stopping"), Neutral((False,), _NO_BEAMS)),
    "length_penalty": Neutral((1,), _NO_BEAMS),
    "best_of": Neutral((1,), "send n; every answer is returned"),
    "echo": Neutral((False,), "leave it out, or send POST /v1/completions"),
    "allowed_token_ids": "send a grammar or choice",
    "return_tokens_as_token_ids": Neutral((False,), "send return_token_ids: true"),
    "priority": Neutral((0,), "requests have no priorities here; leave it out"),
    "request_id": _TAKEN,  # it is in the header X-Request-Id
    "chat_template": "the model has its own; send chat_template_kwargs",
    "documents": "send chat_template_kwargs: {documents: ...}, or put them into messages",
    "mm_processor_kwargs": "this server reads text only; leave it out",
    "add_special_tokens": Neutral((False,), "leave it out"),
    # mlx-lm's server, LM Studio, Ollama and others
    "presence_context_size": SameAs("repetition_context_size"),
    "frequency_context_size": SameAs("repetition_context_size"),
    "draft_model": "the draft model is chosen with --draft; leave it out",
    "role_mapping": "the chat template writes the roles; leave it out",
    "reasoning": {
        "effort": SameAs("reasoning_effort"),
        "enabled": _THINK,
        "exclude": SameAs("include_reasoning", _excluded),
        "summary": _TAKEN,  # thoughts are returned as they are
        "max_tokens": _BUDGET,
    },
    "options": "send its fields next to messages, as in OpenAI's API",
    "extra_body": "is for the Python client; send its fields next to messages",
    "format": SameAs("response_format", _format),
    "response_schema": SameAs("json_schema", _schema),
    **dict.fromkeys(("num_predict", "max_new_tokens"), SameAs("max_tokens")),
    "max_completion_tokens": SameAs("max_tokens"),
    **dict.fromkeys(("max_length", "max_output_tokens"), "send max_tokens"),
    "num_ctx": "the context is chosen with --max-context; leave it out",
    "stop_sequences": SameAs("stop"),
    **dict.fromkeys(("system", "instructions"), _SYSTEM),
    **dict.fromkeys(("input", "previous_response_id", "text"), _TO_RESPONSES),
    # only matters of speed
    **dict.fromkeys(("cache_prompt", "id_slot", "slot_id", "n_cache_reuse"), _TAKEN),
    **dict.fromkeys(("ttl", "keep_alive"), _TAKEN),
    # nothing here depends on them
    **dict.fromkeys(("chat_id", "session_id", "conversation_id", "provider"), _TAKEN),
    **dict.fromkeys(("transforms", "route"), _TAKEN),
    "usage": _TAKEN,  # streams have it with stream_options: {include_usage: true}
    # OpenAI's own that have no effect, or are not supported
    "stream_options.continuous_usage_stats": _TAKEN,  # the end has the usage
    "audio": "this server returns text only; leave it out",
    "functions": (
        'is the old name of tools; send tools: [{"type": "function", "function": ...}, ...] with '
        "each of the functions as it is"
    ),
    "function_call": (
        'is the old name of tool_choice; send tool_choice: "auto", "none", or '
        '{"type": "function", "function": {"name": ...}}'
    ),
    "moderation": "there is no moderation here; leave it out",
    "web_search_options": "there is no web search here; leave it out",
    "suffix": "belongs to POST /v1/completions; leave it out",
    "messages": "belongs to POST /v1/chat/completions; send prompt",
    "prompt": "belongs to POST /v1/completions; send messages",
    **dict.fromkeys(("tools", "tool_choice"), _CHATS),
    **dict.fromkeys(("chat_template_kwargs", "reasoning_effort"), _CHATS),
}
"""Fields that chat completions and completions do not have, by name."""

INFILL: Mapping[str, Rule] = {
    **OPENAI,  # what editors send to cut a suggestion short has no effect
    **dict.fromkeys(("t_max_prompt_ms", "t_max_predict_ms", "n_indent", "samplers"), _TAKEN),
}

MESSAGES: Mapping[str, Rule] = {
    **COMMON,
    "compaction": "this server makes no summaries of its own; leave it out",
    "thread": Refused(
        "this server is stateless and keeps no messages; send the whole conversation",
        "thread_unsupported_request",
    ),
    **dict.fromkeys(("billing_policy", "fallback_credit_token", "fallbacks"), _TAKEN),
    **dict.fromkeys(("inference_geo", "speed", "workspace_id", "user_profile_id"), _TAKEN),
    # of tools that are left out, and of the service
    **dict.fromkeys(("container", "mcp_servers", "betas", "diagnostics"), _TAKEN),
}

_STATELESS = "this server is stateless and keeps no responses; send the whole conversation in input"
_LOGPROBS = "log-probabilities are reported by POST /v1/chat/completions; leave it out"

RESPONSES: Mapping[str, Rule] = {
    **COMMON,
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "background": Neutral((False,), "a response ends with its request; leave it out"),
    "prompt": "there are no stored prompts here; send instructions and input",
    "moderation": "there is no moderation here; leave it out",
    "top_logprobs": Neutral((0,), _LOGPROBS),
    "include": Neutral(None, _LOGPROBS, without="message.output_text.logprobs"),
    # a stream always ends with the usage
    "stream_options": {
        **dict.fromkeys(("include_usage", "continuous_usage_stats"), _TAKEN),
        "include_obfuscation": Neutral((False,), "leave it out"),
    },
    "truncation": _TAKEN,  # a conversation that is too long is refused
    **dict.fromkeys(("client_metadata", "text.verbosity"), _TAKEN),
    # nothing is kept, and some tools are left out
    **dict.fromkeys(("access_programs", "background_options"), _TAKEN),
    **dict.fromkeys(("max_tool_calls", "image"), _TAKEN),
    # the names of chat completions
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), SameAs("max_output_tokens")),
    "reasoning_effort": SameAs("reasoning.effort"),
    "messages": "belongs to POST /v1/chat/completions; send input",
    "response_format": "belongs to POST /v1/chat/completions; send text: {format: ...}",
}
