"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from mlxgen import errors
from mlxgen.server.errors import error_body

PARAMS = {"prompt": "messages", "filters": "regex"}


def every_error() -> list[errors.MlxgenError]:
    made: list[errors.MlxgenError] = []
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.MlxgenError):
            extra: dict[type, tuple[Any, ...]] = {
                errors.OptionError: ("stop", "wrong"),
                errors.RewindError: ("too far", 3),
            }
            made.append(kind(*extra.get(kind, ("told",))))
    return made


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_every_error_has_a_body_with_its_status(error: errors.MlxgenError) -> None:
    status, body = error_body(error, PARAMS)
    assert status == error.status
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == str(error)
    assert (body["error"]["type"] == "server_error") == (status >= 500 and status != 503)


@pytest.mark.parametrize(
    ("error", "param", "message"),
    [
        (errors.OptionError("stop_tokens", "no"), "stop_token_ids", "stop_token_ids: no"),
        (errors.OptionError("banned", "no"), "banned", "banned: no"),
        (errors.OptionError("prefix", "no"), "prefix_tokens", "prefix_tokens: no"),
        (errors.OptionError("filters", "no"), "regex", "regex: no"),
        (errors.OptionError("top_p", "no"), "top_p", "top_p: no"),
        (errors.PromptError("too long"), "messages", "too long"),
        (errors.GrammarError("too large"), "regex", "too large"),
        (errors.DeadEndError("stuck"), None, "stuck"),
    ],
)
def test_the_field_is_the_one_that_the_client_wrote(
    error: errors.MlxgenError, param: str | None, message: str
) -> None:
    body = error_body(error, PARAMS)[1]["error"]
    assert (body["param"], body["message"]) == (param, message)


def test_programs_are_told_the_kind_of_an_error_and_its_place_in_a_list() -> None:
    error = errors.OptionError("prefix", "no", code="text_banned", index=3)
    body = error_body(error, PARAMS)[1]["error"]
    assert body["message"] == "prefix_tokens: no"
    assert (body["code"], body["param"]) == ("text_banned", "prefix_tokens[3]")
    plain = error_body(errors.OptionError("prefix", "no"), PARAMS)[1]["error"]
    assert (plain["code"], plain["param"]) == ("invalid_value", "prefix_tokens")


def test_a_dead_end_is_the_fault_of_the_fields_that_leave_tokens_out() -> None:
    params = {**PARAMS, "dead_end": "regex, banned"}
    status, body = error_body(errors.DeadEndError("stuck"), params)
    assert (status, body["error"]["param"]) == (400, "regex")
    assert body["error"]["message"].startswith("regex, banned: ")
    assert body["error"]["type"] == "invalid_request_error"
    assert error_body(errors.FilterError("too many states"), params)[1]["error"]["param"] == "regex"
