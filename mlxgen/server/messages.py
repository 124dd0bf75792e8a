"""Anthropic's Messages API: its bodies, what they ask for, and the events of its answers.

``null`` means the default for every field that is not required. Fields that only concern a remote
service (who pays, what is cached there) are accepted and have no effect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Tag

from ..chat import Chat
from ..chat.answer import AnswerReader
from ..chat.events import CallArguments, CallEnded, CallStarted, ChatEvent, Ended, Reasoning, Text
from ..chat.turn import Effort, Turn, plan_turn
from ..engine import Usage
from ..errors import MlxgenError
from . import peers
from .ask import Api, Ask, ask_of, planned
from .bodies import Read
from .conversation import Message, of_messages
from .errors import RequestError, as_messages_error, as_request_error, error_body
from .fields import (
    MAX_NAME,
    MAX_STOPS,
    Body,
    Count,
    Format,
    Json,
    Lenient,
    ModelName,
    Piece,
    ShortText,
    TextRequest,
    about,
    format_of,
    named,
    option,
)
from .reply import Aside, Delivery, Event, Sent, name_of, prompt_progress, timings, used_of
from .served_model import ServedModel
from .tools import MAX_TOOLS, Function, OtherTool, ToolChoice, functions_are, tools_of
from .wire import to_text

# ---- answers ------------------------------------------------------------------------------------

_REASONS = {"length": "max_tokens", "calls": "tool_use"}


class MessagesReply:
    """A ``Reply``. ``stops``: the client's own; ``thinks``: whether thoughts are shown."""

    def __init__(
        self, ask: Ask, id: str, created: int, *, stops: Collection[str], thinks: bool
    ) -> None:
        [question] = ask.questions
        self._ask = ask
        self._stops = frozenset(stops)
        self._thinks = thinks
        self._begun = False
        self._id = id
        self._reader = AnswerReader(question.reading, partial(name_of, "toolu", id))
        self._index = -1  # of the newest block
        self._open: str | None = None  # the type of the open block
        self._thoughts = hashlib.blake2b(digest_size=24)
        self._usage = Usage(prompt_tokens=len(question.prompt.tokens))
        self._held: list[Event] = []  # until the number of cached tokens is known
        self._whole: Event = {}
        self._texts: list[str] = []  # of its last block

    def start(self) -> list[Event]:
        """As ``Reply.start``: the model, and the size of the prompt."""
        self._begun = True
        message: Event = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._ask.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._usage),
        }
        return [{"type": "message_start", "message": message}]

    def take(self, news: Delivery) -> Sequence[Sent]:
        progress, sent = news.progress, list[Sent]()
        if progress is not None:
            self._usage = progress.usage
        if news.usage is not None:
            self._usage = news.usage
        for chunk in news.chunks:
            events, _ = self._reader.push(chunk, self._usage)
            self._held += [new for event in events for new in self._shown(event)]
        if not news.chunks and progress is not None and self._ask.watched:
            sent.append(_ping(prompt_progress=prompt_progress(progress)))
        if not news.chunks or progress is None or progress.prefilled or news.usage is not None:
            sent += self._held
            self._held = []
        return sent

    def alive(self) -> list[Aside]:
        # Readers expect ``message_start`` before any other event
        return [_ping() if self._begun else Aside(": the prompt is being run")]

    def fail(self, error: BaseException) -> Event:
        return as_messages_error(*error_body(error, self._ask.names))

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        return [{"type": "message_stop"}]

    # ---- the whole message

    def fold(self, event: Event) -> None:
        match event["type"]:
            case "message_start":
                self._whole = event["message"]
            case "content_block_start":
                self._whole["content"].append(event["content_block"])
            case "content_block_delta":
                for name, value in event["delta"].items():
                    if name == "signature":
                        self._whole["content"][-1][name] = value
                    elif name != "type":
                        self._texts.append(value)
            case "content_block_stop":
                text, self._texts = "".join(self._texts), []
                block = self._whole["content"][-1]
                is_call = block["type"] == "tool_use"
                block["input" if is_call else block["type"]] = _arguments(text) if is_call else text
            case "message_delta":
                self._whole |= {**event["delta"], "usage": event["usage"]}

    def whole(self) -> Event:
        return self._whole

    # ---- events

    def _shown(self, event: ChatEvent) -> list[Event]:
        if isinstance(event, Text):
            return self._more("text", {"text": ""}, {"type": "text_delta", "text": event.text})
        if isinstance(event, Reasoning):
            if not self._thinks:
                return []
            self._thoughts.update(event.text.encode("utf-8", "replace"))
            delta = {"type": "thinking_delta", "thinking": event.text}
            return self._more("thinking", {"thinking": "", "signature": ""}, delta)
        if isinstance(event, CallStarted):
            call = {"id": event.id, "name": event.name, "input": {}}
            return [*self._stop(), self._start("tool_use", call)]
        if isinstance(event, CallArguments):
            return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
        if isinstance(event, CallEnded):
            return self._stop()
        return [*self._stop(), self._ended(event)] if isinstance(event, Ended) else []

    def _more(self, kind: str, empty: Event, delta: Event) -> list[Event]:
        if self._open == kind:
            return [self._delta(delta)]
        return [*self._stop(), self._start(kind, empty), self._delta(delta)]

    def _start(self, kind: str, empty: Event) -> Event:
        self._index += 1
        self._open = kind
        block = {"type": kind, **empty}
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> list[Event]:
        """The end of the open block. Thoughts get a signature: clients need it to return them."""
        if self._open is None:
            return []
        signed = []
        if self._open == "thinking":
            signature = self._thoughts.hexdigest()
            signed = [self._delta({"type": "signature_delta", "signature": signature})]
        self._open = None
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    def _ended(self, ended: Ended) -> Event:
        reason, stop = _REASONS.get(ended.reason, "end_turn"), None
        if reason == "end_turn" and isinstance(ended.stop, str) and ended.stop in self._stops:
            reason, stop = "stop_sequence", ended.stop
        delta = {"stop_reason": reason, "stop_sequence": stop}
        usage = {**_usage(self._usage), "timings": timings([self._usage])}
        return {"type": "message_delta", "delta": delta, "usage": usage}


