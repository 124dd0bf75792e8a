"""What the OpenAPI description says is what the server does, tried by schemathesis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ..effort import tries
from .running import WAIT, Running

SETTINGS = settings(
    max_examples=tries(15),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def described(server: Running) -> Any:
    import schemathesis

    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def statuses_of(operation: Any, mode: str, *more: Any) -> set[int]:
    """Try an operation; the statuses that came back."""
    from schemathesis import GenerationMode, checks
    from schemathesis.specs.openapi import checks as openapi

    seen: set[int] = set()
    names = ("status_code", "content_type", "response_schema")
    held = [checks.not_a_server_error, *(getattr(openapi, f"{name}_conformance") for name in names)]

    @SETTINGS
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def ask(case: Any) -> None:
        if mode == "positive" and case.path.endswith("completions"):
            case.body["max_tokens"] = 4  # and few answers: all of 128 may have their prompt scored
            case.body |= {"n": min(2, case.body.get("n") or 1)}
        if mode == "positive" and case.path.endswith("responses"):
            case.body["max_output_tokens"] = 4
        seen.add(case.call_and_validate(checks=[*held, *more], timeout=WAIT).status_code)

    ask()
    return seen


@pytest.mark.slow
def test_what_is_allowed_by_the_description_is_answered_as_described(described: Any) -> None:
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:
        seen = statuses_of(operation, "positive")
        fixed = operation.method.upper() == "GET" and "{" not in operation.path
        assert 200 in seen or not fixed, (operation.label, seen)


def refused(context: Any, response: Any, case: Any) -> bool | None:
    """As Schemathesis has it, which knows no 413 for a body that is too large."""
    from schemathesis.specs.openapi.checks import negative_data_rejection

    too_large = response.status_code == 413
    return None if too_large else negative_data_rejection(context, response, case)


MENDS = ("complet", "messages", "responses", "ize", "template")  # in paths of conversations


@pytest.mark.slow
def test_what_the_description_forbids_is_refused(described: Any) -> None:
    operations = [found.ok() for found in described.get_all_operations()]
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    assert len(posts) >= 4
    for operation in posts:
        # What came before in a conversation is mended, and what is not known is ignored.
        mends = any(word in operation.path for word in MENDS)
        seen = statuses_of(operation, "negative", *(() if mends else (refused,)))
        assert 400 in seen and seen <= {400, 404, 413, 415, *((200,) if mends else ())}
