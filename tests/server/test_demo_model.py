"""Requests to the demo model, from the body to the answer, through the engine itself."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai.types.chat import ChatCompletion

import mlxgen
from mlxgen import LanguageModel, OptionError
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.server.chat import parse_chat
from mlxgen.server.completions import parse_completion
from mlxgen.server.served_model import ServedModel
from tests.chat.kit import tool

from .kit import news, whole_of

QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
PERSON = "Extract the person record as JSON: Maria is 34 years old and lives in Lisbon."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 200}
SILENT: dict[str, Any] = {**GREEDY, "chat_template_kwargs": {"enable_thinking": False}}
TOOLS = [tool(), tool("get_time", zone={"type": "string"}, hour={"type": "integer"})]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return mlxgen.load()


@pytest.fixture
def scheduler(lm: LanguageModel) -> Iterator[Scheduler]:
    scheduler = Scheduler(lm.runtime)
    yield scheduler
    scheduler.close()


class Desk:
    """Answers bodies as the server would."""

    def __init__(self, lm: LanguageModel, scheduler: Scheduler) -> None:
        self.lm, self.scheduler = lm, scheduler
        self.model = ServedModel.of(lm)

    def events(self, body: dict[str, Any], parse: Any = parse_chat) -> Any:
        call = parse(body, self.model)
        reply = call.reply(id="id-1", created=1)
        events = [*reply.start()]
        rows = [self.lm.runtime.prepare(job.prompt, job.options) for job in call.jobs]
        handles = [self.scheduler.submit(row) for row in rows]
        while self.scheduler.busy:
            for event in self.scheduler.step():
                assert event.error is None, event.error
                for chunk in event.chunks:
                    events += reply.take(news(chunk, handles.index(event.handle)))
        usages = [handle.usage for handle in handles]
        events += reply.finish(usages)
        return events if call.stream else whole_of(reply, events)

    def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """The first choice of a whole answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answer = self.events({"messages": messages, **fields})
        ChatCompletion.model_validate(answer)
        choice: dict[str, Any] = answer["choices"][0]
        return choice


@pytest.fixture
def desk(lm: LanguageModel, scheduler: Scheduler) -> Desk:
    return Desk(lm, scheduler)


