"""The bodies of the Messages API, from which ``/docs`` is made.

Invariant: ``null`` means the default for every field that is not required. What only speaks of a
remote service (who pays, what is cached there) is accepted and has no effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from ...chat.turn import Effort
from ..fields import MAX_NAME, Body, Count, Json, ModelName, Piece, about, named, option
from ..ignored import NO_EFFECT
from ..openai.schemas import MAX_STOPS, MAX_TOOLS, Schema, ShortText
from ..text_request import TextRequest

Positive: TypeAlias = Annotated[Count, Field(ge=1)]


# ---- blocks of messages ------------------------------------------------------------------------


class TextBlock(Piece):
    """A piece of text."""

    type: Literal["text"]
    text: str


class Base64Source(Piece):
    """An image itself."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Piece):
    """Where an image is: an address to fetch, or one that begins with data:."""

    type: Literal["url"]
    url: str


class ImageBlock(Piece):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class ToolUseBlock(Piece):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class ThinkingBlock(Piece):
    """What an earlier answer thought."""

    type: Literal["thinking"]
    thinking: str


class RedactedBlock(Piece):
    """Thoughts that only another service can read; they are left out."""

    type: Literal["redacted_thinking"]


class ToolResultBlock(Piece):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]] | None = (
        None
    )
    is_error: bool | None = None


Block: TypeAlias = Annotated[
    TextBlock | ImageBlock | ToolUseBlock | ThinkingBlock | RedactedBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class Message(Piece):
    """What somebody says, or an earlier answer."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


# ---- tools -------------------------------------------------------------------------------------


class FunctionTool(Piece):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    input_schema: Json
    strict: bool | None = None

    @property
    def parameters(self) -> Json:
        """The schema by its name in other APIs."""
        return self.input_schema


class ServiceTool(Piece):
    """A tool that a remote service would run, or one whose schema only its models know."""

    type: str
    name: str | None = None


def _kind_of_tool(given: Any) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    return "function" if kind in (None, "custom") else "service"


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[ServiceTool, Tag("service")],
    Discriminator(_kind_of_tool),
]


class ToolChoice(Body):
    """Whether a tool may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


# ---- the rest of a request ---------------------------------------------------------------------


class Thinking(Piece):
    """Whether to think before the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None


class SchemaFormat(Body):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(Body):
    """How the answer is to be."""

    effort: Effort | None = about(
        "how long to think: in the model's own grades, or else as a thinking budget"
    )
    format: SchemaFormat | None = about("the form of the text")


class CountRequest(Body):
    """A body of ``POST /v1/messages/count_tokens``."""

    model: ModelName | None = named()
    messages: Annotated[list[Message], Field(min_length=1, description="the conversation so far")]
    system: str | list[TextBlock] | None = about("instructions")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = about(
        "tools that the model may call"
    )
    tool_choice: ToolChoice | None = about("auto, any, the tool to call, or none")
    thinking: Thinking | None = about("whether to think before the answer, and how long")
    output_config: OutputConfig | None = about("how long to think, and the form of the text")
    chat_template_kwargs: Json | None = about("variables for the chat template")
    cache_control: Annotated[Json | None, NO_EFFECT] = about(
        "no effect; prefixes are always cached"
    )
    context_management: Annotated[Json | None, NO_EFFECT] = about("no effect")


class MessagesRequest(CountRequest, TextRequest):
    """A body of ``POST /v1/messages``."""

    max_tokens: Positive | None = about("maximum number of tokens to generate")
    stop_sequences: Annotated[list[ShortText], Field(max_length=MAX_STOPS)] | None = option("stop")
    metadata: Annotated[Json | None, NO_EFFECT] = about("no effect")
    service_tier: Annotated[str | None, NO_EFFECT] = about("no effect")
