"""The bodies of chat and completion requests, from which ``/docs`` is made.

Invariant: ``null`` means the default for every field that is not required, and each field of
OpenAI's is here, or in ``peers`` because it has no effect or is not supported, so that it can be
told from a misspelt one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from ...chat.turn import Effort
from ..fields import (
    MAX_NAME,
    Alternatives,
    Body,
    Budget,
    Choices,
    Count,
    Drafted,
    Held,
    Int,
    Json,
    Limit,
    Off,
    Piece,
    Resampled,
    about,
    option,
)
from ..ignored import NO_EFFECT
from ..text_request import TextRequest
from .messages import Message, TextPart

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
MAX_BANNED = 256
MAX_PROMPTS = 256
MAX_ANSWERS = 256
MAX_TOOLS = 2048
MAX_OPTIONS = 4096
MAX_HOOKS = 16
MAX_REGEX = 20_000
MAX_GRAMMAR = 200_000

Schema: TypeAlias = Annotated[
    Json | bool, WithJsonSchema({"type": ["object", "boolean"], "description": "a JSON schema"})
]
ShortText: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Regex: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_REGEX)]
Grammar: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]
Pieces: TypeAlias = Annotated[list[ShortText], Field(max_length=MAX_STOPS)]


def kind_of_prompt(given: Any) -> str | None:
    """Which of ``Prompts`` this is meant to be."""
    if not isinstance(given, list):
        return "text" if isinstance(given, str) else None
    if any(isinstance(item, list) for item in given):
        return "several"
    texts = sum(isinstance(item, str) for item in given)
    return "ids" if not texts else "texts" if texts == len(given) else "mixed"


def _kind_of_one(given: Any) -> str:
    """Which prompt this is meant to be, of several."""
    kind = kind_of_prompt(given)
    return "text" if kind == "text" else "mixed" if kind in ("mixed", "texts") else "ids"


def _kind_of_piece(given: Any) -> str:
    return "text" if isinstance(given, str) else "id"


def _any_of(schema: Any) -> None:
    """Describe alternatives as such of which several may fit, as a list of ids does."""
    parts = list(schema.values()) if isinstance(schema, dict) else schema
    for part in parts:
        if isinstance(part, dict | list):
            _any_of(part)
    if isinstance(schema, dict) and "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")


Text: TypeAlias = Annotated[str, Field(min_length=1)]
Ids: TypeAlias = Annotated[list[Int], Field(min_length=1)]
Mixed: TypeAlias = list[
    Annotated[
        Annotated[Text, Tag("text")] | Annotated[Int, Tag("id")], Discriminator(_kind_of_piece)
    ]
]
"""Texts and token ids, one after the other."""
Prompts: TypeAlias = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[Mixed, Tag("mixed")]
    | Annotated[list[Text], Field(max_length=MAX_PROMPTS), Tag("texts")]
    | Annotated[
        list[
            Annotated[
                Annotated[Text, Tag("text")]
                | Annotated[Ids, Tag("ids")]
                | Annotated[Mixed, Tag("mixed")],
                Discriminator(_kind_of_one),
            ]
        ],
        Field(max_length=MAX_PROMPTS),
        Tag("several"),
    ],
    Discriminator(
        kind_of_prompt,
        custom_error_type="literal_error",
        custom_error_context={"expected": "a string, a list of token ids, or a list of these"},
    ),
]


class StreamOptions(Body):
    """What a stream has in addition to the answer."""

    include_usage: bool | None = None
    include_obfuscation: Off | None = None
    continuous_usage_stats: Annotated[bool | None, NO_EFFECT] = None  # the end has the usage


class NamedSchema(Body):
    """A JSON schema with its name."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Body):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


def standard_format(given: Any, *, nested: bool = True) -> Any:
    """A format as OpenAI's chat completions have it, ``nested``, or their Responses; peers put the
    schema beside the type, or in the other API's place, or name the type otherwise."""
    if not isinstance(given, dict) or given.get("type") not in (
        "json_object",
        "json_schema",
        "json",
    ):
        return given
    inner = given.get("json_schema")
    named = dict(inner) if isinstance(inner, dict) else {}
    beside = {key: value for key, value in given.items() if key not in ("type", "json_schema")}
    if "value" in beside:
        beside["schema"] = beside.pop("value")
    if given["type"] != "json_schema" and named.get("schema", beside.get("schema")) is None:
        return {"type": "json_object"} if set(beside) <= {"schema"} else given
    if any(named.get(key, value) != value for key, value in beside.items()):
        return given  # it says two things
    whole = {**named, **{key: value for key, value in beside.items() if value is not None}}
    return {"type": "json_schema", **({"json_schema": whole} if nested else whole)}


ResponseFormat: TypeAlias = Annotated[
    Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")],
    BeforeValidator(standard_format),
]


class Function(Piece):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME}}}$")]
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class FunctionDefinition(Function, extra="forbid"):
    """The function of a tool."""

    cache_control: Json | None = None  # accepted; prefixes are always cached


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: Json | None = None