def _ping(**more: Any) -> Aside:
    return Aside(f"event: ping\ndata: {to_text({'type': 'ping', **more})}")


def _usage(usage: Usage) -> dict[str, int]:
    used = used_of([usage])
    return {
        "input_tokens": used.prompt - used.cached,
        "cache_creation_input_tokens": 0,  # writing the cache costs nothing
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.completion,
    }


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call; empty if it was cut off."""
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


# ---- tools -------------------------------------------------------------------------------------


class FunctionTool(Function):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    parameters: Annotated[Json, Field(alias="input_schema")]


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[OtherTool, Tag("<other>")],
    functions_are(None, "custom"),
]


# ---- the rest of a request ---------------------------------------------------------------------


class Thinking(Piece):
    """Whether to think before the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None


class OutputConfig(Body):
    """The effort and the form of the answer."""

    effort: Effort | None = about(
        "how long to think: in the model's own grades, or else as a thinking budget"
    )
    format: Format | None = about("the form of the text")


class CountRequest(Lenient):
    """A body of ``POST /v1/messages/count_tokens``."""

    rules = peers.MESSAGES
    model: ModelName | None = named()
    messages: Annotated[list[Message], Field(min_length=1, description="the conversation so far")]
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

    max_tokens: Annotated[int, Field(ge=1)] | None = about("maximum number of tokens to generate")
    stop_sequences: Annotated[list[ShortText], Field(max_length=MAX_STOPS)] | None = option("stop")


# ---- what it asks for --------------------------------------------------------------------------

_NAMES = {
    "messages": "messages",
    "prompt": "messages",
    "template": "chat_template_kwargs",
    "reasoning_effort": "output_config.effort",
}


def ask_messages(known: Read[MessagesRequest], model: ServedModel) -> Ask:
    """What a request asks for; raises ``RequestError``, which names the field at fault."""
    request = known.request
    turn, names, left_out = _turn(request, model)
    thinks = request.thinking is None or request.thinking.type != "disabled"
    return ask_of(
        known,
        model,
        {"max_tokens": request.max_tokens, "stop": request.stop_sequences},
        partial(MessagesReply, stops=request.stop_sequences or (), thinks=thinks),
        planned(request, turn, model, names),
        names=names,
        left_out=left_out,
    )


def count_tokens(request: CountRequest, model: ServedModel) -> dict[str, Any]:
    """The tokens of a conversation, as in Anthropic's Messages API."""
    turn, names, _ = _turn(request, model)
    try:
        return {"input_tokens": len(plan_turn(turn, model.dialect).ids)}
    except MlxgenError as error:
        raise as_request_error(error, names) from error


def _turn(
    request: CountRequest, model: ServedModel
) -> tuple[Turn, Mapping[str, str], Sequence[str]]:
    """What a request means, the names of the fields that it came from, and what was left out."""
    talk = of_messages(request.system, request.messages)
    messages = talk.messages
    goes_on = messages[-1]["role"] == "assistant"
    if goes_on and not messages[-1]["content"]:
        raise RequestError.at(
            f"messages[{len(request.messages) - 1}].content",
            "expected some text to be continued, or a message of the user as the last one",
        )
    config, thinking = request.output_config, request.thinking
    silent = thinking is not None and thinking.type == "disabled"
    effort: Effort | None = "none" if silent else None if config is None else config.effort
    form = format_of("output_config.format", None if config is None else config.format)
    if isinstance(request, MessagesRequest) and request.check is not None:
        form = model.registry.checked(form, request.check)
    budget, names = getattr(request, "thinking_budget", None), dict(_NAMES)
    if silent:
        names["reasoning_effort"] = "thinking"
    if budget is None:
        names["thinking_budget"] = "thinking.budget_tokens"
        budget = None if thinking is None or silent else thinking.budget_tokens
    tools = tools_of(request.tools, request.tool_choice, at="tools[{}]", schema="input_schema")
    names |= tools.names
    turn = Turn(
        chat=Chat(
            messages, template=request.chat_template_kwargs or {}, continue_final_message=goes_on
        ),
        tools=tools.used,
        form=form,
        effort=effort,
        thinking_budget=budget,
        usual_budget=model.thinking_budget,
    )
    return turn, names, [*talk.left_out, *tools.left_out]


MESSAGES = Api(
    "/v1/messages",
    "Answer a conversation, as in Anthropic's Messages API.",
    MessagesRequest,
    ask_messages,
    "msg_",
    fail=lambda error, _: as_messages_error(*error_body(error)),
)
