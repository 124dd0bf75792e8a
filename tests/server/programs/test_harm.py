"""What is wrong with a program harms its own request, and nobody else's."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ..running import Running, endless, events, running
from .conftest import registering
from .test_answers import COMPLETION, completed, error, good


def plain(server: Running) -> str:
    text: str = good(completed(server, max_tokens=12))["choices"][0]["text"]
    return text


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
    before = plain(operator)
    failed = error(completed(operator, program=program), 500)
    assert failed["code"] == "program_failed"
    assert reason in failed["message"]
    body = {"prompt": "Once", "program": program, "allow_retract": True, "stream": True}
    answer = operator.post(COMPLETION, body)
    if answer.status_code == 200:  # it had begun
        *_, last = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        assert '"program_failed"' in last
    else:
        assert error(answer, 500)["code"] == "program_failed"
    operator.wait_idle()
    assert plain(operator) == before


def test_while_a_program_waits_in_a_call_the_others_go_on(operator: Running) -> None:
    answers: list[Any] = []
    body = {"prompt": "Once", "program": "gated"}
    waiting = threading.Thread(target=lambda: answers.append(operator.post(COMPLETION, body)))
    waiting.start()
    operator.wait_until(lambda: operator.rows() > 0, "the program has not begun")
    with operator.stream(COMPLETION, endless(max_tokens=100)) as lines:
        count = sum(1 for _ in events(lines))
    assert count > 50
    assert not answers, "it waits until somebody opens the gate"
    good(completed(operator, program="opens"))
    waiting.join(60)
    (choice,) = good(answers[0])["choices"]
    assert choice["text"].endswith(" open") and choice["value"] == "gate"


@pytest.mark.slow
def test_programs_and_hooks_that_never_return_are_given_up() -> None:
    own = [*registering("program", "hangs", "loops", "threads"), *registering("hook", "dawdles")]
    with running(*own, "--program-timeout", "1", "--hook-timeout", "0.3") as server:
        before = plain(server)
        for program in ("hangs", "loops"):
            failed = error(completed(server, program=program), 504)
            assert failed["code"] == "program_timeout"
            assert f"{program} has not said for 1 s how to go on" in failed["message"]
            server.wait_idle()
            assert plain(server) == before

        def is_gone() -> bool:
            names = good(completed(server, program="threads"))["choices"][0]["value"]
            assert "program hangs" in names, "what waits in C cannot be ended"
            return "program loops" not in names

        server.wait_until(is_gone, "what is only Python can be ended")
        with server.stream(COMPLETION, endless(max_tokens=60)) as lines:
            found = events(lines)
            next(found)
            failed = error(completed(server, hooks=["dawdles"]), 500)
            assert failed["code"] == "hook_failed"
            assert "hook dawdles took more than 0.3 s" in failed["message"]
            assert sum(1 for _ in found) >= 50
        assert plain(server) == before


def test_a_client_that_leaves_frees_all_branches(operator: Running) -> None:
    body = {"prompt": "Once", "program": "endless", "allow_retract": True}
    with operator.stream(COMPLETION, body) as lines:
        seen: set[int] = set()
        for event in events(lines):
            seen |= {choice["index"] for choice in event["choices"]}
            if seen == {0, 1}:
                break
        operator.wait_until(lambda: operator.rows() == 2, "both branches run")
    operator.wait_idle()


def test_a_client_that_leaves_is_not_a_fault_of_the_program(operator: Running) -> None:
    before = len(operator.log)
    for _ in range(3):
        body = {"prompt": "Once", "controller": "Ponders", "max_tokens": 50}
        with operator.stream(COMPLETION, body) as lines:
            next(events(lines))
        operator.wait_idle()
    with operator.stream(COMPLETION, {"prompt": "Once", "program": "endless"}) as lines:
        next(events(lines))
    operator.wait_idle()
    time.sleep(0.5)  # what it was thinking of is over
    assert not [line for line in operator.log[before:] if "failed" in line]


def test_a_request_has_no_more_branches_than_may_wait(operator: Running) -> None:
    choices = good(completed(operator, program="bursts", arguments={"branches": 12}))["choices"]
    assert [choice["text"] for choice in choices] == ["x"] * 12
    refused = error(completed(operator, program="bursts", arguments={"branches": 13}), 500)
    assert refused["code"] == "program_failed"
    assert "a request may have 12 branches here" in refused["message"]
    operator.wait_idle()


def test_several_programs_and_plain_requests_run_side_by_side(operator: Running) -> None:
    alone = good(completed(operator, program="quiz"))["choices"]
    text = plain(operator)
    found: list[Any] = []

    def ask(**fields: Any) -> None:
        found.append(good(completed(operator, **fields))["choices"])

    asked: list[dict[str, Any]] = [{"program": "quiz"}, {"max_tokens": 12}] * 3
    threads = [threading.Thread(target=lambda each=each: ask(**each)) for each in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    quizzes = [choices for choices in found if "branch" in choices[0]]
    assert [[c["text"] for c in choices] for choices in quizzes] == [[c["text"] for c in alone]] * 3
    assert [c[0]["text"] for c in found if "branch" not in c[0]] == [text] * 3
