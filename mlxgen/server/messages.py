"""Anthropic's Messages API: its bodies, from which the description is made, and what they ask for.

``null`` means the default for every field that is not required. What only speaks of a remote
service (who pays, what is cached there) is accepted and has no effect. The order of what was said
is kept, so that a conversation that grows begins with the tokens that it began with before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from ..chat import Chat
from ..chat.turn import Effort, Plan, Turn
from .ask import Ask, Question, ask_of, planned
from .bodies import read
from .conversation import of_messages
from .errors import RequestError
from .fields import (
    MAX_NAME,
    MAX_STOPS,
    Body,
    Count,
    Json,
    ModelName,
    Piece,
    Schema,
    ShortText,
    TextRequest,
    about,
    json_form,
    named,
    option,
)
from .messages_reply import MessagesReply
from .peers import MESSAGES
from .served_model import ServedModel
from .tools import MAX_TOOLS, Choice, Function, functions_in, left_out, tool_use

Positive: TypeAlias = Annotated[Count, Field(ge=1)]


# ---- tools -------------------------------------------------------------------------------------


class FunctionTool(Function):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    parameters: Annotated[Json, Field(alias="input_schema")]


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
    messages: Annotated[list[Json], Field(min_length=1, description="the conversation so far")]
    system: str | list[Any] | None = about("instructions")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = about(
        "tools that the model may call"
    )
    tool_choice: ToolChoice | None = about("auto, any, the tool to call, or none")
    thinking: Thinking | None = about("whether to think before the answer, and how long")
    output_config: OutputConfig | None = about("how long to think, and the form of the text")
    chat_template_kwargs: Json | None = about("variables for the chat template")


class MessagesRequest(CountRequest, TextRequest):
    """A body of ``POST /v1/messages``."""

    max_tokens: Positive | None = about("maximum number of tokens to generate")
    stop_sequences: Annotated[list[ShortText], Field(max_length=MAX_STOPS)] | None = option("stop")


# ---- what it asks for --------------------------------------------------------------------------

_NAMES = {
    "messages": "messages",
    "prompt": "messages",
    "template": "chat_template_kwargs",
    "reasoning_effort": "output_config.effort",
}


def parse_messages(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """What a body asks for; raises ``RequestError``, which names the field at fault."""
    known = read(body, MessagesRequest, MESSAGES, served=model)
    request = known.request
    model = model.called(request.model)
    plan, names, unread = _planned(request, model)
    thinks = request.thinking is None or request.thinking.type != "disabled"
    return ask_of(
        known.also(unread),
        model,
        [Question.of_chat("messages", plan)],
        {"max_tokens": request.max_tokens, "stop": request.stop_sequences},
        partial(MessagesReply, stops=request.stop_sequences or (), thinks=thinks),
        names=names,
        plan=plan,
        left_out=left_out(request.tools, FunctionTool),
    )


def count_tokens(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """How many tokens the prompt of a request has."""
    request = read(body, CountRequest, MESSAGES, served=model).request
    plan, *_ = _planned(request, model.called(request.model))
    return {"input_tokens": len(plan.ids)}


def _planned(
    request: CountRequest, model: ServedModel
) -> tuple[Plan, Mapping[str, str], Sequence[str]]:
    """The plan of an answer, the names of what it is made from, and what of it was left out."""
    messages, unread = of_messages(request.system, request.messages)
    goes_on = messages[-1]["role"] == "assistant"
    if goes_on and not messages[-1]["content"]:
        raise RequestError.at(
            f"messages[{len(request.messages) - 1}].content",
            "expected some text to be continued, or a message of the user as the last one",
        )
    config, thinking = request.output_config, request.thinking
    silent = thinking is not None and thinking.type == "disabled"
    effort: Effort | None = "none" if silent else None if config is None else config.effort
    form = None if config is None else config.format
    budget, names = getattr(request, "thinking_budget", None), dict(_NAMES)
    if silent:
        names["reasoning_effort"] = "thinking"
    if budget is None:
        names["thinking_budget"] = "thinking.budget_tokens"
        budget = None if thinking is None or silent else thinking.budget_tokens
    choice = request.tool_choice
    turn = Turn(
        chat=Chat(
            messages, template=request.chat_template_kwargs or {}, continue_final_message=goes_on
        ),
        tools=tool_use(
            functions_in(request.tools, FunctionTool),
            _choice(choice),
            many=choice is None or not choice.disable_parallel_tool_use,
        ),
        form=None if form is None else json_form("output_config.format", form.schema_),
        effort=effort,
        thinking_budget=budget,
        usual_budget=model.thinking_budget,
    )
    return planned(turn, model, names), names, unread


def _choice(choice: ToolChoice | None) -> Choice:
    if choice is None:
        return Choice()
    if choice.type == "tool":
        return Choice("named", {"tool_choice.name": choice.name or ""})
    return Choice("required" if choice.type == "any" else choice.type)
