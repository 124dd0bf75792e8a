"""OpenAI's Responses API: its bodies, what they ask for, and the events of its answers.

``null`` means the default for every field that is not required. Every item and every part that
begins is done exactly once, before the next one begins, with the concatenated text of its deltas.
Events are numbered from 0, without gaps. The whole response is the one in the last event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field, Tag

from ..chat import Chat
from ..chat.answer import AnswerReader
from ..chat.events import CallArguments, CallEnded, CallStarted, ChatEvent, Ended, Reasoning, Text
from ..chat.turn import Effort, Turn
from ..engine import Usage
from . import peers
from .ask import Api, Ask, ask_of, planned
from .bodies import Read
from .conversation import Item, goes_on, of_responses
from .errors import error_body
from .fields import Body, Budget, Format, Json, Piece, TextRequest, about, format_of
from .reply import Delivery, Event, name_of, prompt_progress, timings, used_of
from .served_model import ServedModel
from .tools import MAX_TOOLS, Function, OtherTool, ToolChoice, functions_are, tools_of

# ---- answers ------------------------------------------------------------------------------------

_FAILURES = {429: "rate_limit_exceeded"}


class Shape(NamedTuple):
    """A type of item.

    - ``letters``: the prefix of its ids; ``empty``: the item without its text.
    - ``text``: the name of the events for its text.
    - ``parts``: the name of the events for its only part; ``part``: that part without its text;
      ``place``: the item's field for it. An item without a part has its text in ``arguments``.
    """

    letters: str
    empty: Event
    text: str
    parts: str = ""
    place: Literal["content", "summary"] = "content"
    part: Event | None = None


MESSAGE = Shape(
    "msg",
    {"type": "message", "role": "assistant", "content": []},
    "response.output_text",
    "response.content_part",
    part={"type": "output_text", "text": "", "annotations": [], "logprobs": []},
)
THOUGHTS = Shape(
    "rs",
    {"type": "reasoning", "summary": [], "content": []},
    "response.reasoning_text",
    "response.content_part",
    part={"type": "reasoning_text", "text": ""},
)
SUMMARY = Shape(
    "rs",
    {"type": "reasoning", "summary": []},
    "response.reasoning_summary_text",
    "response.reasoning_summary_part",
    "summary",
    {"type": "summary_text", "text": ""},
)
CALL = Shape("fc", {"type": "function_call", "arguments": ""}, "response.function_call_arguments")


class ResponsesReply:
    """A ``Reply``. ``about``: what each response repeats of the request; ``thoughts``: the type of
    item for reasoning."""

    def __init__(self, ask: Ask, id: str, created: int, *, about: Event, thoughts: Shape) -> None:
        chosen = ask.options.sampling
        self._ask = ask
        self._thoughts = thoughts
        self._head: Event = {
            "id": id,
            "object": "response",
            "created_at": created,
            **about,
            "model": ask.name,
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
        }
        self._reader = AnswerReader(ask.questions[0].reading, partial(name_of, "call", id))
        self._items: list[Event] = []  # the items that are done
        self._kind: Shape | None = None  # of the item being written, if any
        self._item: Event = {}
        self._texts: list[str] = []
        self._place: Event = {}  # where its text belongs, for events
        self._ended: Ended | None = None
        self._whole: Event = {}
        self._numbered = 2  # the first two are those of ``start``, whenever it is called

    def start(self) -> list[Event]:
        begun = self._response("in_progress")
        return [
            {"type": f"response.{name}", "sequence_number": number, "response": begun}
            for number, name in enumerate(("created", "in_progress"))
        ]

    def alive(self) -> list[Event]:
        return self._numbers([_told("in_progress", self._response("in_progress"))])

    def take(self, news: Delivery) -> Sequence[Event]:
        """As ``Reply.take``: progress only on request, since each event repeats all the tools."""
        if not news.chunks:
            if news.progress is None or not self._ask.watched:
                return []
            told = prompt_progress(news.progress)
            return [{**event, "prompt_progress": told} for event in self.alive()]
        events: list[Event] = []
        for chunk in news.chunks:
            for event in self._reader.push(chunk, news.usage)[0]:
                events += self._shown(event)
        return self._numbers(events)

    def fail(self, error: BaseException) -> Event:
        failure = _failure(error, self._ask.names)
        [event] = self._numbers([_told("failed", self._response("failed", error=failure))])
        return event

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        assert self._ended is not None
        cut, used = self._ended.reason == "length", used_of(usages)
        status = "incomplete" if cut else "completed"
        response = self._response(
            status,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage={
                "input_tokens": used.prompt,
                "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
                "output_tokens": used.completion,
                "output_tokens_details": {"reasoning_tokens": self._ended.reasoning_tokens},
                "total_tokens": used.prompt + used.completion,
                "timings": timings(usages),
            },
        )
        return self._numbers([_told(status, response)])

    def fold(self, event: Event) -> None:
        """As ``Reply.fold``: the last event has the whole response."""
        self._whole = event.get("response", self._whole)

    def whole(self) -> Event:
        return self._whole

    # ---- events

    def _shown(self, event: ChatEvent) -> Iterator[Event]:
        """The events for an event of the chat."""
        if isinstance(event, Text):
            yield from self._more(MESSAGE, event.text)
        elif isinstance(event, Reasoning):
            yield from self._more(self._thoughts, event.text)
        elif isinstance(event, CallStarted):
            yield from self._begin(CALL, call_id=event.id, name=event.name)
        elif isinstance(event, CallArguments):
            yield from self._more(CALL, event.text)
        elif isinstance(event, CallEnded):
            yield from self._end()
        elif isinstance(event, Ended):
            self._ended = event
            yield from self._end("incomplete" if event.reason == "length" else "completed")

    def _begin(self, kind: Shape, **known: Any) -> Iterator[Event]:
        yield from self._end()
        index = len(self._items)
        id = name_of(kind.letters, self._head["id"], index)
        self._kind, self._texts = kind, []
        self._item = {"id": id, **kind.empty, **known, "status": "in_progress"}
        self._place = {"item_id": id, "output_index": index}
        yield _of_item("added", index, self._item)
        if kind.part is not None:
            self._place[f"{kind.place}_index"] = 0
            yield {"type": f"{kind.parts}.added", **self._place, "part": kind.part}

    def _more(self, kind: Shape, text: str) -> Iterator[Event]:
        if self._kind is not kind:
            yield from self._begin(kind)
        self._texts.append(text)
        extra: Event = {"logprobs": []} if kind is MESSAGE else {}
        yield {"type": f"{kind.text}.delta", **self._place, **extra, "delta": text}

    def _end(self, status: str = "completed") -> Iterator[Event]:
        kind, text = self._kind, "".join(self._texts)
        if kind is None:
            return
        field = "arguments" if kind.part is None else "text"
        extra: Event = {"logprobs": []} if kind is MESSAGE else {}
        yield {"type": f"{kind.text}.done", **self._place, **extra, field: text}
        item: Event = {**self._item, "status": status}
        if kind.part is None:
            item[field] = text
        else:
            part = {**kind.part, field: text}
            yield {"type": f"{kind.parts}.done", **self._place, "part": part}
            item[kind.place] = [part]
        yield _of_item("done", len(self._items), item)
        self._kind = None
        self._items.append(item)

    def _response(self, status: str, **known: Any) -> Event:
        empty: Event = {"error": None, "incomplete_details": None, "usage": None}
        output = {"status": status, "output": [*self._items]}
        return {**self._head, **empty, **output, **known}

    def _numbers(self, events: list[Event]) -> list[Event]:
        """The events, with their sequence numbers."""
        for event in events:
            event["sequence_number"] = self._numbered
            self._numbered += 1
        return events


def failed(error: BaseException, id: str) -> Event:
    """The only event of a stream that fails before its request was parsed."""
    response = {"id": id, "object": "response", "status": "failed", "output": []}
    event = _told("failed", {**response, "error": _failure(error, {})})
    return {**event, "sequence_number": 0}


def _failure(error: BaseException, names: Mapping[str, str]) -> dict[str, str]:
    status, body = error_body(error, names)
    code = body["error"]["code"]
    if code != "context_length_exceeded":
        code = _FAILURES.get(status, "server_error" if status >= 500 else "invalid_prompt")
    return {"code": code, "message": body["error"]["message"]}


def _of_item(what: str, index: int, item: Event) -> Event:
    return {"type": f"response.output_item.{what}", "output_index": index, "item": item}


def _told(status: str, response: Event) -> Event:
    return {"type": f"response.{status}", "response": response}


# ---- tools -------------------------------------------------------------------------------------


class FunctionTool(Function):
    """A function that the client runs."""

    type: Literal["function"]


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[OtherTool, Tag("<other>")],
    functions_are("function"),
]


# ---- the rest of a request ---------------------------------------------------------------------


class TextConfig(Body):
    """The format of the text."""

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

    rules = peers.RESPONSES
    input: str | list[Item] = Field(description="what the user says, or the conversation so far")
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


def ask_responses(known: Read[ResponsesRequest], model: ServedModel) -> Ask:
    """What a request asks for; raises ``RequestError``, which names the field at fault."""
    request = known.request
    parallel = request.parallel_tool_calls
    tools = tools_of(request.tools, request.tool_choice, at="tools[{}]", parallel=parallel)
    thinking = request.reasoning
    talk = of_responses(request.instructions, request.input)
    form = format_of(_FORMAT, None if request.text is None else request.text.format)
    turn = Turn(
        chat=Chat(
            talk.messages,
            template=request.chat_template_kwargs or {},
            continue_final_message=goes_on(request.input),
        ),
        tools=tools.used,
        form=form if request.check is None else model.registry.checked(form, request.check),
        effort=None if thinking is None else thinking.effort,
        thinking_budget=request.thinking_budget,
        usual_budget=model.thinking_budget,
    )
    wanted = thinking and (thinking.summary or thinking.generate_summary)
    names = {**_NAMES, **tools.names}
    thoughts = THOUGHTS if wanted in (None, "none") else SUMMARY
    return ask_of(
        known,
        model,
        {"max_tokens": request.max_output_tokens},
        partial(ResponsesReply, about=_about(request), thoughts=thoughts),
        planned(request, turn, model, names),
        names=names,
        left_out=[*talk.left_out, *tools.left_out],
    )


def _about(request: ResponsesRequest) -> Event:
    """What every response repeats of its request."""
    tools = [tool.model_dump() for tool in request.tools or () if isinstance(tool, FunctionTool)]
    text, thinking = request.text, request.reasoning
    given = None if text is None else text.format
    format: Event = (
        {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_unset=True)
    )
    if format["type"] == "json_schema":
        format = {**dict.fromkeys(("name", "description", "schema", "strict")), **format}
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
        "text": {"format": format, "verbosity": None},
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": tools,
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": request.user,
    }


RESPONSES = Api(
    "/v1/responses",
    "Answer a conversation, as in OpenAI's Responses API.",
    ResponsesRequest,
    ask_responses,
    "resp_",
    fail=failed,
)
