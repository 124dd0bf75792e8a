"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

import pytest

from mlxgen import errors
from mlxgen.server.errors import error_body

PARAMS = {"prompt": "messages", "filters": "regex"}
EXCLUDED = {**PARAMS, "dead_end": "regex, banned"}


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
    assert set(body) == {"error"} and set(found) == {"message", "type", "param", "code"}
    assert (found["param"], found["code"]) == (param, code)
    named = "regex, banned" if param and code == "dead_end" else param
    if isinstance(error, errors.OptionError) or named == "regex, banned":
        assert status == 400 and found["message"].startswith(f"{named}:".replace("[3]", ""))
