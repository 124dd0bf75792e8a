"""The fields of other servers and their clients: what each means here, and which have no effect.

A field is another name of one of ours, or is accepted because it would not change the answer, or is
refused with one sentence that says what to do. Invariant: a name in these tables is never ignored
if it would have changed the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from .errors import RequestError
from .fields import got

# ---- rules ---------------------------------------------------------------------------------------


class Same(NamedTuple):
    """Another name of a ``field``, or, with a dot, of a key in one. If ``field`` is empty, a value
    has no effect, which is reported unless ``convert`` returns None. ``convert`` raises
    ``ValueError`` for a value that is not supported, with a sentence that says what to send."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value


class Inside(NamedTuple):
    """An object with a rule for each of its keys; ``otherwise`` is the rule for any other value."""

    rules: Rules
    otherwise: Rule = "expected an object"


TAKEN = None
"""The field has no effect on the answer, whatever its value."""
Rule: TypeAlias = Same | Inside | str | None
"""A string refuses the field, and says what to do."""
Rules: TypeAlias = "Mapping[str, Rule]"
"""By the name of a field, or by ``text.verbosity`` for a key in a known field."""


def only(otherwise: str, *values: Any) -> Rule:
    """These values ask for what is done anyway; for others, ``otherwise`` says what to send."""

    def look(value: Any) -> None:
        if not any(v == value and isinstance(v, bool) is isinstance(value, bool) for v in values):
            raise ValueError(f"{got(value)} is not supported here; {otherwise}")

    return Same("", look)


def _all(names: str, rule: Rule) -> Rules:
    return dict.fromkeys(names.split(), rule)


# ---- values --------------------------------------------------------------------------------------


def _schema(value: Any) -> Any:
    """A schema, also as JSON text, as in vLLM."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("invalid JSON; send the schema as an object") from None


def _format(value: Any) -> Any:
    """Ollama's format: the word json, or a schema."""
    if value in ("", "json"):
        return {"type": "json_object"} if value else None
    if isinstance(value, dict):
        return {"type": "json_schema", "json_schema": {"schema": value}}
    raise ValueError(f'expected "json" or a schema, got {got(value)}')


