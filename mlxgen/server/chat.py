"""OpenAI's chat completions: their bodies, what they ask for, and a choice of their answer.

Every message gets to the template as plain JSON with its content as one string, or, if there are
images in it, as parts; parts of other kinds that are asked for are refused, and in the history they
are mended before (``history``). Other fields in messages are ignored. Every field of a request that
was accepted has had its effect, or has none on the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..chat import Chat
from ..chat.events import CallArguments, CallStarted, Reasoning, Text, joined
from ..chat.template.sandbox import RenderLimits
from ..chat.turn import Effort, Turn, prompt_of
from ..errors import MlxgenError
from ..images import plain
from ..tokens import Token
from .ask import Ask, Question, planned
from .bodies import read
from .conversation import CHAT_ROLES, message_schema, of_chat
from .errors import RequestError, as_request_error
from .fields import Alternatives, Body, Budget, Json, about, limit_of, option
from .generation import GenerationRequest, ask_of_generation, form_of, keep_of
from .openai_reply import ChoiceText, Delta, Finish, Kind, OpenAIReply
from .peers import OPENAI
from .reply import Event, name_of
from .served_model import ServedModel
from .tools import MAX_TOOLS, Choice, Function, tool_use

# ---- bodies --------------------------------------------------------------------------------------


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


Messages: TypeAlias = Annotated[
    list[Annotated[Json, message_schema(CHAT_ROLES)]],
    Field(min_length=1, description="the conversation so far"),
]


class ChatRequest(GenerationRequest):
    """A body of ``POST /v1/chat/completions``."""

    messages: Messages
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


# ---- what they ask for ---------------------------------------------------------------------------

NAMES = {"prompt": "messages", "template": "chat_template_kwargs"}
"""The fields that a chat comes from, for ``as_request_error``."""


def parse_chat(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """What a body asks for; raises ``RequestError``, which names the field at fault."""
    known = read(body, ChatRequest, OPENAI, served=model)
    request = known.request
    model = model.called(request.model)
    talk = of_chat(request.messages)
    plan = planned(turn_of(request, talk.messages, model), model, NAMES)
    return ask_of_generation(
        known.also(talk.left_out),
        model,
        [Question.of_chat("messages", plan)],
        {
            "max_tokens": _max_tokens(request),
            "top_logprobs": _top_logprobs(request),
            "prompt_logprobs": request.prompt_logprobs,
        },
        partial(OpenAIReply, _KIND, request),
        names=NAMES,
        plan=plan,
    )


def turn_of(request: ChatRequest, messages: Sequence[Json], model: ServedModel) -> Turn:
    """What a request means, with these messages for a chat template."""
    _check_continuation(request)
    return Turn(
        chat=Chat(
            messages,
            template=request.chat_template_kwargs or {},
            continue_final_message=_goes_on(request),
        ),
        tools=tool_use(
            functions_of(request.tools),
            _choice(request.tool_choice),
            many=request.parallel_tool_calls is not False,
        ),
        form=form_of(request, model.registry),
        effort=request.reasoning_effort,
        thinking_budget=request.thinking_budget,
        usual_budget=model.thinking_budget,
        keep=keep_of(request, model),
        raw_thoughts=request.reasoning_format == "none",
    )


def functions_of(tools: Sequence[Tool] | None) -> dict[str, Function]:
    """The functions of tools, by their places in a request."""
    return {f"tools[{i}].function": tool.function for i, tool in enumerate(tools or ())}


def _choice(choice: ToolChoice | None) -> Choice:
    if choice is None or isinstance(choice, str):
        return Choice(choice or "auto")
    if isinstance(choice, NamedTool):
        return Choice("named", {"tool_choice.function.name": choice.function.name})
    allowed = choice.allowed_tools
    at = "tool_choice.allowed_tools.tools"
    named = {f"{at}[{i}].function.name": tool.function.name for i, tool in enumerate(allowed.tools)}
    return Choice(allowed.mode, named)


def tokens_of(body: Mapping[str, Any], model: ServedModel) -> list[Token]:
    """The tokens of the prompt that a chat would have; ``add_generation_prompt: false`` begins no
    answer."""
    begins = body.get("add_generation_prompt") is not False
    given = body if begins else {**body, "add_generation_prompt": None}
    request = read(given, ChatRequest, OPENAI, served=model).request
    turn = turn_of(request, of_chat(request.messages).messages, model)
    turn = replace(turn, chat=replace(turn.chat, add_generation_prompt=begins))
    try:
        return plain(prompt_of(turn, model.dialect, RenderLimits()).tokens)
    except MlxgenError as error:
        raise as_request_error(error, NAMES) from error


def apply_template(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """The text of the prompt that a chat would have."""
    return {"prompt": model.vocabulary.decode(tokens_of(body, model))}


def _goes_on(request: ChatRequest) -> bool:
    """Whether the answer is the rest of the last message, in either way to say so."""
    last = request.messages[-1]
    begun = last["role"] == "assistant" and bool(last.get("prefix"))
    return begun if request.continue_final_message is None else request.continue_final_message


def _check_continuation(request: ChatRequest) -> None:
    """Raise ``RequestError`` unless a new message is asked for, or the rest of one."""
    going_on = _goes_on(request)
    if request.add_generation_prompt is going_on:
        value, other = ("true", "leave out") if going_on else ("false", "send")
        raise RequestError.at(
            "add_generation_prompt",
            f"{value} means that the answer is {'a new message' if going_on else 'the rest of one'}"
            f"; {other} continue_final_message: true",
        )
    last = request.messages[-1]
    if going_on and (last["role"] != "assistant" or last.get("tool_calls")):
        raise RequestError.at(
            "continue_final_message",
            "expected a last message with the role assistant and some text, to be continued",
        )


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError.at(
            "max_tokens", f"{old} contradicts max_completion_tokens={new}; send one of them"
        )
    return limit_of(new if new is not None else old)


def _top_logprobs(request: ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise RequestError.at("top_logprobs", "needs logprobs: true")
    return None


# ---- a choice of an answer -----------------------------------------------------------------------


class ChatChoice:
    """A ``ReplyChoice`` of a chat."""

    def __init__(self, request: GenerationRequest, ask: Ask, index: int, id: str) -> None:
        assert isinstance(request, ChatRequest)
        self._index = index
        self.text = ChoiceText(request, ask, index, partial(name_of, "call", id, index))
        self._called = 0
        self._thinks = request.include_reasoning is not False
        self._shown = (Text, CallStarted, CallArguments, *((Reasoning,) if self._thinks else ()))

    def opening(self) -> Event:
        """As ``ReplyChoice.opening``: who speaks."""
        return self._choice({"role": "assistant", "content": "", "refusal": None})

    def nothing(self) -> Event:
        return self._choice({})

    def events(self, delta: Delta) -> list[Event]:
        extra = self.text.marks(delta)
        if self.text.logprobs:
            logprobs = self._logprobs(delta)
            if logprobs["content"] or "reasoning_content" in logprobs:
                extra["logprobs"] = {**logprobs, "content": logprobs["content"] or None}
        parts = self._deltas(delta)
        if extra and not parts and delta.finish is None:
            parts = [{}]
        choices = [self._choice(part) for part in parts]
        if delta.finish is not None:
            choices.append(self._choice({}, delta.finish))
        if extra:
            choices[0].update(extra)
        return choices

    def whole(self, folded: Event) -> Event:
        delta = folded.pop("delta")
        content, calls = delta.get("content") or "", delta.get("tool_calls")
        message: Event = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            for call in calls:
                del call["index"]
            message |= {"content": content or None, "tool_calls": calls}
        if delta.get("reasoning"):
            message |= _told(delta["reasoning"])
        if self.text.logprobs:
            told = folded["logprobs"] or {"refusal": None}
            folded["logprobs"] = {**told, "content": told.get("content") or []}
        return {**folded, "message": message}

    def _choice(self, delta: dict[str, Any], finish: Finish | None = None) -> Event:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _deltas(self, delta: Delta) -> list[dict[str, Any]]:
        """The messages' deltas, in the order of their events; neighbours of a kind are one."""
        deltas: list[dict[str, Any]] = []
        for event in joined([e for e in delta.events if isinstance(e, self._shown)]):
            if isinstance(event, Text):
                deltas.append({"content": event.text})
            elif isinstance(event, Reasoning):
                deltas.append(_told(event.text))
            elif isinstance(event, CallStarted):
                call = {"index": self._called, "id": event.id, "type": "function"}
                function = {"name": event.name, "arguments": ""}
                deltas.append({"tool_calls": [{**call, "function": function}]})
                self._called += 1
            elif isinstance(event, CallArguments) and deltas and "tool_calls" in deltas[-1]:
                deltas[-1]["tool_calls"][0]["function"]["arguments"] = event.text
            elif isinstance(event, CallArguments):
                more = {"index": self._called - 1, "function": {"arguments": event.text}}
                deltas.append({"tool_calls": [more]})
        return deltas

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        """The entries of the tokens in each part that is returned."""
        entry = self.text.writer.chat_entry
        content = [entry(t, "content") for t in delta.tokens if "content" in t.parts]
        logprobs: dict[str, Any] = {"content": content, "refusal": None}
        if self._thinks:
            thoughts = [entry(t, "reasoning") for t in delta.tokens if "reasoning" in t.parts]
            logprobs |= {"reasoning_content": thoughts} if thoughts else {}
        return logprobs


def _told(text: str) -> Event:
    """Thoughts under both names by which clients look for them."""
    return {"reasoning_content": text, "reasoning": text}


_KIND = Kind("chat.completion.chunk", "chat.completion", ChatChoice, shares_prompt=True)
