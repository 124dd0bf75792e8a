"""The bodies of the Responses API, from which ``/docs`` is made.

Invariant: ``null`` means the default for every field that is not required, and each field of
OpenAI's is here or in ``elsewhere``, so that it can be told from a misspelt one.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ...chat.turn import Effort
from ..fields import Body, Budget, Json, Piece, about
from ..ignored import NO_EFFECT
from ..openai.schemas import (
    MAX_TOOLS,
    Function,
    ObjectFormat,
    Schema,
    StreamOptions,
    TextFormat,
    standard_format,
)
from ..text_request import TextRequest
from .items import Input

# ---- tools -------------------------------------------------------------------------------------


class FunctionTool(Function):
    """A function that the client runs."""

    type: Literal["function"]


class OtherTool(Piece):
    """A tool that OpenAI would run, or that is not called with JSON; it is left out."""

    type: str


def _kind_of_tool(given: Any) -> str:
    is_function = isinstance(given, dict) and given.get("type") == "function"
    return "function" if is_function else "other"


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind_of_tool),
]


class NamedFunction(Body):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class AllowedTool(Piece):
    """A tool that may be called."""

    type: str
    name: str | None = None


class AllowedTools(Body):
    """Some of the tools, and whether one must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1)]


ToolChoice: TypeAlias = (
    Literal["none", "auto", "required"]
    | Annotated[NamedFunction | AllowedTools, Field(discriminator="type")]
)

# ---- the rest of a request ---------------------------------------------------------------------


class SchemaFormat(Body):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


Format: TypeAlias = Annotated[
    Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")],
    BeforeValidator(partial(standard_format, nested=False)),
]


class TextConfig(Body):
    """How the text is to be."""

    format: Format | None = about("text, json_object or json_schema")
    verbosity: Annotated[Literal["low", "medium", "high"] | None, NO_EFFECT] = about("no effect")


class ReasoningConfig(Piece):
    """How to think before the answer."""

    effort: Effort | None = about(
        "how long to think: in the model's own grades, or else as a thinking budget"
    )
    summary: Literal["auto", "concise", "detailed", "none"] | None = about(
        "return the thoughts, which are never shortened, as a summary; otherwise they are content"
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = about(
        "the old name of summary"
    )


class ResponsesRequest(TextRequest):
    """A body of ``POST /v1/responses``."""

    input: Input = Field(description="what the user says, or the conversation so far")
    instructions: str | None = about("instructions before the conversation")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = about(
        "functions that the model may call; other kinds of tools are left out"
    )
    tool_choice: ToolChoice | None = about("none, auto, required, or the function to call")
    parallel_tool_calls: bool | None = about(
        "whether one answer may make several calls (default: true)"
    )
    text: TextConfig | None = about("the form of the text")
    reasoning: ReasoningConfig | None = about("how to think before the answer")
    chat_template_kwargs: Json | None = about("variables for the chat template")
    max_output_tokens: Budget | None = about(
        "maximum number of tokens to generate, thoughts included"
    )
    stream_options: Annotated[StreamOptions | None, NO_EFFECT] = about(
        "no effect; a stream always ends with the usage"
    )
    truncation: Annotated[Literal["auto", "disabled"] | None, NO_EFFECT] = about(
        "no effect; a conversation that is too long is refused"
    )
    include: Annotated[list[str] | None, NO_EFFECT] = about(
        "no effect, except that log-probabilities are refused"
    )
    store: Annotated[bool | None, NO_EFFECT] = about("no effect; nothing is kept")
    service_tier: Annotated[str | None, NO_EFFECT] = about("no effect")
    client_metadata: Annotated[Json | None, NO_EFFECT] = about("no effect")
    metadata: Json | None = about("returned as it is")
    prompt_cache_key: str | None = about("returned as it is; prefixes are always cached")
    safety_identifier: str | None = about("returned as it is")
    user: str | None = about("returned as it is")
