"""What clients of other servers send means here what it means there."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from mlxgen.server.chat import apply_template, parse_chat
from mlxgen.server.completions import parse_completion
from mlxgen.server.errors import RequestError, as_messages_error
from mlxgen.server.messages import parse_messages
from mlxgen.server.responses import parse_responses
from mlxgen.server.token_work import tokenize
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

from .kit import demo, served
from .running import Running

ASK = [{"role": "user", "content": "Hello"}]
APIS: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (parse_chat, {"messages": ASK}),
    "messages": (parse_messages, {"messages": ASK, "max_tokens": 9}),
    "responses": (parse_responses, {"input": ASK}),
}
SILENT: list[dict[str, Any]] = [
    {"thinking": {"type": "disabled"}},
    {"think": False},
    {"enable_thinking": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
]


def without_switch() -> Any:
    """A model that thinks, whose template has no switch for it."""
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer = type(tokenizer)(tokenizer._tokenizer, eos_token_ids=tokenizer.eos_token_ids)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    assert Vocabulary.of(tokenizer)
    return served(tokenizer)


def shows_thoughts() -> Any:
    """A model that thinks, whose template shows earlier thoughts."""
    model = without_switch()
    model.vocabulary.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
        "</think>{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<think>{% endif %}"
    )
    return served(model.vocabulary.tokenizer)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("wish", SILENT)
def test_not_to_think_is_one_wish_under_every_name(api: str, wish: dict[str, Any]) -> None:
    parse, body = APIS[api]
    silent = parse({**body, **wish}, demo()).jobs[0].prompt
    assert demo().vocabulary.decode(silent.tokens).rstrip().endswith("</think>")
    call = parse({**body, **wish}, without_switch())
    assert call.jobs[0].options.thinking_budget == 0


@pytest.mark.parametrize("wish", [{"reasoning": {"enabled": False}}, {"reasoning_effort": "none"}])
def test_chat_completions_know_further_names(wish: dict[str, Any]) -> None:
    call = parse_chat({"messages": ASK, **wish}, without_switch())
    assert call.jobs[0].options.thinking_budget == 0


def test_a_refusal_has_the_code_that_a_client_looks_for() -> None:
    body = {"messages": ASK, "max_tokens": 9, "thread": {"id": "t"}}
    with pytest.raises(RequestError) as refused:
        parse_messages(body, demo())
    error = as_messages_error(400, refused.value.body())["error"]
    assert error["details"]["error_code"] == "thread_unsupported_request"


def test_tokens_of_a_chat_are_those_that_it_would_have() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}, "strict": True}}
    body: dict[str, Any] = {"messages": ASK, "tools": [tool]}
    prompt = parse_chat(body, demo()).jobs[0].prompt.tokens
    assert tuple(tokenize(body, demo())["tokens"]) == prompt
    shorter = tokenize({**body, "add_generation_prompt": False}, demo())["tokens"]
    assert tuple(shorter) == prompt[: len(shorter)] and len(shorter) < len(prompt)
    silent = {**body, "reasoning_effort": "none"}
    assert (
        tuple(tokenize(silent, demo())["tokens"])
        == parse_chat(silent, demo()).jobs[0].prompt.tokens
    )


def test_thoughts_stay_in_the_text_if_they_are_wanted_there(server: Running) -> None:
    body = {"messages": ASK, "max_tokens": 60, "temperature": 0}
    parted = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    raw = server.post("/v1/chat/completions", {**body, "reasoning_format": "none"}).json()
    message = raw["choices"][0]["message"]
    assert parted["reasoning"] == parted["reasoning_content"]
    assert not message.get("reasoning_content") and "reasoning" not in message
    assert "<think>" in message["content"] and parted["reasoning_content"] in message["content"]


DIGIT: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "format",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": DIGIT}},
        {"type": "json_schema", "schema": DIGIT},
        {"type": "json_object", "schema": DIGIT},
        {"type": "json_schema", "name": "x", "schema": DIGIT, "strict": True},
        {"type": "json", "value": DIGIT},
    ],
)
def test_every_spelling_of_a_form_holds(server: Running, format: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Go"}], "reasoning_effort": "none"}
    for more in ({"response_format": format}, {"format": DIGIT}):
        answer = server.post("/v1/chat/completions", {**body, "max_tokens": 60, **more})
        assert answer.status_code == 200, answer.text
        value = json.loads(answer.json()["choices"][0]["message"]["content"])
        jsonschema.validate(value, DIGIT)
    whole = {"input": "Go", "text": {"format": format}, "max_output_tokens": 60}
    answer = server.post("/v1/responses", {**whole, "reasoning": {"effort": "none"}})
    assert answer.status_code == 200, answer.text


def test_an_answer_that_has_begun_is_gone_on_with() -> None:
    begun = {"role": "assistant", "content": "The answer is"}
    whole = parse_chat({"messages": [*ASK, begun], "continue_final_message": True}, demo())
    prompt = whole.jobs[0].prompt
    assert demo().vocabulary.decode(prompt.tokens).endswith("The answer is")
    marked = parse_chat({"messages": [*ASK, {**begun, "prefix": True}]}, demo())
    assert marked.jobs[0].prompt == prompt
    item = {**begun, "type": "message", "status": "in_progress"}
    assert parse_responses({"input": [*ASK, item]}, demo()).jobs[0].prompt == prompt
    with_thoughts = {"role": "assistant", "content": "", "reasoning_content": "I wonder"}
    told = {"messages": [*ASK, with_thoughts], "continue_final_message": True}
    wondering = parse_chat(told, shows_thoughts()).jobs[0].prompt
    assert wondering.thinking is not None and wondering.thinking.state == "reasoning"
    done = {**item, "status": "completed"}
    assert parse_responses({"input": [*ASK, done]}, demo()).jobs[0].prompt != prompt


@pytest.mark.parametrize(
    ("mixed", "meant"),
    [
        ([72, "i <|im_end|>", 33], [72, "i ", "<|im_end|>", 33]),
        (["Hi ", 72, "i"], ["Hi ", 72, "i"]),
        ([["a", "b"]], ["a", "b"]),
    ],
)
def test_texts_and_ids_are_one_prompt(mixed: list[Any], meant: list[Any]) -> None:
    vocabulary, tokens = demo().vocabulary, list[int]()
    for i, piece in enumerate(meant):
        if isinstance(piece, int):
            tokens.append(piece)
        elif i and piece != "<|im_end|>":
            tokens += vocabulary.continue_with(piece.encode())
        else:
            tokens += vocabulary.encode(piece, special=i == 0)
    (job,) = parse_completion({"prompt": mixed}, demo()).jobs
    assert list(job.prompt.tokens) == tokens
    jobs = (
        parse_completion({"prompt": [mixed, [1, 2], "a"]}, demo()).jobs
        if meant != ["a", "b"]
        else ()
    )
    assert not jobs or [list(each.prompt.tokens) for each in jobs][:2] == [tokens, [1, 2]]


def test_the_text_of_a_prompt_is_that_of_the_chat() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    for more in ({}, {"tools": [tool]}, {"enable_thinking": False}, {"temperature": 0, "foo": 1}):
        body: dict[str, Any] = {"messages": ASK, **more}
        prompt = parse_chat(body, demo()).jobs[0].prompt.tokens
        whole = demo().vocabulary.decode(prompt)
        assert apply_template(body, demo()) == {"prompt": whole}
        shorter = apply_template({**body, "add_generation_prompt": False}, demo())["prompt"]
        assert whole.startswith(shorter) and shorter != whole
    begun = {"messages": [*ASK, {"role": "assistant", "content": "It is"}]}
    told = apply_template({**begun, "continue_final_message": True}, demo())["prompt"]
    assert told.endswith("It is")
    with pytest.raises(RequestError) as refused:
        apply_template({"messages": ASK, "add_generation_prompt": "no"}, demo())
    assert refused.value.param == "add_generation_prompt"


def test_the_text_of_a_prompt_comes_over_http(server: Running) -> None:
    answer = server.post("/apply-template", {"messages": ASK})
    assert answer.json() == apply_template({"messages": ASK}, demo())
