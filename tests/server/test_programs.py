"""What clients get of the operator's own code: programs, controllers, hooks and checks by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import mlxgen

from . import own_code
from .apis import APIS, Api, Said
from .apis import CHAT as CHAT_API
from .running import Running, error, events, good, running

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
FRANCE = "What is the capital of France?"
ASKED = {"messages": [{"role": "user", "content": "Ask me."}], "reasoning_effort": "none"}
TEXTS = [
    "The capital of France is Paris, and 3 + 4 = 7. Bye",
    "The capital of France is Paris, and 3 + 4 = 7. So long",
]
OWN = {
    "program": [
        *("quiz", "echoes", "takes_back", "wanders", "raises", "raises_late", "raises_at_once"),
        *("returns_no_json", "says_nothing", "endless", "bursts", "deadlock", "spends", "churns"),
    ],
    "controller": ["Spells", "Detours"],
    "hook": ["never", "restarts", "Counts", "looks", "slow"],
    "check": ["no_paris", "short", "no_city"],
}


@pytest.fixture(scope="module")
def operator() -> Iterator[Running]:
    """A server with all that is well-formed in ``own_code``."""
    own = [
        word
        for kind, names in OWN.items()
        for name in names
        for word in (f"--{kind}", f"{name}={own_code.__name__}:{name}")
    ]
    with running(*own, "--check", "fine=true", "--max-batch", "8", "--max-queue", "12") as server:
        yield server


@pytest.fixture(scope="module")
def lm() -> mlxgen.LanguageModel:
    """The model of that server, in this process."""
    return mlxgen.load()


def completed(server: Running, **fields: Any) -> httpx.Response:
    return server.post(COMPLETION, {"prompt": "Once", "temperature": 0, **fields})


def choices(server: Running, path: str = COMPLETION, **fields: Any) -> list[dict[str, Any]]:
    asked = ASKED if path == CHAT else {"prompt": "Once"}
    found: list[dict[str, Any]] = good(server.post(path, {**asked, "temperature": 0, **fields}))[
        "choices"
    ]
    return found


def text_of(server: Running, **fields: Any) -> str:
    """The text of the only choice of a completion."""
    (choice,) = choices(server, **fields)
    return str(choice["text"])


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
                self.branches[index] = choice.get("branch", [])
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            before, back = self.texts.get(index, ""), choice.get("retract", 0)
            self.retracted += back
            assert back <= len(before)
            self.texts[index] = before[: len(before) - back] + text
            if choice["finish_reason"]:
                assert index not in self.ends
                self.ends[index] = choice


def streamed(server: Running, path: str = COMPLETION, **fields: Any) -> Put:
    put, asked = Put(), ASKED if path == CHAT else {"prompt": "Once"}
    with server.stream(path, {**asked, "temperature": 0, **fields}) as lines:
        for event in events(lines):
            put.add(event)
    return put


# ---- programs and controllers --------------------------------------------------------------------


def test_each_branch_is_a_choice_with_its_text_its_name_the_variables_and_the_value(
    operator: Running,
) -> None:
    answer = good(operator.post(CHAT, {**ASKED, "program": "quiz", "temperature": 0}))
    first, second = answer["choices"]
    assert [each["message"]["content"] for each in (first, second)] == TEXTS
    assert [(each["index"], each["branch"]) for each in (first, second)] == [(0, []), (1, [1])]
    assert {(each["finish_reason"], each["value"]) for each in (first, second)} == {
        ("stop", "Paris")
    }
    said = first["variables"]["said"]
    assert len(said) == sum(len(f"{text}. ") for text in TEXTS)
    assert all(f"{text}. " in said for text in TEXTS)
    assert second["variables"] == first["variables"]
    usage = answer["usage"]
    assert usage["timings"]["prompt_n"] + usage["timings"]["cache_n"] == 2 * usage["prompt_tokens"]
    assert usage["timings"]["prompt_n"] <= usage["prompt_tokens"], "the prompt is shared"


def test_the_same_comes_as_in_the_library(operator: Running, lm: mlxgen.LanguageModel) -> None:
    run = lm.control("Once", mlxgen.Program(own_code.quiz), max_tokens=None)
    for _ in run:
        pass
    found = {tuple(each["branch"]): each["text"] for each in choices(operator, program="quiz")}
    assert found == {branch: result.text for branch, result in run.results.items()}


def test_what_a_program_writes_comes_first_whatever_is_left_of_the_prompt(
    operator: Running,
) -> None:
    told: dict[str, Any] = {"program": "echoes", "arguments": {"text": "ab cd"}}
    for words in (1, 8, 16, 24, 40, 40, 400, 401):  # some are cached
        body = {"prompt": "word " * words, "temperature": 0, **told}
        (choice,) = good(operator.post(COMPLETION, body))["choices"]
        assert choice["text"] == "ab cd"


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_stream_holds_what_may_be_taken_back_or_retracts_it(operator: Running, path: str) -> None:
    held = streamed(operator, path, program="quiz")
    assert held.branches == {0: [], 1: [1]} and not held.retracted
    assert held.ends[0]["value"] == "Paris" and "said" in held.ends[0]["variables"]
    assert streamed(operator, path, program="quiz", allow_retract=True).texts == held.texts
    held = streamed(operator, path, program="takes_back")
    shown = streamed(operator, path, program="takes_back", allow_retract=True)
    assert held.texts == shown.texts == {0: "Right"}
    assert held.retracted == 0 < len("Wrong") <= shown.retracted
    empty = streamed(operator, path, program="says_nothing")
    assert (empty.texts, empty.ends[0]["value"]) == ({0: ""}, 5)


def test_text_may_come_late_instead_of_at_the_end(operator: Running) -> None:
    put = streamed(operator, controller="Detours", hold_tokens=30)
    assert (put.texts[0], put.retracted) == (text_of(operator, controller="Detours"), 0)
    body: dict[str, Any] = {"prompt": "Once", "program": "wanders", "temperature": 0}
    with operator.stream(COMPLETION, {**body, "hold_tokens": 5}) as lines:
        told = [choice["text"] for event in events(lines) for choice in event["choices"]]
    assert len([text for text in told if text]) > 5, "it is sent while it grows"
    assert "".join(told) == text_of(operator, program="wanders")
    body["stream"] = True
    assert "only 2 tokens are held" in operator.post(COMPLETION, {**body, "hold_tokens": 2}).text
    refused = error(operator.post(COMPLETION, {**body, "hold_tokens": 5, "logprobs": 1}))
    assert refused["param"] == "hold_tokens"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"text": "ab", "times": 2, "how": "twice"}, None),
        ({}, "arguments.text"),
        ({"text": 5}, "arguments.text"),
        ({"text": "a", "times": "2"}, "arguments.times"),
        ({"text": "a", "tmes": 2}, "arguments.tmes"),
        ({"text": "a", "how": "loud"}, "arguments.how"),
        ({"text": "a", "g": 1}, "arguments.g"),
    ],
)
def test_arguments_are_those_of_the_signature(
    operator: Running, arguments: dict[str, Any], param: str | None
) -> None:
    answer = completed(operator, program="echoes", arguments=arguments)
    if param is not None:
        assert error(answer)["param"] == param
        return
    (choice,) = good(answer)["choices"]
    assert (choice["text"], choice["value"]) == ("abababab", ["ab", "twice"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"banned": ["x"]}, "banned"),
        ({"hooks": ["restarts"]}, "hooks"),
        ({"controller": "Spells"}, "controller"),
        ({"prefix_tokens": [5]}, "prefix_tokens"),
        ({"timings_per_token": True}, "timings_per_token"),
        ({"thinking_budget": 5}, "thinking_budget"),
        ({"stream": True, "allow_retract": True, "logprobs": True}, "allow_retract"),
        ({"program": "quizz"}, "program"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "program": None, "arguments": {"a": 1}}, "arguments"),
    ],
)
def test_what_a_program_cannot_be_combined_with_is_named(
    operator: Running, fields: dict[str, Any], param: str
) -> None:
    path, asked = (COMPLETION, {}) if "prompt" in fields else (CHAT, ASKED)
    refused = operator.post(path, {**asked, "program": "quiz", **fields})
    assert error(refused, 404 if param == "program" else 400)["param"] == param


def test_an_effort_does_not_bind_a_program(operator: Running) -> None:
    assert choices(operator, CHAT, program="quiz", reasoning_effort="low")


def test_max_tokens_stops_and_forms_apply_to_each_branch(operator: Running) -> None:
    (cut,) = choices(operator, program="spends", max_tokens=3)
    assert cut["finish_reason"] == "length"
    told = {"text": "one. two. three"}
    (cut,) = choices(operator, program="echoes", arguments=told, stop=" two")
    assert (cut["text"], cut["finish_reason"]) == ("one.", "stop")
    held = text_of(operator, program="spends", regex="[0-9]{4}")
    assert len(held) == 4 and held.isdigit()


def test_a_controller_gets_the_model_and_its_arguments(operator: Running) -> None:
    text = "token by token"
    asked: dict[str, Any] = {"controller": "Spells", "arguments": {"text": text}}
    (choice,) = choices(operator, **asked)
    assert (choice["text"], choice["value"], choice["variables"]) == (text, "spelled", {})
    assert streamed(operator, **asked, allow_retract=True).texts == {0: text}
    asked["arguments"] = {"text": text, "lm": 1}
    assert error(completed(operator, **asked))["param"] == "arguments.lm"


def test_a_backtracking_controller_has_only_what_stayed_and_retracts_in_streams(
    operator: Running, lm: mlxgen.LanguageModel
) -> None:
    (whole,) = choices(operator, controller="Detours", logprobs=1, return_token_ids=True)
    assert whole["text"].startswith("One two")
    assert lm.vocabulary.decode(whole["token_ids"]) == whole["text"]
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    put = streamed(operator, controller="Detours", allow_retract=True)
    assert put.texts == {0: whole["text"]} and put.retracted > len("One tow")


# ---- hooks ---------------------------------------------------------------------------------------


def test_hooks_decline_tokens(operator: Running) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "return_token_ids": True}
    (plain,) = choices(operator, **fields)
    arguments = {"tokens": plain["token_ids"][1:3]}
    hook = {"name": "never", "arguments": arguments}
    (choice,) = choices(operator, **fields, hooks=[hook])
    assert not set(arguments["tokens"]) & set(choice["token_ids"])
    (again,) = choices(operator, **fields, hooks=["never"], arguments=arguments)
    assert again["token_ids"] == choice["token_ids"]


def test_hooks_take_back_what_was_not_delivered_or_retract_it(operator: Running) -> None:
    # drafts off: what is accepted with one pass may be taken back before any of it was delivered
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 1, "seed": 3, "num_draft_tokens": 0}
    fields["hooks"] = ["restarts"]
    assert "hold_tokens=4" in error(completed(operator, **fields))["message"]
    held = text_of(operator, **fields, hold_tokens=5)
    assert text_of(operator, **fields, allow_retract=True) == held
    put = streamed(operator, **fields, allow_retract=True)
    assert put.retracted and put.texts == {0: held}


def test_hooks_see_all_there_is_and_keep_their_state_to_one_answer(operator: Running) -> None:
    plain = text_of(operator, max_tokens=6)
    assert text_of(operator, max_tokens=6, hooks=["looks"]) == plain
    counting = {"name": "Counts", "arguments": {"most": 6}}
    several = choices(operator, max_tokens=6, n=3, hooks=[counting])
    assert [choice["text"] for choice in several] == [plain] * 3
    counting = {"name": "Counts", "arguments": {"most": 5}}
    failed = error(completed(operator, max_tokens=6, hooks=[counting]), 500)
    assert failed["code"] == "hook_failed" and "ValueError: that was token 6" in failed["message"]


def test_a_slow_hook_is_counted_with_its_name(operator: Running) -> None:
    text_of(operator, hooks=["slow"], max_tokens=2)
    assert operator.figure('mlxgen_slow_calls_total{name="slow"}') > 0
    assert any("held others up" in line and "slow" in line for line in operator.log)


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raises", "raises failed: LookupError: there is no such thing"),
        ("raises_at_once", "raises_at_once failed: KeyError: 'a'"),
        ("raises_late", "raises_late failed: LookupError: there is no such thing"),
        ("returns_no_json", "the value set of a program is not JSON"),
        ("deadlock", "() for variable 'never'"),
    ],
)
def test_what_goes_wrong_in_a_program_is_the_error_of_its_request(
    operator: Running, program: str, reason: str
) -> None:
    before = text_of(operator, max_tokens=12)
    failed = error(completed(operator, program=program), 500)
    assert failed["code"] == "program_failed" and reason in failed["message"]
    answer = completed(operator, program=program, allow_retract=True, stream=True)
    assert '"program_failed"' in answer.text
    operator.wait_idle()
    assert text_of(operator, max_tokens=12) == before


def test_a_client_that_leaves_frees_all_branches_and_is_no_fault_of_the_program(
    operator: Running,
) -> None:
    before = len(operator.log)
    body = {"prompt": "Once", "program": "endless", "allow_retract": True}
    with operator.stream(COMPLETION, body) as lines:
        seen: set[int] = set()
        for event in events(lines):
            seen |= {choice["index"] for choice in event["choices"]}
            if seen == {0, 1}:
                break
        operator.wait_until(lambda: operator.rows() == 2, "both branches run")
    operator.wait_idle()
    assert text_of(operator, max_tokens=2)
    assert not [line for line in operator.log[before:] if "failed" in line]


def test_programs_and_plain_requests_run_side_by_side_whatever_becomes_of_one(
    operator: Running,
) -> None:
    quiz, text = choices(operator, program="quiz"), text_of(operator, max_tokens=12)
    with ThreadPoolExecutor(7) as pool:
        stuck = pool.submit(completed, operator, program="churns")
        quizzes = [pool.submit(choices, operator, program="quiz") for _ in range(3)]
        plain = [pool.submit(text_of, operator, max_tokens=12) for _ in range(3)]
        for each in quizzes:
            assert [c["text"] for c in each.result()] == [c["text"] for c in quiz]
        assert [each.result() for each in plain] == [text] * 3
        assert stuck.result().status_code >= 400


def test_a_request_has_no_more_branches_than_may_wait(operator: Running) -> None:
    found = choices(operator, program="bursts", arguments={"branches": 12})
    assert [choice["text"] for choice in found] == ["x"] * 12
    assert error(completed(operator, program="bursts", arguments={"branches": 60}), 429)
    operator.wait_idle()


# ---- checks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_check_looks_at_the_text_in_every_api(api: Api, stream: bool, operator: Running) -> None:
    asked = api.body(FRANCE, temperature=0, seed=1, **{api.limit: 90}, **api.effort("none"))
    for check, kept in (
        (None, True),
        ("no_paris", False),
        ("no_city", False),
        ({"name": "no_city", "arguments": {"city": "Rome"}}, True),
        ("fine", True),
    ):
        said = answered(api, operator, asked | {"check": check}, stream)
        assert said.text.startswith("The capital of France is ")
        assert ("Paris" in said.text) is kept


@pytest.mark.parametrize("api", APIS, ids=str)
def test_a_check_and_a_schema_hold_together(api: Api, operator: Running) -> None:
    schema = {"properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    asked = api.body(f"{FRANCE} As JSON.", temperature=0, **{api.limit: 90})
    body = {**asked, **api.effort("none"), **api.form({"type": "object", **schema}), "seed": 2}
    first = json.loads(answered(api, operator, body | {"check": "fine"}, True).text)["city"]
    body["check"] = {"name": "no_city", "arguments": {"city": first}}
    other = json.loads(answered(api, operator, body, True).text)["city"]
    assert {first, other} == {"Paris", "Rome"}


def test_a_check_lets_a_model_call_a_tool(operator: Running) -> None:
    tool = CHAT_API.tool("get_weather", parameters={"properties": {"city": {"type": "string"}}})
    body = CHAT_API.body("What is the weather in Oslo?", tools=[tool], reasoning_effort="none")
    for check in (None, {"name": "short", "arguments": {"most": 1}}):
        said = answered(CHAT_API, operator, {**body, "max_tokens": 200, "check": check}, True)
        assert [name for name, _ in said.calls] == ["get_weather"]


@pytest.mark.parametrize(
    ("check", "param", "status"),
    [
        ("spelling", "check", 404),
        ({"name": "spelling"}, "check.name", 404),
        ({"name": "short", "arguments": {"most": "3"}}, "check.arguments.most", 400),
        ({"name": "short", "arguments": {"line": "3"}}, "check.arguments.line", 400),
        ({"name": "fine", "arguments": {"strict": True}}, "check.arguments.strict", 400),
    ],
)
def test_a_check_that_cannot_be_made_is_refused(
    operator: Running, check: Any, param: str, status: int
) -> None:
    assert error(completed(operator, check=check), status)["param"] == param


def answered(api: Api, operator: Running, body: dict[str, Any], stream: bool) -> Said:
    answer = operator.post(api.path, {**body, **(api.usage if stream else {}), "stream": stream})
    if not stream:
        return api.whole(good(answer))
    lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
    return api.streamed([json.loads(line.removeprefix("data: ")) for line in lines])


# ---- the list ------------------------------------------------------------------------------------


def test_all_are_listed_with_their_docstrings_and_arguments(
    operator: Running, server: Running
) -> None:
    listed = {each["id"]: each for each in operator.get("/v1/programs").json()["data"]}
    for kind, names in OWN.items():
        assert {listed[name]["object"] for name in names} == {kind}
    assert listed["quiz"]["description"] == own_code.quiz.__doc__
    assert listed["no_paris"]["description"] == "Every city but one."
    arguments = listed["quiz"]["arguments"]["properties"]
    assert arguments["city"] == {"default": "Paris", "type": "string"}
    assert listed["Spells"]["arguments"]["required"] == ["text"]
    assert "lm" not in listed["Spells"]["arguments"]["properties"]
    assert server.get("/v1/programs").json() == {"object": "list", "data": []}
    assert error(completed(server, program="quiz"), 404)["code"] == "program_not_found"


@pytest.mark.slow
def test_modules_of_the_working_folder_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text("async def program(g):\n    await g.fixed('Mine')\n")
    monkeypatch.chdir(tmp_path)
    with running("--program", "it=mine_alone:program") as server:
        assert text_of(server, program="it") == "Mine"
