"""What clients get of the operator's own code: programs, controllers, hooks and checks by name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import mlxgen

from . import own_code
from .exchanges import carry_out
from .running import Put, Running, events, good

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
ASKED = {"messages": [{"role": "user", "content": "Ask me."}], "reasoning_effort": "none"}
TEXTS = [
    "The capital of France is Paris, and 3 + 4 = 7. Bye",
    "The capital of France is Paris, and 3 + 4 = 7. So long",
]
OWN = {
    "program": [
        *("quiz", "echoes", "anything", "takes_back", "wanders", "raises_late", "raises_at_once"),
        *("returns_no_json", "says_nothing", "endless", "bursts", "deadlock", "spends", "churns"),
    ],
    "controller": ["Spells", "Detours"],
    "hook": ["never", "restarts", "Counts", "looks", "slow"],
    "check": ["short", "no_city"],
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
    with Running(*own, "--check", "fine=true", "--max-batch", "8", "--max-queue", "12") as server:
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


def test_a_slow_hook_is_counted_with_its_name(operator: Running) -> None:
    text_of(operator, hooks=["slow"], max_tokens=2)
    assert operator.figure('mlxgen_slow_calls_total{name="slow"}') > 0
    assert any("held others up" in line and "slow" in line for line in operator.log)


# ---- what goes wrong -----------------------------------------------------------------------------


def test_an_operators_code_answers_and_is_refused_as_the_lines_say(operator: Running) -> None:
    before = text_of(operator, max_tokens=12)
    carry_out(operator, "operator")
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


# ---- the list ------------------------------------------------------------------------------------


def test_all_are_listed_with_their_docstrings_and_arguments(operator: Running) -> None:
    listed = {each["id"]: each for each in operator.get("/v1/programs").json()["data"]}
    for kind, names in OWN.items():
        assert {listed[name]["object"] for name in names} == {kind}
    assert listed["quiz"]["description"] == own_code.quiz.__doc__
    assert listed["no_city"]["description"] == "Every city but one."
    arguments = listed["quiz"]["arguments"]["properties"]
    assert arguments["city"] == {"default": "Paris", "type": "string"}
    assert listed["Spells"]["arguments"]["required"] == ["text"]
    assert "lm" not in listed["Spells"]["arguments"]["properties"]


@pytest.mark.slow
def test_modules_of_the_working_folder_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text("async def program(g):\n    await g.fixed('Mine')\n")
    monkeypatch.chdir(tmp_path)
    with Running("--program", "it=mine_alone:program") as server:
        assert text_of(server, program="it") == "Mine"
