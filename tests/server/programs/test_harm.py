"""What is wrong with a program harms its own request, and nobody else's."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ..running import Running, events, running
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


def test_a_request_has_no_more_branches_than_may_wait(operator: Running) -> None:
    choices = good(completed(operator, program="bursts", arguments={"branches": 12}))["choices"]
    assert [choice["text"] for choice in choices] == ["x"] * 12
    assert error(completed(operator, program="bursts", arguments={"branches": 60}), 429)
    operator.wait_idle()


def test_a_slow_hook_is_counted_with_its_name() -> None:
    with running(*registering("hook", "slow")) as server:
        good(completed(server, hooks=["slow"], max_tokens=2))
        text = server.get("/metrics").text
        assert 'mlxgen_slow_calls_total{name="slow"}' in text
        assert any("held others up" in line and "slow" in line for line in server.log)
