"""Fields that clients of other servers send, and what they mean here.

Owns the table of names that are not fields of this server: each is another name of a field, is
taken as it changes nothing about the answer, or is refused with a sentence that says what to send.
Must never know what the fields of this server do. Invariant: a name in the table is never ignored
where it would have changed the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..errors import RequestError
from .fields import name_of, shown

Fields: TypeAlias = Mapping[str, Any]


class _NotDoneError(ValueError):
    """A value that is not supported here; the text says what to send."""


@dataclass(frozen=True, slots=True)
class SameAs:
    """Another name of ``field``; ``convert`` makes its value from the given one."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Taken:
    """Has no effect on the answer, whatever its value."""

    reason: str


@dataclass(frozen=True, slots=True)
class Neutral:
    """Accepted if it is one of ``values``, which ask for what is done anyway."""

    values: tuple[Any, ...]
    otherwise: str


@dataclass(frozen=True, slots=True)
class Parts:
    """An object: ``fields`` is the rule of each of its keys."""

    fields: Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class Refused:
    """Not supported; ``instead`` says what to send."""

    instead: str


Rule: TypeAlias = SameAs | Taken | Neutral | Parts | Refused


class Translated(NamedTuple):
    """A body with this server's names; ``names`` are those that the client used instead."""

    fields: dict[str, Any]
    names: dict[str, str]


def translated(body: Fields, known: Mapping[str, Any]) -> Translated:
    """A body with only ``known`` fields, and names that no server knows.

    Raises ``RequestError`` for what is not supported here.
    """
    mine = {name: value for name, value in body.items() if name in known or name not in PEERS}
    result = Translated(mine, {})
    for name, value in body.items():
        if name not in known and name in PEERS:
            _translate(PEERS[name], name, value, result, known)
    return result


def _translate(
    rule: Rule, at: str, value: Any, result: Translated, known: Mapping[str, Any]
) -> None:
    if value is None or isinstance(rule, Taken):
        return
    try:
        if isinstance(rule, Refused):
            raise _NotDoneError(rule.instead)
        if isinstance(rule, Neutral):
            if not _is_one_of(value, rule.values):
                raise _NotDoneError(f"{_shown(value)} is not supported here; {rule.otherwise}")
            return
        if isinstance(rule, SameAs):
            if rule.field.partition(".")[0] not in known:
                raise _NotDoneError(_CHATS)
            _put(rule.field, rule.convert(value), at, result)
            return
        if not isinstance(value, dict):
            raise _NotDoneError(f"expected an object, got {_shown(value)}")
    except _NotDoneError as error:
        raise RequestError.at(at, str(error), "unsupported_parameter") from None
    for key, inner in value.items():
        if key not in rule.fields:
            names = ", ".join(rule.fields)
            raise RequestError.at(
                f"{at}.{key[:64]}",
                f"there is no such field; known are {names}",
                "unknown_parameter",
            )
        _translate(rule.fields[key], f"{at}.{key}", inner, result, known)


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
    param = error.param or ""
    for name, given in names.items():
        if param == name or param.startswith((f"{name}.", f"{name}[")):
            message = error.message.removeprefix(param)
            return RequestError(
                f"{given}{message}",
                status=error.status,
                param=given,
                code=error.code,
                type=error.type,
            )
    return error


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether the value equals one of these; a boolean does not equal a number."""
    return any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values)


def _shown(value: Any) -> str:
    return name_of(value) if isinstance(value, (list, dict)) else shown(value)


# ---- values --------------------------------------------------------------------------------------


def _schema(value: Any) -> Any:
    """vLLM also accepts schemas as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise _NotDoneError("invalid JSON; send the schema as an object") from None


def _any_object(value: Any) -> Any:
    if value is False:
        return None
    if value is not True:
        raise _NotDoneError(f"expected true or false, got {_shown(value)}")
    return {"type": "object"}


def _switch(value: Any) -> Any:
    """Whether to think, as Anthropic's and DeepSeek's clients say it."""
    kind = value.get("type") if isinstance(value, dict) else value
    known = {"enabled": True, "adaptive": True, "disabled": False, True: True, False: False}
    if isinstance(kind, (str, bool)) and kind in known:
        return known[kind]
    raise _NotDoneError(
        'send {"type": "enabled"} or {"type": "disabled"}, or reasoning_effort for how long'
    )


