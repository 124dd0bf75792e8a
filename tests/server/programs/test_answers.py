"""What clients get of programs, controllers and hooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

import mlxgen

from ..apis import APIS, Api, Said
from ..apis import CHAT as CHAT_API
from ..running import Running, events
from . import own_code

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
ASKED = {"messages": [{"role": "user", "content": "Ask me."}], "reasoning_effort": "none"}
TEXTS = [
    "The capital of France is Paris, and 3 + 4 = 7. Bye",
    "The capital of France is Paris, and 3 + 4 = 7. So long",
]


def chat(server: Running, **fields: Any) -> httpx.Response:
    return server.post(CHAT, {**ASKED, "temperature": 0, **fields})


def completed(server: Running, **fields: Any) -> httpx.Response:
    return server.post(COMPLETION, {"prompt": "Once", "temperature": 0, **fields})


def good(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def error(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


class Put:
    """The choices of a stream, put together."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.branches: dict[int, list[int]] = {}
        self.ends: dict[int, Mapping[str, Any]] = {}
        self.retracted = 0

    def add(self, event: Mapping[str, Any]) -> None:
        for choice in event["choices"]:
            index = choice["index"]
            if index not in self.texts:
                assert index == len(self.texts), "choices come in the order of creation"
                self.branches[index] = choice["branch"]
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            before = self.texts.get(index, "")
            back = choice.get("retract", 0)
            self.retracted += back
            assert back <= len(before)
            self.texts[index] = before[: len(before) - back] + text
            if choice["finish_reason"]:
                assert index not in self.ends
                self.ends[index] = choice


def streamed(server: Running, path: str, body: Mapping[str, Any]) -> Put:
    put = Put()
    with server.stream(path, {"temperature": 0, **body}) as lines:
        for event in events(lines):
            put.add(event)
    return put


# ---- programs ----------------------------------------------------------------------------------


def test_each_branch_is_a_choice_with_its_text_its_name_the_variables_and_the_value(
    operator: Running,
) -> None:
    answer = good(chat(operator, program="quiz"))
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert [choice["message"]["content"] for choice in choices] == TEXTS
    assert [choice["branch"] for choice in choices] == [[], [1]]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]
    assert [choice["value"] for choice in choices] == ["Paris", "Paris"]
    said = choices[0]["variables"]["said"]
    assert len(said) == sum(len(f"{text}. ") for text in TEXTS)
    assert all(f"{text}. " in said for text in TEXTS)
    assert choices[1]["variables"] == choices[0]["variables"]
    usage = answer["usage"]
    single = good(chat(operator, program="echoes", arguments={"text": "x"}))["usage"]
    assert usage["prompt_tokens"] == single["prompt_tokens"], "the prompt is shared"
    assert usage["timings"]["prompt_n"] + usage["timings"]["cache_n"] == 2 * usage["prompt_tokens"]
    assert usage["timings"]["prompt_n"] <= usage["prompt_tokens"]
    assert usage["completion_tokens"] > 2 * 10


def test_the_same_comes_as_in_the_library(operator: Running, lm: mlxgen.LanguageModel) -> None:
    choices = good(completed(operator, program="quiz"))["choices"]
    run = lm.control("Once", mlxgen.Program(own_code.quiz), max_tokens=None)
    for _ in run:
        pass
    found = {tuple(choice["branch"]): choice["text"] for choice in choices}
    assert found == {branch: result.text for branch, result in run.results.items()}


def test_a_stream_without_retractions_has_each_branch_once_it_is_certain(operator: Running) -> None:
    put = streamed(operator, CHAT, {**ASKED, "program": "quiz"})
    assert list(put.texts.values()) == TEXTS
    assert put.branches == {0: [], 1: [1]}
    assert put.ends[0]["value"] == "Paris"
    assert "said" in put.ends[0]["variables"]
    assert not put.retracted


def test_a_stream_with_retractions_comes_to_the_same(operator: Running) -> None:
    body: dict[str, Any] = {**ASKED, "program": "quiz", "allow_retract": True}
    put = streamed(operator, CHAT, body)
    assert list(put.texts.values()) == TEXTS
    for path, asked in ((CHAT, ASKED), (COMPLETION, {"prompt": "Once"})):
        body = {**asked, "program": "takes_back"}
        held = streamed(operator, path, body)
        shown = streamed(operator, path, {**body, "allow_retract": True})
        assert held.texts == shown.texts == {0: "Right"}
        assert held.retracted == 0 < len("Wrong") <= shown.retracted


