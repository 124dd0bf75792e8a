"""Whatever the official client can send is known by name: done, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import (
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import completion_create_params as chat
from openai.types.shared_params import FunctionDefinition as FunctionParam
from openai.types.shared_params.response_format_json_schema import JSONSchema
from pydantic import BaseModel

from mlxgen.server import chat as messages
from mlxgen.server import completions, generation
from mlxgen.server.peers import OPENAI as PEERS


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (chat.CompletionCreateParamsStreaming, messages.ChatRequest),
        (completion.CompletionCreateParamsStreaming, completions.CompletionRequest),
        (ChatCompletionStreamOptionsParam, generation.StreamOptions),
        (ChatCompletionFunctionToolParam, messages.Tool),
        (FunctionParam, messages.FunctionDefinition),
        (JSONSchema, generation.NamedSchema),
        (ChatCompletionSystemMessageParam, messages.PlainMessage),
        (ChatCompletionDeveloperMessageParam, messages.PlainMessage),
        (ChatCompletionUserMessageParam, messages.PlainMessage),
        (ChatCompletionToolMessageParam, messages.ToolMessage),
        (ChatCompletionMessageFunctionToolCallParam, messages.ToolCallOfMessage),
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_the_client_is_known(sent: Any, known: type[BaseModel]) -> None:
    names = {field.alias or name for name, field in known.model_fields.items()}
    if issubclass(known, generation.GenerationRequest):
        names |= PEERS.keys()
    assert set(sent.__annotations__) <= names