def _opposite(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {got(value)}")
    return not value


def _any_object(value: Any) -> Any:
    return None if _opposite(value) else {"type": "object"}


def _switch(value: Any) -> Any:
    """Whether to think, in the form of Anthropic's and DeepSeek's clients."""
    kind = value.get("type") if isinstance(value, dict) else value
    if isinstance(kind, bool):
        return kind
    if kind not in ("enabled", "adaptive", "disabled"):
        raise ValueError(
            'send {"type": "enabled"} or {"type": "disabled"}, or reasoning_effort for how long'
        )
    return kind != "disabled"


def _limit(value: Any) -> Any:
    """-1 means no limit."""
    return None if value == -1 else value


def _newest(value: Any) -> Any:
    """-1 means the whole context, which is 0 here; 0 means no tokens, which is refused."""
    if value == 0 and value is not False:
        raise ValueError("0 would turn off the penalties; leave them out instead")
    return 0 if value == -1 else value


def _included(value: Any) -> Any:
    """What a response should include in addition."""
    if isinstance(value, list) and "message.output_text.logprobs" in value:
        raise ValueError(_LOGPROBS)
    return value


def _thread(value: Any) -> None:
    """Refuses messages kept by the service; Anthropic's client looks for the code."""
    reason = "this server is stateless and keeps no messages; send the whole conversation"
    raise RequestError.at("thread", reason, "thread_unsupported_request")


# ---- the tables ----------------------------------------------------------------------------------

CHATS = "belongs to POST /v1/chat/completions; leave it out"
"""The reason for refusing a field that only chats have."""
_LOGPROBS = "log-probabilities are reported by POST /v1/chat/completions; leave it out"
_SAMPLER = "this sampler is not available; leave it out, or use top_p, top_k, min_p or top_n_sigma"
_NO_BEAMS = "there is no beam search here; leave it out"
_NO_MODERATION = "there is no moderation here; leave it out"
_THINK = Same("chat_template_kwargs.enable_thinking", _switch)
_BUDGET = Same("thinking_budget", _limit)
_CONSTRAINTS: Rules = {
    "json": Same("json_schema", _schema),
    "regex": Same("regex"),
    "choice": Same("choice"),
    "grammar": Same("grammar"),
    "whitespace_pattern": "white space is fixed here; leave it out",
}

COMMON: Rules = {
    # whether to think
    "enable_thinking": Same("chat_template_kwargs.enable_thinking"),
    "think": _THINK,
    "thinking": Inside({"type": _THINK, "budget_tokens": _BUDGET}, _THINK),
    # prefixes are always cached, and nothing is kept
    **_all("cache_control cache_salt context_management store prompt_cache_key", TAKEN),
    **_all("prompt_cache_options prompt_cache_retention", TAKEN),
    # who asks and pays, how fast the answer comes, and how wordy it is
    **_all("user metadata safety_identifier service_tier verbosity", TAKEN),
}
"""Rules for every API, unless it has a field of this name itself."""

OPENAI: Rules = {
    **COMMON,
    # llama.cpp's server
    "n_predict": Same("max_tokens"),
    "repeat_penalty": Same("repetition_penalty"),
    "repeat_last_n": Same("repetition_context_size", _newest),
    "n_probs": "send logprobs: true and top_logprobs, or for a completion logprobs alone",
    "return_tokens": Same("return_token_ids"),
    "t_max_predict_ms": "there is no time limit for an answer; leave it out",
    **_all("typical_p tfs_z", only(_SAMPLER, 1)),
    "mirostat": only(_SAMPLER, 0),
    "dynatemp_range": only("leave it out, and send temperature", 0),
    "min_keep": only("leave it out", 0, 1),
    "post_sampling_probs": only("logprobs are the model's own here; leave it out", False),
    **_all("thinking_budget_tokens reasoning_budget thinking_token_budget", _BUDGET),
    "parse_tool_calls": only("send tool_choice: none", True),
    **_all("lora adapters", "name the adapter in model, as BASE:NAME; leave it out"),
    "speculative.n_max": Same("num_draft_tokens"),
    # samplers that are off or in a fixed order, truncation of prompts, which is never done,
    # steering, which every answer allows, and speed
    **_all("mirostat_tau mirostat_eta dynatemp_exponent samplers n_keep reasoning_control", TAKEN),
    **_all("speculative.n_min speculative.p_min cache_prompt id_slot slot_id n_cache_reuse", TAKEN),
    # vLLM and SGLang
    **{f"guided_{name}": rule for name, rule in _CONSTRAINTS.items()},
    "structured_outputs": Inside(
        {
            **_CONSTRAINTS,
            "json_object": Same("json_schema", _any_object),
            "disable_fallback": TAKEN,  # there is one engine
            "disable_any_whitespace": only("leave it out", False),
            "disable_additional_properties": only(
                'send "additionalProperties": false in the schema', False
            ),
            "structural_tag": "send a grammar",
        }
    ),
    "ebnf": Same("grammar"),
    **_all("bad_words banned_strings", Same("banned")),
    "separate_reasoning": only('send reasoning_format: "none"', True),
    **_all(
        "no_stop_trim include_stop_str_in_output",
        only("stops are never part of the text; leave it out", False),
    ),
    **_all("use_beam_search early_stopping", only(_NO_BEAMS, False)),
    "length_penalty": only(_NO_BEAMS, 1),
    "best_of": only("send n; every answer is returned", 1),
    "echo": only("leave it out, or send POST /v1/completions", False),
    "allowed_token_ids": "send a grammar or choice",
    "return_tokens_as_token_ids": only("send return_token_ids: true", False),
    "priority": only("requests have no priorities here; leave it out", 0),
    "chat_template": "the model has its own; send chat_template_kwargs",
    "documents": Same("chat_template_kwargs.documents"),
    "mm_processor_kwargs": "the model's own image processor is used as it is; leave it out",
    "add_special_tokens": only("leave it out", False),
    # there is one engine, special tokens are never text, a completion is one text, and the
    # header X-Request-Id has the id
    **_all("guided_decoding_backend skip_special_tokens spaces_between_special_tokens", TAKEN),
    **_all("include_reasoning request_id", TAKEN),
    # mlx-lm's server, LM Studio, Ollama and others
    **_all("presence_context_size frequency_context_size", Same("repetition_context_size")),
    "draft_model": "the draft model is chosen with --draft; leave it out",
    "role_mapping": "the chat template writes the roles; leave it out",
    "reasoning": Inside(
        {
            "effort": Same("reasoning_effort"),
            "enabled": _THINK,
            "exclude": Same("include_reasoning", _opposite),
            "summary": TAKEN,  # thoughts are returned as they are
            "max_tokens": _BUDGET,
        }
    ),
    "options": "send its fields next to messages, as in OpenAI's API",
    "extra_body": "is for the Python client; send its fields next to messages",
    "format": Same("response_format", _format),
    "response_schema": Same("json_schema", _schema),
    **_all("num_predict max_new_tokens max_completion_tokens", Same("max_tokens")),
    **_all("max_length max_output_tokens", "send max_tokens"),
    "num_ctx": "the context is chosen with --max-context; leave it out",
    "stop_sequences": Same("stop"),
    **_all("system instructions", 'send a message {"role": "system", "content": ...}'),
    **_all("input previous_response_id text", "belongs to POST /v1/responses; send messages"),
    # nothing here depends on them
    **_all("ttl keep_alive chat_id session_id conversation_id provider transforms route", TAKEN),
    # OpenAI's own; a stream ends with the usage if stream_options has include_usage: true
    **_all("usage stream_options.continuous_usage_stats", TAKEN),
    "stream_options.include_obfuscation": only("leave it out", False),
    "audio": "this server returns text only; leave it out",
    "functions": (
        'is the old name of tools; send tools: [{"type": "function", "function": ...}, ...] with '
        "each of the functions as it is"
    ),
    "function_call": (
        'is the old name of tool_choice; send tool_choice: "auto", "none", or '
        '{"type": "function", "function": {"name": ...}}'
    ),
    "moderation": _NO_MODERATION,
    "web_search_options": "there is no web search here; leave it out",
    "suffix": "belongs to POST /v1/completions; leave it out",
    "messages": "belongs to POST /v1/chat/completions; send prompt",
    "prompt": "belongs to POST /v1/completions; send messages",
    **_all("tools tool_choice chat_template_kwargs reasoning_effort", CHATS),
}
"""Fields that chat completions and completions do not have, by name."""

LLAMA: Rules = {
    **OPENAI,
    "n_probs": Same("logprobs", lambda value: None if value == 0 else value),
}
"""The same for llama.cpp's completions."""

INFILL: Rules = {
    **LLAMA,  # editors' limits on a suggestion have no effect
    **_all("t_max_prompt_ms t_max_predict_ms n_indent", TAKEN),
}

MESSAGES: Rules = {
    **COMMON,
    "compaction": "this server makes no summaries of its own; leave it out",
    "thread": Same("", _thread),
    # who asks and pays, tools that are left out, and the service
    **_all(
        "billing_policy fallback_credit_token fallbacks inference_geo speed workspace_id", TAKEN
    ),
    **_all("user_profile_id container mcp_servers betas diagnostics", TAKEN),
}

_STATELESS = "this server is stateless and keeps no responses; send the whole conversation in input"

RESPONSES: Rules = {
    **COMMON,
    **_all("previous_response_id conversation", _STATELESS),
    "background": only("a response ends with its request; leave it out", False),
    "prompt": "there are no stored prompts here; send instructions and input",
    "moderation": _NO_MODERATION,
    "top_logprobs": only(_LOGPROBS, 0),
    "include": Same("", _included),
    "stream_options": Inside(
        {
            **_all("include_usage continuous_usage_stats", TAKEN),  # its end has the usage
            "include_obfuscation": only("leave it out", False),
        }
    ),
    # too long a conversation is refused, nothing is kept, and some tools are left out
    **_all("truncation client_metadata text.verbosity access_programs background_options", TAKEN),
    **_all("max_tool_calls image", TAKEN),
    # the names of chat completions
    **_all("max_tokens max_completion_tokens", Same("max_output_tokens")),
    "reasoning_effort": Same("reasoning.effort"),
    "messages": "belongs to POST /v1/chat/completions; send input",
    "response_format": "belongs to POST /v1/chat/completions; send text: {format: ...}",
}
