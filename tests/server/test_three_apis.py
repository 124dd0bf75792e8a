"""What holds for chat completions, messages and responses alike, from one table of their words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.server.served_model import ServedModel
from tests.fakes import byte_level_tokenizer

from .apis import ANSWERS, APIS, CHAT, MESSAGES, READ_CALL, RESPONSES, SCHEMA, Api, Said, answers
from .kit import demo, plain, refused, served, thinker, usage
from .running import ASK, Running

EACH = pytest.mark.parametrize("api", APIS, ids=str)
MARK = {"cache_control": {"type": "ephemeral"}}
USER = {"role": "user", "content": "Hello"}
BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": None, "max": None}


def said(api: Api, text: str, **how: Any) -> Said:
    """A whole answer that says what its stream says."""
    events, whole = answers(api, text, **how)
    assert api.streamed(events) == api.whole(whole)
    return api.whole(whole)


def prompt(api: Api, model: ServedModel | None = None, /, **fields: Any) -> str:
    model = model or demo()
    return model.vocabulary.decode(api.call(model, **fields).jobs[0].prompt.tokens)


def refusal(api: Api, model: ServedModel | None = None, /, **fields: Any) -> Any:
    return refused(api.parse, api.body(**fields), model or demo())


# ---- answers -------------------------------------------------------------------------------------


@EACH
@given(
    st.sampled_from(sorted(ANSWERS)),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from(["stop", "length"]),
)
def test_a_stream_says_what_the_whole_says(
    api: Api, name: str, delays: list[int], finish: Any
) -> None:
    late = said(api, ANSWERS[name], delays=delays, finish=finish)
    assert late == said(api, ANSWERS[name], finish=finish)


@EACH
def test_thoughts_text_and_calls_are_told_apart(api: Api) -> None:
    answer = said(api, ANSWERS["all of it"])
    assert (answer.thoughts, answer.text) == ("A file.", "I read.")
    assert answer.calls == [("Read", {"path": "/a"})] * 2 and answer.reason == "calls"


@EACH
@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("Hi", "stop", "stop"),
        ("Hi", "filter", "stop"),
        ("Hi", "length", "length"),
        (READ_CALL, "stop", "calls"),
        (READ_CALL[:50], "length", "length"),
    ],
)
def test_an_answer_says_why_it_ended(api: Api, text: str, finish: Any, reason: str) -> None:
    assert said(api, text, finish=finish).reason == reason


@EACH
def test_usage_counts_the_prompt_what_was_cached_of_it_and_the_answer(api: Api) -> None:
    answer = said(api, "Hello there!", used=usage(9, 4, 6))
    assert (answer.prompt, answer.cached, answer.completion) == (9, 6, 4)


@EACH
def test_the_same_conversation_has_the_same_prompt(api: Api) -> None:
    assert prompt(api) == prompt(CHAT)
    assert prompt(api, tools=[api.tool()]) == prompt(CHAT, tools=[CHAT.tool()])
    off = prompt(api, **api.effort("none"))
    assert off == prompt(CHAT, **CHAT.effort("none")) != prompt(api)


@EACH
def test_options_reach_the_engine_by_the_same_names(api: Api) -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0,
        "top_k": -1,
        "min_p": 0.1,
        "seed": 7,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -1},
    }
    options = api.call(**given, **{api.limit: 9}).jobs[0].options
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 1e-9, 0)
    assert (sampling.min_p, options.seed, sampling.repetition_penalty) == (0.1, 7, 1.1)
    assert sampling.logit_bias == {5: -1} and options.max_tokens == 9


# ---- refusals ------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"model": 5}, "model"),
        ({"model": "x" * 300}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": True}, "top_k"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"asked": [5]}, "prompt[0]"),
        ({"asked": [{"role": "king", "content": "x"}]}, "prompt[0].role"),
        ({"asked": [{"role": "user", "content": 5}]}, "prompt[0].content"),
        ({"asked": "word " * 3000}, "prompt"),
    ],
)
def test_the_field_at_fault_is_named(api: Api, fields: Mapping[str, Any], place: str) -> None:
    assert refusal(api, **fields).param == place.replace("prompt", api.prompt)


@EACH
def test_a_conversation_is_required(api: Api) -> None:
    error = refused(api.parse, {}, demo())
    assert (error.param, error.code) == (api.prompt, "missing_required_parameter")


@EACH
def test_no_budget_is_refused_by_its_name(api: Api) -> None:
    assert refusal(api, **{api.limit: 0}).param == api.limit


@EACH
def test_clients_recognise_a_prompt_that_is_too_long(api: Api) -> None:
    error = refusal(api, asked="word " * 3000)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert "prompt is too long" in error.message and "2048 tokens" in error.message


# ---- tools and forms -----------------------------------------------------------------------------


@EACH
def test_calls_are_free_or_must_come(api: Api) -> None:
    tools = {"tools": [api.tool()]}
    for choice in ("auto", "none"):
        assert not api.call(**tools, tool_choice=api.choice(choice)).spec
    for choice in ("required", "Read"):
        assert api.call(**tools, tool_choice=api.choice(choice)).spec
    assert api.call(tools=[api.tool(strict=True)]).spec
    assert api.call(**api.form(SCHEMA)).spec


@EACH
def test_a_choice_of_tools_must_be_possible(api: Api) -> None:
    tools = {"tools": [api.tool()]}
    assert refusal(api, tools=[api.tool(), api.tool()]).param == api.places["tool"]
    assert refusal(api, tool_choice=api.choice("required")).param == "tool_choice"
    assert refusal(api, **tools, tool_choice=api.choice("Write")).param == api.places["named"]


# ---- what is harmless is not refused -------------------------------------------------------------


@EACH
def test_any_name_of_a_model_is_served_and_repeated(api: Api) -> None:
    assert said(api, "Hi", model="gpt-9").model == "gpt-9"
    assert said(api, "Hi", model=None).model == said(api, "Hi", model="").model == "tiny"


@EACH
def test_many_tools_and_long_names_are_taken(api: Api) -> None:
    names = ["f" * 256, *(f"mcp__server.tool-{i}" for i in range(300))]
    tools = [api.tool(name, description="d") for name in names]
    model = replace(demo(), max_context=1 << 20)
    assert all(name in prompt(api, model, tools=tools) for name in (names[0], names[-1]))
    assert api.call(model, tools=tools, tool_choice=api.choice(names[0])).spec
    assert refusal(api, model, tools=[api.tool("f" * 257)]).param


@EACH
def test_marks_for_the_cache_of_a_service_change_nothing(api: Api) -> None:
    kind = "input_text" if api is RESPONSES else "text"
    talk = [{"role": "user", "content": [{"type": kind, "text": "Hello", **MARK}], **MARK}]
    tool = api.tool()
    tool.get("function", tool)["cache_control"] = MARK["cache_control"]
    marked = {"asked": talk, "tools": [{**tool, **MARK}], **MARK}
    call = api.call(**marked)
    assert call.jobs == api.call(tools=[api.tool()]).jobs
    assert set(call.ignored) == {"cache_control"}
    assert set(api.call(asked=talk).ignored) == set(api.call(tools=[tool]).ignored)


@EACH
@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_an_effort_without_grades_is_a_thinking_budget(api: Api, effort: str) -> None:
    call, plainly = api.call(**api.effort(effort)), api.call()
    assert not call.ignored and call.jobs[0].prompt == plainly.jobs[0].prompt
    assert call.jobs[0].options.thinking_budget == BUDGETS[effort]
    silent = api.call(plain(), **api.effort(effort))
    assert silent.jobs == api.call(plain()).jobs and silent.ignored == [api.places["effort"]]


@EACH
def test_an_effort_reaches_a_template_that_has_grades(api: Api) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{{ reasoning_effort }}"
    call = api.call(served(tokenizer), **api.effort("high"))
    assert served(tokenizer).vocabulary.decode(call.jobs[0].prompt.tokens).endswith("high")
    assert not call.ignored


@EACH
def test_no_thinking_is_heard_whatever_the_model(api: Api) -> None:
    assert prompt(api, **api.effort("none")).endswith("</think>\n\n")
    assert not api.call(plain(), **api.effort("none")).ignored
    stubborn = api.call(thinker(), **api.effort("none"))  # it thinks, and cannot be told not to
    assert not stubborn.ignored and stubborn.jobs[0].options.thinking_budget == 0


@EACH
def test_a_thinking_budget_is_taken_by_every_api(api: Api) -> None:
    assert api.call(thinking_budget=7).jobs[0].options.thinking_budget == 7
    usual = replace(demo(), thinking_budget=9)
    assert api.call(usual).jobs[0].options.thinking_budget == 9
    unmoved = api.call(plain(), thinking_budget=7)
    assert unmoved.jobs == api.call(plain()).jobs and unmoved.ignored == ["thinking_budget"]


@EACH
def test_tools_for_a_model_without_a_parser_are_only_shown_to_it(api: Api) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    model = served(tokenizer)
    assert model.dialect.tools is None
    for more in ({}, {"tool_choice": api.choice("auto")}, api.form(SCHEMA)):
        assert prompt(api, model, tools=[api.tool()], **more).endswith("Read")
    assert bool(api.call(model, tools=[api.tool()], **api.form(SCHEMA)).spec)
    reply = api.call(model, tools=[api.tool()]).reply(id="id_1", created=1)
    assert reply is not None
    unseen = api.call(plain(), tools=[api.tool()])
    assert unseen.jobs == api.call(plain()).jobs and unseen.ignored == ["tools"]
    for choice in ("required", "Read"):
        error = refusal(api, model, tools=[api.tool()], tool_choice=api.choice(choice))
        assert error.param == "tool_choice"


@EACH
def test_a_budget_beyond_the_context_is_as_much_as_fits(api: Api) -> None:
    assert api.call(**{api.limit: 10**9}).jobs


@EACH
def test_instructions_in_the_middle_stay_in_their_place(api: Api) -> None:
    talk = [USER, {"role": "assistant", "content": "Hi"}, {"role": "system", "content": "Be kind"}]
    text = prompt(api, asked=[*talk, USER])
    assert text.index("Hi") < text.index("Be kind") < text.rindex("Hello")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_of_an_earlier_answer_reach_the_template(name: str) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{{ messages[1].reasoning_content }}"
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    told: dict[Api, list[Any]] = {
        CHAT: [USER, {"role": "assistant", "content": None, name: "Hm."}, USER],
        MESSAGES: [USER, {"role": "assistant", "content": [thinking]}, USER],
        RESPONSES: [
            USER,
            {"type": "reasoning", "content": [{"type": "text", "text": "Hm."}]},
            USER,
        ],
    }
    for api, talk in told.items():
        assert prompt(api, served(tokenizer), asked=talk).endswith("Hm.")


@pytest.mark.parametrize("arguments", [r'{"pattern": "\d+"}', {"pattern": r"\d+"}])
def test_arguments_are_an_object_to_the_template_also_if_they_are_not_quite_json(
    arguments: Any,
) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template += "{{ messages[1].tool_calls[0].function.arguments['pattern'] }}"
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    told: dict[Api, list[Any]] = {CHAT: [USER, {"role": "assistant", "tool_calls": [call]}]}
    if isinstance(arguments, str):
        told[RESPONSES] = [USER, {"type": "function_call", "call_id": "1", **function}]
    for api, talk in told.items():
        assert prompt(api, served(tokenizer), asked=talk).endswith(r"\d+")


def test_fields_that_had_no_effect_are_named() -> None:
    service = {"service_tier": "auto", "metadata": {"user_id": "u"}}
    assert CHAT.call(user="u", **service).ignored == ["user", "service_tier", "metadata"]
    assert MESSAGES.call(context_management={}, **service).ignored == [
        *("context_management", "service_tier", "metadata")
    ]
    given: dict[str, Any] = {"store": False, "include": [], "text": {"verbosity": "low"}}
    assert set(RESPONSES.call(**given).ignored) == {"store", "include", "text.verbosity"}
    renamed = CHAT.call(plain(), reasoning={"effort": "high", "summary": "auto"})
    assert renamed.ignored == ["reasoning.summary", "reasoning.effort"]
    assert CHAT.call(stream=True, stream_options={"include_usage": True}).ignored == []
    search = {"type": "web_search", "name": "web_search"}
    for api in (MESSAGES, RESPONSES):
        call = api.call(tools=[search, api.tool()])
        assert call.ignored == ["tools[0]"] and call.jobs == api.call(tools=[api.tool()]).jobs


# ---- from a server -------------------------------------------------------------------------------


@EACH
def test_a_server_streams_what_it_answers_whole_and_names_what_was_in_vain(
    api: Api, server: Running
) -> None:
    body = api.body(ASK, temperature=0, cache_control={}, model="any/name", **{api.limit: 60})
    whole = server.post(api.path, body)
    stream = server.post(api.path, {**body, **api.usage, "stream": True})
    lines = [line for line in stream.text.split("\n") if line.startswith("data: {")]
    other = api.streamed([json.loads(line.removeprefix("data: ")) for line in lines])
    one = api.whole(whole.json())
    assert one._replace(cached=0) == other._replace(cached=0) and one.model == "any/name"
    assert "Paris" in one.text and one.reason == "stop"
    for answer in (whole, stream):
        assert answer.headers["x-mlxgen-ignored"] == "cache_control"
    assert "x-mlxgen-ignored" not in server.post(api.path, api.body(**{api.limit: 1})).headers


UNHELD = {**SCHEMA, "not": {"required": ["other"]}}  # no grammar holds what must not be


@EACH
@pytest.mark.parametrize("choice", ["required", "auto", "Read"])
def test_calls_whose_schemas_no_grammar_holds_are_made_all_the_same(
    api: Api, server: Running, choice: str
) -> None:
    tools = [api.tool("Look"), api.tool(parameters=UNHELD, strict=True)]
    limit = {api.limit: 90}
    body = api.body(tools=tools, tool_choice=api.choice(choice), temperature=0, **limit)
    whole = server.post(api.path, body)
    assert whole.status_code == 200, whole.text
    calls = api.whole(whole.json()).calls
    assert calls if choice != "auto" else True
    assert all(set(given) == {"path"} for _, given in calls if given is not None)
    stream = server.post(api.path, {**body, **api.usage, "stream": True})
    lines = [line for line in stream.text.split("\n") if line.startswith("data: {")]
    assert api.streamed([json.loads(line.removeprefix("data: ")) for line in lines]).calls == calls


@EACH
def test_an_error_has_the_shape_of_the_api_also_for_a_stream(api: Api, server: Running) -> None:
    for stream in (False, True):
        answer = server.post(api.path, api.body(temperature=-1, stream=stream))
        assert answer.status_code == 400 and answer.headers["x-request-id"]
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body.pop("type", None) == ("error" if api is MESSAGES else None)
        error = body.pop("error")
        assert not body and error["type"] == "invalid_request_error"
        assert error["param"] == "temperature" and error["message"].startswith("temperature: ")


# ---- loops ---------------------------------------------------------------------------------------


@EACH
def test_loops_are_taken_back_unless_a_request_says_otherwise(api: Api) -> None:
    assert api.call().jobs[0].options.loops == "take back"
    assert api.call(loops="stop").jobs[0].options.loops == "stop"
    assert refusal(api, loops="yes").param == "loops"