def _excluded(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    raise _NotDoneError(f"expected true or false, got {_shown(value)}")


def _newest(value: Any) -> Any:
    """-1 is the whole context, and 0 is no token at all."""
    if value == 0 and value is not False:
        raise _NotDoneError("0 would turn off the penalties; leave them out instead")
    return 0 if value == -1 else value


# ---- the table -----------------------------------------------------------------------------------

_SPEED = Taken("only a matter of speed")
_TALK = Taken("nothing here depends on it")
_TEXT = Taken("special tokens are never text here")
_SAMPLER = (
    "this sampler is not available; leave it out, or use top_p, top_k, min_p or xtc_probability"
)
_OLLAMA = "send its fields next to messages, as in OpenAI's API"
_CHATS = "belongs to POST /v1/chat/completions; leave it out"
_RESPONSES = "belongs to the Responses API; send messages"
_LENGTH = "send max_tokens"

PEERS: Mapping[str, Rule] = {
    # llama.cpp's server
    "n_predict": SameAs("max_tokens"),
    "repeat_penalty": SameAs("repetition_penalty"),
    "repeat_last_n": SameAs("repetition_context_size", _newest),
    "n_probs": Refused("send logprobs: true and top_logprobs"),
    "cache_prompt": Taken("prefixes are always cached"),
    "id_slot": _SPEED,
    "slot_id": _SPEED,
    "n_cache_reuse": _SPEED,
    "return_tokens": SameAs("return_token_ids"),
    "n_keep": Taken("a prompt is never truncated"),
    "t_max_predict_ms": Refused("there is no time limit for an answer; leave it out"),
    "samplers": Refused("the order of sampling is fixed here; leave it out"),
    "typical_p": Neutral((1,), _SAMPLER),
    "tfs_z": Neutral((1,), _SAMPLER),
    "top_n_sigma": Neutral((-1, 0), _SAMPLER),
    "mirostat": Neutral((0,), _SAMPLER),
    "mirostat_tau": Taken("mirostat is not available"),
    "mirostat_eta": Taken("mirostat is not available"),
    "dynatemp_range": Neutral((0,), "leave it out, and send temperature"),
    "dynatemp_exponent": Taken("temperatures do not vary here"),
    "dry_multiplier": Neutral((0,), "leave it out, and send repetition_penalty"),
    "dry_base": Taken("DRY is not available"),
    "dry_allowed_length": Taken("DRY is not available"),
    "dry_penalty_last_n": Taken("DRY is not available"),
    "dry_sequence_breakers": Taken("DRY is not available"),
    "min_keep": Neutral((0, 1), "leave it out"),
    "post_sampling_probs": Neutral((False,), "logprobs are the model's own here; leave it out"),
    "reasoning_format": Neutral(("auto", "deepseek", "deepseek-legacy"), "leave it out"),
    "parse_tool_calls": Neutral((True,), "send tool_choice: none"),
    "lora": Refused("the adapter is chosen with --adapter; leave it out"),
    # vLLM and SGLang
    "guided_json": SameAs("json_schema", _schema),
    "guided_regex": SameAs("regex"),
    "guided_choice": SameAs("choice"),
    "guided_grammar": SameAs("grammar"),
    "guided_decoding_backend": Taken("there is one"),
    "guided_whitespace_pattern": Refused("white space is fixed here; leave it out"),
    "structured_outputs": Parts(
        {
            "json": SameAs("json_schema", _schema),
            "regex": SameAs("regex"),
            "choice": SameAs("choice"),
            "grammar": SameAs("grammar"),
            "json_object": SameAs("json_schema", _any_object),
            "disable_fallback": Taken("there is one engine"),
            "disable_any_whitespace": Neutral((False,), "leave it out"),
            "disable_additional_properties": Neutral(
                (False,), 'send "additionalProperties": false in the schema'
            ),
            "whitespace_pattern": Refused("white space is fixed here; leave it out"),
            "structural_tag": Refused("send a grammar"),
        }
    ),
    "ebnf": SameAs("grammar"),
    "bad_words": SameAs("banned_strings"),
    "include_reasoning": Taken("a completion is one text"),
    "separate_reasoning": Neutral((True,), "thoughts are always separate; leave it out"),
    "enable_thinking": SameAs("chat_template_kwargs.enable_thinking"),
    "skip_special_tokens": _TEXT,
    "spaces_between_special_tokens": _TEXT,
    "no_stop_trim": Neutral((False,), "stops are never part of the text; leave it out"),
    "include_stop_str_in_output": Neutral(
        (False,), "stops are never part of the text; leave it out"
    ),
    "use_beam_search": Neutral((False,), "there is no beam search here; leave it out"),
    "length_penalty": Neutral((1,), "there is no beam search here; leave it out"),
    "early_stopping": Neutral((False,), "there is no beam search here; leave it out"),
    "best_of": Neutral((1,), "send n; every answer is returned"),
    "echo": Neutral((False,), "leave it out, or send POST /v1/completions"),
    "allowed_token_ids": Refused("send a grammar or choice"),
    "return_tokens_as_token_ids": Neutral((False,), "send return_token_ids: true"),
    "priority": Neutral((0,), "requests have no priorities here; leave it out"),
    "request_id": Taken("send the header X-Request-Id"),
    "chat_template": Refused("the model has its own; send chat_template_kwargs"),
    "documents": Refused("send chat_template_kwargs: {documents: ...}, or put them into messages"),
    "mm_processor_kwargs": Refused("this server reads text only; leave it out"),
    "add_special_tokens": Neutral((False,), "leave it out"),
    # mlx-lm's server, LM Studio, Ollama and others
    "presence_context_size": SameAs("repetition_context_size"),
    "frequency_context_size": SameAs("repetition_context_size"),
    "adapters": Refused("the adapter is chosen with --adapter; leave it out"),
    "draft_model": Refused("the draft model is chosen with --draft-model; leave it out"),
    "role_mapping": Refused("the chat template writes the roles; leave it out"),
    "ttl": _SPEED,
    "keep_alive": _SPEED,
    "think": SameAs("chat_template_kwargs.enable_thinking", _switch),
    "thinking": SameAs("chat_template_kwargs.enable_thinking", _switch),
    "reasoning": Parts(
        {
            "effort": SameAs("reasoning_effort"),
            "enabled": SameAs("chat_template_kwargs.enable_thinking", _switch),
            "exclude": SameAs("include_reasoning", _excluded),
            "summary": Taken("thoughts are returned as they are"),
            "max_tokens": Refused("thoughts have no limit of their own; send max_tokens"),
        }
    ),
    "options": Refused(_OLLAMA),
    "extra_body": Refused("is for the Python client; send its fields next to messages"),
    "format": Refused("send response_format, or json_schema"),
    "response_schema": Refused("send response_format, or json_schema"),
    "num_predict": SameAs("max_tokens"),
    "num_ctx": Refused("the context is chosen with --max-context; leave it out"),
    "stop_sequences": SameAs("stop"),
    "max_new_tokens": SameAs("max_tokens"),
    "max_length": Refused(_LENGTH),
    "max_output_tokens": Refused(_LENGTH),
    "max_completion_tokens": SameAs("max_tokens"),
    "system": Refused('send a message {"role": "system", "content": ...}'),
    "input": Refused(_RESPONSES),
    "instructions": Refused('send a message {"role": "system", "content": ...}'),
    "previous_response_id": Refused(_RESPONSES),
    "text": Refused(_RESPONSES),
    "chat_id": _TALK,
    "session_id": _TALK,
    "conversation_id": _TALK,
    "provider": _TALK,
    "transforms": _TALK,
    "route": _TALK,
    "usage": Taken("send stream_options: {include_usage: true} for streams"),
    # OpenAI's own that are not supported
    "audio": Refused("this server returns text only; leave it out"),
    "functions": Refused(
        'is the old name of tools; send tools: [{"type": "function", "function": ...}, ...] with '
        "each of the functions as it is"
    ),
    "function_call": Refused(
        'is the old name of tool_choice; send tool_choice: "auto", "none", or '
        '{"type": "function", "function": {"name": ...}}'
    ),
    "moderation": Refused("there is no moderation here; leave it out"),
    "web_search_options": Refused("there is no web search here; leave it out"),
    "suffix": Refused("the model cannot fill in text before a suffix; leave it out"),
    "messages": Refused("belongs to POST /v1/chat/completions; send prompt"),
    "prompt": Refused("belongs to POST /v1/completions; send messages"),
    "tools": Refused(_CHATS),
    "tool_choice": Refused(_CHATS),
    "chat_template_kwargs": Refused(_CHATS),
    "reasoning_effort": Refused(_CHATS),
    "verbosity": _TALK,
}
"""Fields that an endpoint does not have, by name."""