def test_text_may_come_late_instead_of_at_the_end(operator: Running) -> None:
    (whole,) = good(completed(operator, controller="Detours"))["choices"]
    body = {"prompt": "Once", "controller": "Detours", "temperature": 0, "stream": True}
    put = streamed(operator, COMPLETION, {**body, "hold_tokens": 30})
    assert (put.texts, put.retracted) == ({0: whole["text"]}, 0)
    body |= {"program": "wanders", "controller": None}
    pieces: list[str] = []
    with operator.stream(COMPLETION, {**body, "hold_tokens": 5}) as lines:
        for event in events(lines):
            pieces += [choice["text"] for choice in event["choices"] if choice["text"]]
    assert len(pieces) > 5, "it is sent while it grows"
    (whole,) = good(completed(operator, program="wanders"))["choices"]
    assert "".join(pieces) == whole["text"]
    failed = operator.post(COMPLETION, {**body, "hold_tokens": 2}).text
    assert "only 2 tokens are held" in failed
    refused = error(operator.post(COMPLETION, {**body, "hold_tokens": 5, "logprobs": 1}))
    assert refused["param"] == "hold_tokens"


def test_a_program_may_write_nothing(operator: Running) -> None:
    (choice,) = good(completed(operator, program="says_nothing"))["choices"]
    assert (choice["text"], choice["value"], choice["finish_reason"]) == ("", 5, "stop")
    put = streamed(operator, CHAT, {**ASKED, "program": "says_nothing"})
    assert (put.texts, put.ends[0]["value"]) == ({0: ""}, 5)


def test_openais_client_reads_answers_of_programs(operator: Running) -> None:
    with operator.client() as client:
        asked: dict[str, Any] = {"model": "demo", "messages": ASKED["messages"], "temperature": 0}
        extra = {"program": "quiz", "reasoning_effort": "none", "allow_retract": True}
        answer = client.chat.completions.create(**asked, extra_body=extra)
        assert [choice.message.content for choice in answer.choices] == TEXTS
        assert answer.choices[1].model_extra is not None
        assert answer.choices[1].model_extra["branch"] == [1]
        put = Put()
        for event in client.chat.completions.create(**asked, stream=True, extra_body=extra):
            put.add(event.model_dump(exclude_unset=True))
        assert list(put.texts.values()) == TEXTS


def test_arguments_are_those_of_the_signature(operator: Running) -> None:
    given = {"text": "ab", "times": 2, "how": "twice"}
    (choice,) = good(completed(operator, program="echoes", arguments=given))["choices"]
    assert choice["text"] == "abababab"
    assert choice["value"] == ["ab", "twice"]
    for wrong, param, reason in (
        ({}, "arguments.text", "is required"),
        ({"text": 5}, "arguments.text", "expected a string, got 5"),
        ({"text": "a", "times": "2"}, "arguments.times", "expected an integer"),
        ({"text": "a", "tmes": 2}, "arguments.tmes", "did you mean times"),
        ({"text": "a", "how": "loud"}, "arguments.how", "'plain' or 'twice'"),
        ({"text": "a", "g": 1}, "arguments.g", "no such field"),
    ):
        refused = error(completed(operator, program="echoes", arguments=wrong))
        assert refused["param"] == param, refused
        assert reason in refused["message"], refused


def test_what_a_program_cannot_be_combined_with_is_named(operator: Running) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    for fields, param in (
        ({"n": 2}, "n"),
        ({"tools": [tool]}, "tools"),
        ({"banned": ["x"]}, "banned"),
        ({"hooks": ["restarts"]}, "hooks"),
        ({"controller": "Spells"}, "controller"),
        ({"prefix_tokens": [5]}, "prefix_tokens"),
        ({"timings_per_token": True}, "timings_per_token"),
        ({"stream": True, "allow_retract": True, "logprobs": True}, "allow_retract"),
        ({"program": "quizz"}, "program"),
    ):
        refused = chat(operator, **{"program": "quiz", **fields})
        assert refused.status_code in (400, 404), refused.text
        assert refused.json()["error"]["param"] == param, refused.text
    assert error(completed(operator, program="quiz", prompt=["a", "b"]))["param"] == "prompt"
    assert error(completed(operator, program="quiz", echo=True))["param"] == "echo"
    assert error(completed(operator, arguments={"a": 1}))["param"] == "arguments"


def test_max_tokens_stops_and_forms_apply_to_each_branch(operator: Running) -> None:
    (cut,) = good(completed(operator, program="spends", max_tokens=3))["choices"]
    assert cut["finish_reason"] == "length"
    told = {"text": "one. two. three"}
    (cut,) = good(completed(operator, program="echoes", arguments=told, stop=" two"))["choices"]
    assert (cut["text"], cut["finish_reason"]) == ("one.", "stop")
    (held,) = good(completed(operator, program="spends", regex="[0-9]{4}"))["choices"]
    assert len(held["text"]) == 4 and held["text"].isdigit()