class FunctionName(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """Some of the tools, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(Body):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = (
    Literal["none", "auto", "required"]
    | Annotated[NamedTool | AllowedToolChoice, Field(discriminator="type")]
)


class Prediction(Body):
    """What the text will be for the most part."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class NamedHook(Body):
    """One of the operator's hooks, with its arguments."""

    name: Text
    arguments: Json | None = None


class GenerationRequest(TextRequest):
    """What chat and completion requests have in common."""

    stream_options: StreamOptions | None = about("what a stream has in addition to the answer")
    n: Choices | None = about("number of answers for each prompt (default: 1)")
    max_tokens: Budget | None = about(
        "maximum number of tokens to generate; -1 is as many as the context holds"
    )
    stop: ShortText | Pieces | None = option("stop")
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOPS)] | None = option(
        "stop_tokens"
    )
    banned: Annotated[list[ShortText], Field(max_length=MAX_BANNED)] | None = about(
        "strings that never appear in the answer"
    )
    heal: bool | None = option("heal")
    num_draft_tokens: Drafted | None = option("num_draft_tokens", also="; 0 is no draft")
    prediction: Prediction | None = option("prediction")
    prefix_tokens: list[Count] | None = option("prefix")
    response_format: ResponseFormat | None = about(
        "the format of the text: text, json_object or json_schema"
    )
    json_schema: Schema | None = about(
        "the text is JSON that matches this schema; objects have only the keys that it names, "
        "unless additionalProperties allows more"
    )
    regex: Regex | None = about("the whole text matches this regular expression")
    grammar: Grammar | None = about("the text follows this grammar, in Lark or GBNF")
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_OPTIONS)] | None = about(
        "the text is one of these"
    )
    close_json: bool | None = option("close_json")
    prompt_logprobs: Alternatives | None = option("prompt_logprobs", also="; not for streams")
    truncate_prompt_tokens: Budget | None = about(
        "keep this many of the prompt's last tokens; -1 is as many as fit"
    )
    return_token_ids: bool | None = about(
        "add token_ids to each choice, marks to logprobs, and prompt_token_ids to a whole answer"
    )
    timings_per_token: bool | None = about(
        "add timings to each event of a stream and to a whole answer: tokens and milliseconds"
    )
    program: Text | None = about(
        "a program of the server's operator that writes the text; GET /v1/programs lists them"
    )
    controller: Text | None = about("a controller of the server's operator, likewise")
    hooks: Annotated[list[Text | NamedHook], Field(max_length=MAX_HOOKS)] | None = about(
        "hooks of the server's operator, by name or as an object with name and arguments"
    )
    arguments: Json | None = about("arguments of the program, the controller or the one hook")
    allow_retract: bool | None = about(
        "send text at once, and retract in an event if its last characters are taken back"
    )
    hold_tokens: Held | None = option("hold_tokens")
    max_resample: Resampled | None = option("max_resample")


class ChatRequest(GenerationRequest):
    """A body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, description="the conversation so far")]
    max_completion_tokens: Budget | None = about("the new name of max_tokens")
    logprobs: bool | None = about("report log-probabilities")
    top_logprobs: Alternatives | None = option("top_logprobs")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = about(
        "functions that the model may call"
    )
    tool_choice: ToolChoice | None = about("none, auto, required, or the function to call")
    parallel_tool_calls: bool | None = about(
        "whether one answer may make several calls (default: true)"
    )
    chat_template_kwargs: Json | None = about("variables for the chat template")
    continue_final_message: bool | None = about("continue the last message instead of adding one")
    add_generation_prompt: bool | None = about("may be false only with continue_final_message")
    include_reasoning: bool | None = about("include the model's thoughts (default: true)")
    reasoning_effort: Effort | None = about(
        "how long to think: in the model's own grades, or else as a thinking budget"
    )
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = about(
        "none leaves the thoughts in the text, with their marks"
    )
    modalities: list[Literal["text"]] | None = about("text is the only modality")


class CompletionRequest(GenerationRequest):
    """A body of ``POST /v1/completions``."""

    prompt: Prompts = Field(
        description="a string, token ids, both in one list, or a list of several prompts",
        json_schema_extra=_any_of,
    )
    suffix: str | None = about("what comes after the text, for models that can fill in a gap")
    max_tokens: Limit | None = about(
        "maximum number of tokens to generate (default: 16; 0 only with echo)"
    )
    logprobs: Alternatives | None = option("top_logprobs")
    echo: bool | None = about(
        "return the prompt before the text, with its log-probabilities if logprobs is set"
    )


class LlamaRequest(CompletionRequest):
    """A body of ``POST /completion``."""

    response_fields: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = about(
        "return these fields of the answer only, such as content or timings/prompt_n"
    )


class OtherFile(Piece):
    """A file, or a part of one, that the model sees before the one with the gap."""

    filename: str = "other"
    text: str


class InfillRequest(LlamaRequest):
    """A body of ``POST /infill``."""

    prompt: str | None = about("what comes right before the gap, after input_prefix")  # type: ignore[assignment]
    input_prefix: str = Field(description="what comes before the gap")
    input_suffix: str = Field(description="what comes after the gap")
    input_extra: Annotated[list[OtherFile], Field(max_length=MAX_PROMPTS)] | None = about(
        "other files, each with filename and text"
    )

    @property
    def whole_prefix(self) -> str:
        """All that comes before the gap."""
        return self.input_prefix + (self.prompt or "")
