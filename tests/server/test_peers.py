"""Names that clients of other servers send: each is mapped, taken or refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen.server.ask import Ask
from mlxgen.server.chat import ChatRequest, parse_chat
from mlxgen.server.completions import CompletionRequest, parse_completion
from mlxgen.server.peers import OPENAI as PEERS
from mlxgen.server.peers import Neutral, Rule, SameAs

from .kit import HELLO, demo, refused

CHAT: dict[str, Any] = {"messages": HELLO}
TEXT: dict[str, Any] = {"prompt": "Hello"}
FIELDS = {**ChatRequest.model_fields, **CompletionRequest.model_fields}


def leaves(rules: Any, at: str = "") -> list[tuple[str, Rule]]:
    """All rules with the path of their names."""
    out: list[tuple[str, Rule]] = []
    for name, rule in rules.items():
        if isinstance(rule, dict):
            out += leaves(rule, f"{at}{name}.")
        else:
            out.append((f"{at}{name}", rule))
    return out


LEAVES = leaves(PEERS)


def body_of(path: str, value: Any) -> dict[str, Any]:
    name, _, key = (path, "", "") if path in PEERS else path.partition(".")
    return {name: {key: value} if key else value}


def base_of(path: str) -> tuple[Any, dict[str, Any]]:
    """An endpoint that does not have this name for a field of its own."""
    is_chats = path.partition(".")[0] in ChatRequest.model_fields
    return (parse_completion, TEXT) if is_chats else (parse_chat, CHAT)


@pytest.mark.parametrize(("path", "rule"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_name_of_the_table_does_what_it_says(path: str, rule: Rule) -> None:
    parse, base = base_of(path)
    plain: Ask = parse(base, demo())
    assert parse({**base, **body_of(path, None)}, demo()).jobs == plain.jobs  # null means default
    if isinstance(rule, Neutral) and rule.values is None:
        anything: tuple[Any, ...] = (True, 5, "x", {"a": []})
        for value in anything:
            assert parse({**base, **body_of(path, value)}, demo()).jobs == plain.jobs
        return
    if isinstance(rule, Neutral):
        for value in rule.values or ():
            assert parse({**base, **body_of(path, value)}, demo()).jobs == plain.jobs
    if isinstance(rule, SameAs):
        assert rule.field.partition(".")[0] in FIELDS
        return
    error = refused(parse, {**base, **body_of(path, "nothing of it")}, demo())
    assert error.param == path and error.code == "unsupported_parameter"
    assert isinstance(rule, (Neutral, str))
    assert (rule if isinstance(rule, str) else rule.otherwise) in error.message


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"n_predict": 7}, {"max_tokens": 7}),
        ({"n_predict": -1}, {}),
        ({"max_tokens": -1}, {}),
        ({"guided_json": {"type": "string"}}, {"json_schema": {"type": "string"}}),
        ({"guided_json": '{"type": "string"}'}, {"json_schema": {"type": "string"}}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        ({"bad_words": ["x"]}, {"banned": ["x"]}),
        ({"banned_strings": ["x"]}, {"banned": ["x"]}),
        ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 9},
        ),
        ({"thinking_budget_tokens": 9}, {"thinking_budget": 9}),
        ({"thinking_token_budget": 9}, {"thinking_budget": 9}),
        ({"reasoning_budget": 0}, {"thinking_budget": 0}),
        ({"reasoning_budget": -1}, {}),
        ({"reasoning": {"max_tokens": 9}}, {"thinking_budget": 9}),
        ({"repeat_last_n": 64}, {"repetition_context_size": 64}),
        ({"repeat_last_n": -1}, {}),
        ({"presence_context_size": 20}, {"repetition_context_size": 20}),
        ({"speculative.n_max": 5, "speculative.n_min": 1}, {"num_draft_tokens": 5}),
        ({"speculative.n_max": 0}, {"num_draft_tokens": 0}),
        ({"regex": "a", "guided_regex": "a"}, {"regex": "a"}),
    ],
)
def test_a_name_of_a_peer_is_the_field_that_it_means(
    theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert parse_chat({**CHAT, **theirs}, demo()).jobs == parse_chat({**CHAT, **ours}, demo()).jobs


def test_dry_sampling_has_the_names_of_llama_cpp() -> None:
    dry = {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3.0}
    body = {**TEXT, **dry, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", '"']}
    (job,) = parse_completion(body, demo()).jobs
    sampling = job.options.sampling
    assert (sampling.dry_multiplier, sampling.dry_base) == (0.8, 2.0)
    assert (sampling.dry_allowed_length, sampling.dry_penalty_last_n) == (3, 64)
    assert sampling.dry_sequence_breakers == ("\n", '"')
    for name, value in (("dry_base", 0.5), ("dry_sequence_breakers", "x"), ("dry_multiplier", -1)):
        assert refused(parse_completion, {**TEXT, name: value}, demo()).param == name


def test_no_limit_is_as_much_as_fits_also_for_completions() -> None:
    (job,) = parse_completion({**TEXT, "max_tokens": -1}, demo()).jobs
    assert job.options.max_tokens is None
    assert refused(parse_completion, {**TEXT, "max_tokens": -2}, demo()).param == "max_tokens"
    error = refused(parse_chat, {**CHAT, "n_predict": 0}, demo())
    assert error.param == "n_predict" and error.code == "invalid_value"


def test_drafts_are_bounded_or_left_out() -> None:
    (job,) = parse_chat({**CHAT, "num_draft_tokens": 3}, demo()).jobs
    assert job.options.num_draft_tokens == 3
    (job,) = parse_chat({**CHAT, "num_draft_tokens": 0}, demo()).jobs
    assert job.options.draft == "off"


def test_a_prediction_is_text_that_drafts_know() -> None:
    before = {"type": "content", "content": "def f():\n    return 1\n"}
    parts = [{"type": "text", "text": "def f():\n"}, {"type": "text", "text": "    return 1\n"}]
    for given in (before, {**before, "content": parts}):
        (job,) = parse_chat({**CHAT, "prediction": given}, demo()).jobs
        assert job.options.prediction == before["content"]
    (job,) = parse_chat({**CHAT, "prediction": None}, demo()).jobs
    assert job.options.prediction == ()
    for wrong in ("text", {"type": "diff", "content": "x"}, {"type": "content"}):
        error = refused(parse_chat, {**CHAT, "prediction": wrong}, demo())
        assert (error.param or "").startswith("prediction")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"repeat_penalty": "x"}, "repeat_penalty"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"xml": 5}}, "structured_outputs.xml"),
        ({"structured_outputs": 5}, "structured_outputs"),
        ({"repeat_penalty": 1.2, "repetition_penalty": 1.3}, "repeat_penalty"),
        ({"guided_json": "{"}, "guided_json"),
        ({"repeat_last_n": 0}, "repeat_last_n"),
        ({"presence_context_size": 9, "repetition_context_size": 20}, "presence_context_size"),
        ({"thinking": 5}, "thinking"),
        ({"thinking": {"kind": 5}}, "thinking.kind"),
        ({"reasoning": {"max_tokens": -2}}, "reasoning.max_tokens"),
    ],
)
def test_errors_have_the_name_that_the_client_sent(body: dict[str, Any], param: str) -> None:
    error = refused(parse_chat, {**CHAT, **body}, demo())
    assert error.param == param and error.message.startswith(param)


def test_what_only_chats_have_is_not_for_raw_text() -> None:
    for body in ({"enable_thinking": False}, {"think": True}, {"chat_template_kwargs": {"a": 1}}):
        error = refused(parse_completion, {**TEXT, **body}, demo())
        assert error.param == next(iter(body)) and "/v1/chat/completions" in error.message
    assert parse_completion({**TEXT, "verbosity": "low"}, demo())


def test_functions_of_old_say_what_to_send_instead() -> None:
    error = refused(parse_chat, {**CHAT, "functions": [{"name": "f"}]}, demo())
    assert error.param == "functions" and '{"type": "function", "function"' in error.message


def test_what_clients_leave_in_messages_is_ignored() -> None:
    answer = {
        "role": "assistant",
        "content": None,
        "provider_specific_fields": {"refusal": None},
        "function_call": None,
        "thinking_blocks": [],
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "f", "arguments": "{}", "parsed": {}},
                "extra_content": {},
            }
        ],
    }
    cached = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [cached], "id": "m1"}, answer]
    known = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
    ]
    prompts = [parse_chat({"messages": m}, demo()).jobs for m in (messages, known)]
    assert prompts[0] == prompts[1]
    assert refused(parse_chat, {"messages": [{"role": "user", "contnet": "a"}]}, demo())


def test_a_schema_needs_no_name() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "string"}}}
    assert parse_chat({**CHAT, "response_format": form}, demo()).spec


def test_the_generation_prompt_is_left_out_only_where_an_answer_goes_on() -> None:
    begun = {"messages": [*HELLO, {"role": "assistant", "content": "Hi"}]}
    going = {**begun, "continue_final_message": True}
    same = parse_chat({**going, "add_generation_prompt": False}, demo())
    assert same.jobs == parse_chat(going, demo()).jobs
    for body in (
        {**begun, "add_generation_prompt": False},
        {**going, "add_generation_prompt": True},
    ):
        assert refused(parse_chat, body, demo()).param == "add_generation_prompt"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"regex": "a+"}, "regex"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_json": '{"type": "object"}'}, "guided_json"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"format": {"type": "object"}}, "format"),
        ({"response_schema": {"type": "object"}}, "response_schema"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
    ],
)
def test_a_grammar_is_blamed_on_the_field_that_the_client_sent(
    fields: dict[str, Any], named: str
) -> None:
    assert parse_chat({**CHAT, **fields}, demo()).names["filters"] == named