def test_log_probabilities_and_ids_are_those_of_what_stayed(
    operator: Running, lm: mlxgen.LanguageModel
) -> None:
    fields = {"logprobs": 1, "return_token_ids": True}
    (choice,) = good(completed(operator, controller="Detours", **fields))["choices"]
    assert lm.vocabulary.decode(choice["token_ids"]) == choice["text"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["text"].startswith("One two")


# ---- controllers -------------------------------------------------------------------------------


def test_a_controller_gets_the_model_and_its_arguments(operator: Running) -> None:
    text = "token by token"
    body = {"prompt": "Once", "controller": "Spells", "arguments": {"text": text}}
    (choice,) = good(operator.post(COMPLETION, body))["choices"]
    assert (choice["text"], choice["value"], choice["variables"]) == (text, "spelled", {})
    assert streamed(operator, COMPLETION, {**body, "allow_retract": True}).texts == {0: text}
    refused = error(operator.post(COMPLETION, {**body, "arguments": {"text": text, "lm": 1}}))
    assert refused["param"] == "arguments.lm"


def test_backtracking_controllers_retract_in_streams(operator: Running) -> None:
    body = {"prompt": "Once", "controller": "Detours"}
    (whole,) = good(operator.post(COMPLETION, {**body, "temperature": 0}))["choices"]
    put = streamed(operator, COMPLETION, {**body, "allow_retract": True})
    assert put.texts == {0: whole["text"]}
    assert put.retracted > len("One tow")


# ---- hooks -------------------------------------------------------------------------------------


def test_hooks_decline_tokens(operator: Running) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "return_token_ids": True}
    (plain,) = good(completed(operator, **fields))["choices"]
    unwanted = plain["token_ids"][1:3]
    hook = {"name": "never", "arguments": {"tokens": unwanted}}
    (choice,) = good(completed(operator, **fields, hooks=[hook]))["choices"]
    assert not set(unwanted) & set(choice["token_ids"])
    again = good(completed(operator, **fields, hooks=["never"], arguments=hook["arguments"]))
    assert again["choices"][0]["token_ids"] == choice["token_ids"]


def test_hooks_take_back_what_was_not_delivered_or_retract_it(operator: Running) -> None:
    # drafts off: what is accepted with one pass may be taken back before any of it was delivered
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 1, "seed": 3, "num_draft_tokens": 0}
    refused = error(completed(operator, **fields, hooks=["restarts"]), 400)
    assert "hold_tokens=4" in refused["message"]
    held = good(completed(operator, **fields, hooks=["restarts"], hold_tokens=5))
    whole = good(completed(operator, **fields, hooks=["restarts"], allow_retract=True))
    assert whole["choices"][0]["text"] == held["choices"][0]["text"]
    body = {"prompt": "Once", **fields, "hooks": ["restarts"], "allow_retract": True}
    texts: dict[int, str] = {0: ""}
    retracted = 0
    with operator.stream(COMPLETION, body) as lines:
        for event in events(lines):
            for choice in event["choices"]:
                back = choice.get("retract", 0)
                retracted += back
                texts[0] = texts[0][: len(texts[0]) - back] + choice["text"]
    assert retracted
    assert texts[0] == held["choices"][0]["text"]


def test_hooks_see_all_there_is_and_keep_their_state_to_one_answer(operator: Running) -> None:
    plain = good(completed(operator, max_tokens=6))["choices"][0]["text"]
    assert good(completed(operator, max_tokens=6, hooks=["looks"]))["choices"][0]["text"] == plain
    counting = {"name": "Counts", "arguments": {"most": 6}}
    several = good(completed(operator, max_tokens=6, n=3, hooks=[counting]))["choices"]
    assert [choice["text"] for choice in several] == [plain] * 3
    counting = {"name": "Counts", "arguments": {"most": 5}}
    failed = error(completed(operator, max_tokens=6, hooks=[counting]), 500)
    assert failed["code"] == "hook_failed"
    assert "hook Counts failed at position 5: ValueError: that was token 6" in failed["message"]


# ---- the list ----------------------------------------------------------------------------------


def test_all_are_listed_with_their_docstrings_and_arguments(operator: Running) -> None:
    listed = {each["id"]: each for each in operator.get("/v1/programs").json()["data"]}
    quiz = listed["quiz"]
    assert quiz["object"] == "program"
    assert quiz["description"] == "Asks two questions, and says goodbye in two ways."
    assert quiz["arguments"]["properties"]["city"] == {"default": "Paris", "type": "string"}
    assert listed["Spells"]["object"] == "controller"
    assert listed["Spells"]["arguments"]["required"] == ["text"]
    assert "lm" not in listed["Spells"]["arguments"]["properties"]
    assert listed["never"]["object"] == "hook"


