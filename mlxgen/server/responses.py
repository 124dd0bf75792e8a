"""OpenAI's Responses API: its bodies, from which the description is made, and what they ask for.

``null`` means the default for every field that is not required. The order of what was said is kept,
so that a conversation that grows begins with the tokens that it began with before; what the model
said between two inputs is one message, with its thoughts and its calls: that is how it was
generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ..chat import Chat
from ..chat.calls.use import Form
from ..chat.turn import Effort, Turn
from ..filters import JsonObject
from .ask import Ask, Question, ask_of, planned
from .bodies import read
from .conversation import goes_on, of_responses
from .errors import RequestError
from .fields import (
    Body,
    Budget,
    Json,
    ObjectFormat,
    Piece,
    Schema,
    TextFormat,
    TextRequest,
    about,
    json_form,
    limit_of,
    standard_format,
)
from .peers import RESPONSES
from .reply import Event
from .responses_reply import SUMMARY, THOUGHTS, ResponsesReply
from .served_model import ServedModel
from .tools import MAX_TOOLS, Choice, Function, functions_in, left_out, tool_use

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

    input: str | list[Json] = Field(description="what the user says, or the conversation so far")
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
    metadata: Json | None = about("returned as it is")
    prompt_cache_key: str | None = about("returned as it is; prefixes are always cached")
    safety_identifier: str | None = about("returned as it is")
    user: str | None = about("returned as it is")


# ---- what it asks for --------------------------------------------------------------------------

_FORMAT = "text.format"
_NAMES = {
    "filters": _FORMAT,
    "prompt": "input",
    "messages": "input",
    "template": "chat_template_kwargs",
    "reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
}


def parse_responses(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """What a body asks for; raises ``RequestError``, which names the field at fault."""
    known = read(body, ResponsesRequest, RESPONSES, served=model)
    request = known.request
    model = model.called(request.model)
    functions = functions_in(request.tools, FunctionTool)
    thinking = request.reasoning
    talk = of_responses(request.instructions, request.input)
    turn = Turn(
        chat=Chat(
            talk.messages,
            template=request.chat_template_kwargs or {},
            continue_final_message=goes_on(request.input),
        ),
        tools=tool_use(functions, _choice(request), many=request.parallel_tool_calls is not False),
        form=_form(request),
        effort=None if thinking is None else thinking.effort,
        thinking_budget=request.thinking_budget,
        usual_budget=model.thinking_budget,
    )
    plan = planned(turn, model, _NAMES)
    wanted = thinking and (thinking.summary or thinking.generate_summary)
    thoughts = THOUGHTS if wanted in (None, "none") else SUMMARY
    return ask_of(
        known.also(talk.left_out),
        model,
        [Question.of_chat("input", plan)],
        {"max_tokens": limit_of(request.max_output_tokens)},
        partial(ResponsesReply, about=_about(request, functions), thoughts=thoughts),
        names=_NAMES,
        plan=plan,
        left_out=left_out(request.tools, FunctionTool),
    )


def _choice(request: ResponsesRequest) -> Choice:
    choice = request.tool_choice
    if choice is None:
        return Choice()
    if isinstance(choice, str):
        return Choice(choice)
    if isinstance(choice, NamedFunction):
        return Choice("named", {"tool_choice.name": choice.name})
    named = {
        f"tool_choice.tools[{i}].name": tool.name or ""
        for i, tool in enumerate(choice.tools)
        if tool.type == "function"
    }
    if not named and choice.mode == "auto":  # nothing but tools that are left out
        return Choice("none")
    if not named:
        raise RequestError.at("tool_choice.tools", "there is no function among them; add one")
    return Choice(choice.mode, named)


def _form(request: ResponsesRequest) -> Form | None:
    format = None if request.text is None else request.text.format
    if format is None or isinstance(format, TextFormat):
        return None
    if isinstance(format, SchemaFormat):
        return json_form(_FORMAT, format.schema_)
    return Form(_FORMAT, JsonObject(), is_json=True)


def _about(request: ResponsesRequest, functions: Mapping[str, FunctionTool]) -> Event:
    """What every response says of its request."""
    tools = [tool.model_dump() for tool in functions.values()]
    choice, text, thinking = request.tool_choice, request.text, request.reasoning
    format = None if text is None or text.format is None else text.format
    shown = {"type": "text"} if format is None else format.model_dump(by_alias=True)
    return {
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": None if thinking is None else thinking.effort,
            "summary": None if thinking is None else thinking.summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": False,
        "text": {"format": shown, "verbosity": None},
        "tool_choice": "auto"
        if choice is None
        else choice
        if isinstance(choice, str)
        else choice.model_dump(),
        "tools": tools,
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": request.user,
    }