def called(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls of a choice, which are valid against their tools."""
    calls = []
    for call in choice["message"].get("tool_calls", ()):
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        (schema,) = (t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == name)
        jsonschema.validate(arguments, schema)
        calls.append((name, arguments))
    return calls


def test_the_model_calls_a_tool_when_it_wants_to(desk: Desk) -> None:
    choice = desk.chat(QUESTION, tools=[tool()], **SILENT)
    assert called(choice) == [("get_weather", {"city": "Oslo"})]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None


@pytest.mark.parametrize(
    "text", ["What is the weather in Oslo?", "What is the capital of France?", "Tell me a story."]
)
@pytest.mark.parametrize("settings", [SILENT, GREEDY], ids=["silent", "thinking"])
def test_a_required_call_comes_whatever_was_asked(
    desk: Desk, text: str, settings: dict[str, Any]
) -> None:
    fields = {**settings, "close_json": True, "parallel_tool_calls": False}
    choice = desk.chat(text, tools=TOOLS, tool_choice="required", **fields)
    assert choice["finish_reason"] == "tool_calls" and len(called(choice)) == 1
    assert not choice["message"]["content"]


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_a_named_function_is_called_once(desk: Desk, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    answer = desk.chat(QUESTION, tools=TOOLS, tool_choice=choice, **SILENT)
    assert [function for function, _ in called(answer)] == [name]


def test_a_required_call_is_valid_at_any_temperature(desk: Desk) -> None:
    for seed in range(2):
        settings = {"temperature": 3.0, "seed": seed, "close_json": True, "max_tokens": 60}
        fields = {**SILENT, **settings}
        choice = desk.chat(QUESTION, tools=TOOLS, tool_choice="required", **fields)
        assert choice["finish_reason"] == "tool_calls" and called(choice)


def test_a_call_that_the_length_cuts_off_is_a_call_with_what_there_is(desk: Desk) -> None:
    def cut(tokens: int) -> dict[str, Any]:
        fields = {**SILENT, "max_tokens": tokens, "tool_choice": "required"}
        choice: dict[str, Any] = desk.chat(QUESTION, tools=TOOLS, **fields)
        return choice

    whole = cut(60)
    (call,) = whole["message"]["tool_calls"]
    for tokens in range(2, 60):
        choice = cut(tokens)
        if choice["finish_reason"] != "length":
            return
        assert not choice["message"]["content"]
        for part in choice["message"].get("tool_calls", ()):
            assert part["function"]["name"] == call["function"]["name"]
            assert call["function"]["arguments"].startswith(part["function"]["arguments"])
    raise AssertionError("no call was cut off")


def test_a_strict_tool_is_called_as_its_schema_wants(desk: Desk) -> None:
    strict = [{"type": "function", "function": {**t["function"], "strict": True}} for t in TOOLS]
    choice = desk.chat(QUESTION, tools=strict, parallel_tool_calls=False, **GREEDY)
    assert len(called(choice)) == 1


def test_tools_and_a_form_leave_the_model_the_choice(desk: Desk) -> None:
    form = {"response_format": {"type": "json_object"}}
    assert called(desk.chat(QUESTION, tools=[tool()], **form, **SILENT))
    choice = desk.chat("What is the capital of France?", tools=[tool()], **form, **SILENT)
    assert called(choice) or isinstance(json.loads(choice["message"]["content"]), dict)


def test_a_schema_holds_behind_the_thinking(desk: Desk) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    named = {"name": "person", "schema": schema, "strict": True}
    choice = desk.chat(
        PERSON, response_format={"type": "json_schema", "json_schema": named}, **GREEDY
    )
    assert choice["message"]["reasoning_content"]
    assert json.loads(choice["message"]["content"]) == {"name": "Maria", "age": 34}


def test_a_grammar_of_llama_cpp_holds(desk: Desk) -> None:
    grammar = 'root ::= "The answer is " [A-Z] [a-z]{2,8} "."'
    choice = desk.chat("What is the capital of France?", grammar=grammar, **SILENT)
    assert choice["message"]["content"] == "The answer is Paris."


def test_an_answer_is_taken_up_again_from_its_tokens(desk: Desk) -> None:
    whole = desk.chat(PERSON, return_token_ids=True, json_schema=True, **GREEDY)
    ids, content = whole["token_ids"], whole["message"]["content"]
    for kept in (1, len(ids) // 2, len(ids) - 2):
        rest = desk.chat(
            PERSON, return_token_ids=True, json_schema=True, prefix_tokens=ids[:kept], **GREEDY
        )
        assert rest["token_ids"] == ids[kept:]
        assert content.endswith(rest["message"]["content"])


def test_tokens_that_the_grammar_forces_are_marked(desk: Desk) -> None:
    body = {**SILENT, "regex": "Paris is the capital of France", "return_token_ids": True}
    choice = desk.chat("What is the capital of France?", logprobs=True, **body)
    assert len(choice["tokens"]) == len(choice["token_ids"])
    assert all(token["part"] in ("content", None) for token in choice["tokens"])
    data = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert data.decode() == choice["message"]["content"] == "Paris is the capital of France"


def test_a_healed_prompt_has_log_probabilities_of_what_is_new(desk: Desk) -> None:
    body = {"prompt": "Once upon a ti", "heal": True, "logprobs": 1, **GREEDY, "max_tokens": 4}
    choice = desk.events(body, parse_completion)["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_several_answers_go_on_from_the_same_tokens_and_each_has_its_own(desk: Desk) -> None:
    """What the page's map asks for: a batch of ways on from one place."""
    told = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    sampled = SILENT | {"temperature": 1, "seed": 5, "regex": r'\{"name": "[A-Z][a-z]{2,7}"\}'}
    whole = desk.chat(PERSON, **told, **sampled)
    kept = whole["token_ids"][:4]
    body = {"messages": [{"role": "user", "content": PERSON}], "prefix_tokens": kept, "n": 4}
    answers: dict[int, list[dict[str, Any]]] = {}
    for event in desk.events({**body, **told, **sampled, "stream": True}):
        for choice in event["choices"]:
            answers.setdefault(choice["index"], []).append(choice)
    assert sorted(answers) == [0, 1, 2, 3]
    for parts in answers.values():
        tokens = [token for part in parts for token in part.get("tokens", ())]
        ids = [id for part in parts for id in part.get("token_ids", ())]
        assert [token["id"] for token in tokens] == ids
        assert [token["index"] for token in tokens] == list(range(4, 4 + len(ids)))
        assert all(len(token["top_logprobs"]) == 2 for token in tokens)
        assert parts[-1]["finish_reason"] == "stop"
        text = "".join(part["delta"].get("content") or "" for part in parts)
        assert re.fullmatch(r'[A-Z][a-z]{2,7}"\}', text), text


def test_a_prefix_is_refused_with_the_alternatives_that_are_not_allowed_and_no_others(
    desk: Desk,
) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    fields = {**SILENT, "json_schema": schema, "logprobs": True, "top_logprobs": 6}
    tokens = desk.chat(PERSON, return_token_ids=True, **fields)["tokens"]
    verdicts = set()
    for place, token in enumerate(tokens):
        before = [each["id"] for each in tokens[:place]]
        for other in token["top_logprobs"]:
            if other["id"] in desk.model.vocabulary.eos:
                continue  # it ends the text, and is not part of a prefix
            allowed = other.get("allowed", True)
            verdicts.add(allowed)
            with contextlib.nullcontext() if allowed else pytest.raises(OptionError, match="allow"):
                call = parse_chat(
                    {
                        "messages": [{"role": "user", "content": PERSON}],
                        **fields,
                        "prefix_tokens": [*before, other["id"]],
                    },
                    desk.model,
                )
                desk.lm.runtime.prepare(call.jobs[0].prompt, call.jobs[0].options)
    assert verdicts == {True, False}