def test_a_server_without_any_says_so(server: Running) -> None:
    assert server.get("/v1/programs").json() == {"object": "list", "data": []}
    refused = error(completed(server, program="quiz"), 404)
    assert "started without any --program" in refused["message"]


def test_an_effort_does_not_bind_a_program(operator: Running) -> None:
    good(chat(operator, program="quiz", reasoning_effort="low"))
    refused = error(chat(operator, program="quiz", thinking_budget=5))
    assert refused["param"] == "thinking_budget"


def test_what_a_check_complains_about_is_written_again(operator: Running) -> None:
    asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    plain = good(chat(operator, **asked))["choices"][0]["message"]
    assert "Paris" in plain["content"]
    for own in ({"stream": True}, {}):
        body = {**ASKED, **asked, "temperature": 0, "seed": 1, "check": "no_paris", **own}
        if own:
            with operator.stream(CHAT, body) as lines:
                deltas = [c["delta"] for event in events(lines) for c in event["choices"]]
            said = "".join(delta.get("content") or "" for delta in deltas)
        else:
            said = good(operator.post(CHAT, body))["choices"][0]["message"]["content"]
        assert said.startswith("The capital of France is ")
        assert "Paris" not in said


def test_checks_are_listed_and_others_are_not_found(operator: Running) -> None:
    listed = good(operator.get("/v1/programs"))["data"]
    checks = {each["id"]: each["description"] for each in listed if each["object"] == "check"}
    assert checks["no_paris"] == "Every city but one."
    assert set(checks) == {"no_paris", "short", "no_city", "fine"}
    wrong = error(chat(operator, check="spelling"), 404)
    assert (wrong["param"], wrong["code"]) == ("check", "check_not_found")
    assert "there are no_paris, short, no_city, fine" in wrong["message"]


def test_a_command_checks_a_whole_text(operator: Running) -> None:
    answer = good(completed(operator, check="fine", max_tokens=8))
    assert answer["choices"][0]["text"]


@pytest.mark.parametrize("api", APIS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_check_looks_at_the_text_in_every_api(api: Api, stream: bool, operator: Running) -> None:
    asked = api.body("What is the capital of France?", temperature=0, seed=1, **{api.limit: 90})
    body = asked | api.effort("none")
    for check, kept in ((None, True), ("no_paris", False), ("no_city", False)):
        said = answered(api, operator, body | {"check": check}, stream)
        assert said.text.startswith("The capital of France is ")
        assert ("Paris" in said.text) is kept
    other = {"name": "no_city", "arguments": {"city": "Rome"}}
    assert "Paris" in answered(api, operator, body | {"check": other}, stream).text
    refused = error(operator.post(api.path, body | {"check": "spelling"}), 404)
    assert "spelling" in refused["message"]


@pytest.mark.parametrize("api", APIS, ids=str)
def test_a_check_and_a_schema_hold_together(api: Api, operator: Running) -> None:
    schema = {"properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    asked = api.body("What is the capital of France? As JSON.", temperature=0, **{api.limit: 90})
    body = {**asked, **api.effort("none"), **api.form({"type": "object", **schema}), "seed": 2}
    body["check"] = "fine"
    cities = {"Paris", "Rome"}
    first = json.loads(answered(api, operator, body, True).text)["city"]
    body["check"] = {"name": "no_city", "arguments": {"city": first}}
    other = json.loads(answered(api, operator, body, True).text)["city"]
    assert {first, other} == cities


def test_a_check_lets_a_model_call_a_tool(operator: Running) -> None:
    """Its pieces are of the answer."""
    tool = CHAT_API.tool("get_weather", parameters={"properties": {"city": {"type": "string"}}})
    body = CHAT_API.body("What is the weather in Oslo?", tools=[tool], reasoning_effort="none")
    for check in (None, {"name": "short", "arguments": {"most": 1}}):
        said = answered(CHAT_API, operator, {**body, "max_tokens": 200, "check": check}, True)
        assert [name for name, _ in said.calls] == ["get_weather"]


def answered(api: Api, operator: Running, body: dict[str, Any], stream: bool) -> Said:
    answer = operator.post(api.path, {**body, **(api.usage if stream else {}), "stream": stream})
    assert answer.status_code == 200, answer.text
    if not stream:
        return api.whole(answer.json())
    lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
    return api.streamed([json.loads(line.removeprefix("data: ")) for line in lines])
