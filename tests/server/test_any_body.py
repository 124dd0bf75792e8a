"""Whatever is sent, the outcome is a call that can be prepared or an error that can be sent."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.server.ask import Ask
from mlxgen.server.chat import ChatRequest, parse_chat
from mlxgen.server.completions import CompletionRequest, parse_completion
from mlxgen.server.errors import RequestError
from tests.chat.kit import tool

from ..effort import tries
from .kit import HELLO, demo

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2000)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "text", "function", "object", "\ud800", "\x00", "user", "a" * 2000]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
FULL: dict[str, Any] = {
    "messages": [
        *HELLO,
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}],
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ],
    "tools": [tool("f"), tool("g")],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    },
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
    },
    "stop": ["x", "y"],
    "logit_bias": {"5": 1},
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
    "prefix_tokens": [70],
    "metadata": {"a": "b"},
    "logprobs": True,
    "top_logprobs": 3,
}


def check(outcome: Any) -> None:
    try:
        call = outcome()
    except RequestError as error:
        assert 400 <= error.status < 500
        json.dumps(error.body(), allow_nan=False).encode()
        error.message.encode()
        assert len(error.message) < 1000 and len(error.param or "") < 300
    else:
        assert isinstance(call, Ask) and call.jobs
        json.dumps(call.reply(id="1", created=1).fail(ValueError())).encode()


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A good body with something else in one or two places, at any depth."""
    body = copy.deepcopy(FULL)
    for _ in range(draw(st.integers(1, 2))):
        at: Any = body
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(at[key], (dict, list)) or draw(st.booleans()):
                at[key] = draw(JSON)
                break
            at = at[key]
    return body


@settings(max_examples=tries(300))
@given(spoiled())
def test_a_spoiled_chat_request_is_answered(body: dict[str, Any]) -> None:
    check(lambda: parse_chat(body, demo()))


@settings(max_examples=tries(200))
@given(st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)), JSON, max_size=5))
def test_any_fields_of_a_chat_request_are_answered(fields: dict[str, Any]) -> None:
    check(lambda: parse_chat({"messages": HELLO, **fields}, demo()))


@settings(max_examples=tries(200))
@given(st.dictionaries(st.sampled_from(sorted(CompletionRequest.model_fields)), JSON, max_size=5))
def test_any_fields_of_a_completion_request_are_answered(fields: dict[str, Any]) -> None:
    check(lambda: parse_completion({"prompt": "a", **fields}, demo()))


@settings(max_examples=tries(100))
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4))
def test_any_body_is_answered(body: dict[str, Any]) -> None:
    check(lambda: parse_chat(body, demo()))
    check(lambda: parse_completion(body, demo()))
