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
from ..chat.template.telling import Content, joined
from ..chat.turn import Effort, Plan, Turn
from .ask import Ask, Question, ask_of, planned
from .bodies import read
from .conversation import MAX_TOOLS, Choice, Function, functions_in, image_part, left_out, tool_use
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
from .history import messages_history
from .messages_reply import MessagesReply
from .peers import MESSAGES
from .served_model import ServedModel

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
    messages: Annotated[list[Message], Field(min_length=1, description="the conversation so far")]
    system: str | list[TextBlock] | None = about("instructions")
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
    known = read(body, MessagesRequest, MESSAGES, served=model, mend=messages_history)
    request = known.request
    model = model.called(request.model)
    plan, names = _planned(request, model)
    thinks = request.thinking is None or request.thinking.type != "disabled"
    return ask_of(
        known,
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
    request = read(body, CountRequest, MESSAGES, served=model, mend=messages_history).request
    plan, _ = _planned(request, model.called(request.model))
    return {"input_tokens": len(plan.ids)}


def _planned(request: CountRequest, model: ServedModel) -> tuple[Plan, Mapping[str, str]]:
    """The plan of an answer, and the names of what it is made from."""
    messages = rendered(request.system, request.messages)
    goes_on = request.messages[-1].role == "assistant"
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
    return planned(turn, model, names), names


def _choice(choice: ToolChoice | None) -> Choice:
    if choice is None:
        return Choice()
    if choice.type == "tool":
        return Choice("named", {"tool_choice.name": choice.name or ""})
    return Choice("required" if choice.type == "any" else choice.type)


# ---- messages for a chat template ---------------------------------------------------------------


def rendered(
    system: str | Sequence[TextBlock] | None, messages: Sequence[Message]
) -> list[dict[str, Any]]:
    """The messages for a chat template, instructions first; raises ``RequestError``."""
    plain: list[dict[str, Any]] = []
    blocks = [TextBlock(type="text", text=system)] if isinstance(system, str) else system or ()
    told = [block.text for block in blocks]
    if any(told):
        plain.append({"role": "system", "content": "\n\n".join(told)})
    for i, message in enumerate(messages):
        given = message.content
        said = [TextBlock(type="text", text=given)] if isinstance(given, str) else given
        if message.role == "assistant":
            plain.append(_answer(said))
        else:
            plain += _said(message.role, said, f"messages[{i}].content")
    return plain


def _answer(blocks: Sequence[Block]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
    answer: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        answer["reasoning_content"] = "".join(thoughts)
    if calls:
        answer["tool_calls"] = calls
    return answer


def _said(role: str, blocks: Sequence[Block], at: str) -> list[dict[str, Any]]:
    """A message for each result of a tool, and one for the texts between them."""
    messages: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place = f"{at}[{i}]"
        if isinstance(block, ToolResultBlock):
            given = [block.content] if isinstance(block.content, str) else block.content or ()
            content: Content = "Error: " if block.is_error else ""
            for j, part in enumerate(given):
                said = part if isinstance(part, str) else _shown(part, f"{place}.content[{j}]")
                content = joined(content, said, between="\n" if j else "") if content else said
            result = {"role": "tool", "tool_call_id": block.tool_use_id}
            messages.append({**result, "content": content})
        elif isinstance(block, (TextBlock, ImageBlock)):
            said = _shown(block, place)
            if messages and messages[-1]["role"] == role:
                said = joined(messages.pop()["content"], said)
            messages.append({"role": role, "content": said})
    return messages or [{"role": role, "content": ""}]


def _shown(block: TextBlock | ImageBlock, at: str) -> Content:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block.source, UrlSource):
        return [image_part(block.source.url, f"{at}.source.url")]
    address = f"data:{block.source.media_type};base64,{block.source.data}"
    return [image_part(address, f"{at}.source.data")]
