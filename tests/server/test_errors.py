"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from mlxgen import errors
from mlxgen.server.errors import error_body

PARAMS = {"prompt": "messages", "filters": "regex"}
EXCLUDED = {**PARAMS, "dead_end": "regex, banned"}


def every_error() -> list[errors.MlxgenError]:
    extra: dict[type, tuple[Any, ...]] = {
        errors.OptionError: ("stop", "wrong"),
        errors.RewindError: ("too far", 3),
    }
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    return [
        kind(*extra.get(kind, ("told",))) for kind in kinds if issubclass(kind, errors.MlxgenError)
    ]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_every_error_has_a_body_with_its_status(error: errors.MlxgenError) -> None:
    status, body = error_body(error, PARAMS)
    assert status == error.status
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == str(error)
    assert (body["error"]["type"] == "server_error") == (status >= 500 and status != 503)


@pytest.mark.parametrize(
    ("error", "params", "param", "code"),
    [
        (errors.OptionError("stop_tokens", "no"), PARAMS, "stop_token_ids", "invalid_value"),
        (errors.OptionError("banned", "no"), PARAMS, "banned", "invalid_value"),
        (errors.OptionError("filters", "no"), PARAMS, "regex", "invalid_value"),
        (errors.OptionError("prefix", "no", code="x", index=3), PARAMS, "prefix_tokens[3]", "x"),
        (errors.PromptError("too long"), PARAMS, "messages", "invalid_prompt"),
        (errors.GrammarError("too large"), PARAMS, "regex", "invalid_grammar"),
        (errors.FilterError("too many states"), EXCLUDED, "regex", "invalid_grammar"),
        (errors.DeadEndError("stuck"), PARAMS, None, "dead_end"),
        (errors.DeadEndError("stuck"), EXCLUDED, "regex", "dead_end"),
    ],
)
def test_the_field_is_the_one_that_the_client_wrote(
    error: errors.MlxgenError, params: dict[str, str], param: str | None, code: str
) -> None:
    status, body = error_body(error, params)
    found = body["error"]
    assert (found["param"], found["code"]) == (param, code)
    named = "regex, banned" if param and code == "dead_end" else param
    if isinstance(error, errors.OptionError) or named == "regex, banned":
        assert status == 400 and found["message"].startswith(f"{named}:".replace("[3]", ""))
