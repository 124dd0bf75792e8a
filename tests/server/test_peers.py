"""What the official clients and other servers' clients send, and what they look for."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from mlxgen.server import generation, openai
from mlxgen.server.bodies import header_of
from mlxgen.server.messages import MessagesRequest
from mlxgen.server.openai import ChatRequest, CompletionRequest
from mlxgen.server.peers import MESSAGES, OPENAI, RESPONSES
from mlxgen.server.responses import ResponsesRequest

ELSEWHERE = {
    ChatRequest: OPENAI,
    CompletionRequest: OPENAI,
    ResponsesRequest: RESPONSES,
    MessagesRequest: MESSAGES,
}


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ("openai.types.chat.completion_create_params:CompletionCreateParamsStreaming", ChatRequest),
        (
            "openai.types.responses.response_create_params:ResponseCreateParamsStreaming",
            ResponsesRequest,
        ),
        (
            "anthropic.types.beta.message_create_params:MessageCreateParamsStreaming",
            MessagesRequest,
        ),
        (
            "openai.types.completion_create_params:CompletionCreateParamsStreaming",
            CompletionRequest,
        ),
        ("openai.types.chat:ChatCompletionStreamOptionsParam", generation.StreamOptions),
        ("openai.types.chat:ChatCompletionFunctionToolParam", openai.Tool),
        ("openai.types.shared_params:FunctionDefinition", openai.FunctionDefinition),
    ],
)
def test_every_field_of_the_client_is_known(sent: str, known: type[BaseModel]) -> None:
    names = {field.alias or name for name, field in known.model_fields.items()}
    names |= ELSEWHERE.get(known, {}).keys()
    names |= {rule.partition(".")[2] for rule in OPENAI if rule.startswith("stream_options.")}
    assert set(resolve_name(sent).__annotations__) <= names


# ---- the header that names what had no effect


@given(st.lists(st.text(max_size=300), max_size=30))
def test_the_header_is_printable_ascii_and_bounded(names: list[str]) -> None:
    header = header_of(names)
    assert len(header) < 1100 and header.isascii() and (header.isprintable() or not header)
    assert header == header.strip() and header_of(["", *names])


def test_names_are_listed_once_and_what_is_too_much_is_left_out() -> None:
    assert header_of(["store", "user", "store"]) == "store, user"
    many = header_of(f"tools[{i}]" for i in range(2000))
    assert many.startswith("tools[0], tools[1], ") and many.endswith("], ...")
