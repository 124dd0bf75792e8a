"""OpenAI's chat completions and completions: their bodies, what these ask for, and their answers.

``null`` means the default for every field that is not required. An accepted field either has its
effect, or could not change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, WithJsonSchema

from ..chat import Chat
from ..chat.events import CallArguments, CallStarted, Reasoning, Text
from ..chat.turn import Effort, Turn
from ..engine import Prompt
from ..errors import PromptError
from .ask import Api, Ask, MakeReply, Meant, Question, planned
from .bodies import Read, name_used
from .choices import Choice, ChoicesReply, Delta, Finish
from .conversation import ChatMessage, of_chat
from .errors import RequestError
from .fields import Body, Budget, Json, Limit, about, option
from .generation import (
    MAX_PROMPTS,
    Gap,
    GenerationRequest,
    ask_of_generation,
    form_of,
    infill_of,
    keep_of,
    prompts_of,
)
from .peers import OPENAI
from .reply import Event
from .served_model import ServedModel
from .told_tokens import Reported
from .tools import MAX_TOOLS, Function, ToolChoice, tools_of
from .wire import DONE

DEFAULT_TOKENS = 16
"""The default of ``max_tokens`` of a completion, as in OpenAI's API."""

# ---- bodies --------------------------------------------------------------------------------------


class FunctionDefinition(Function, extra="forbid"):
    """The function of a tool."""

    cache_control: Json | None = None  # accepted; prefixes are always cached


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition
    cache_control: Json | None = None


class ChatRequest(GenerationRequest):
    """A body of ``POST /v1/chat/completions``."""

    rules = OPENAI
    messages: Annotated[
        list[ChatMessage], Field(min_length=1, description="the conversation so far")
    ]
    max_completion_tokens: Budget | None = about("the new name of max_tokens")
    logprobs: bool | None = about("report log-probabilities")
    top_logprobs: int | None = option("top_logprobs")
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

    @property
    def most_tokens(self) -> int | None:
        """The most tokens to generate, under either name."""
        return self.max_completion_tokens or self.max_tokens


_PROMPT: list[Json] = [
    {"type": "string", "minLength": 1},
    {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]},
    },
]
_PROMPTS: Json = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}


class CompletionRequest(GenerationRequest):
    """A body of ``POST /v1/completions``."""

    rules = OPENAI
    prompt: Annotated[
        Any, WithJsonSchema({"anyOf": [*_PROMPT, {**_PROMPTS, "items": {"anyOf": _PROMPT}}]})
    ] = Field(description="a string, token ids, both in one list, or a list of several prompts")
    suffix: str | None = about("what comes after the text, for models that can fill in a gap")
    max_tokens: Limit | None = about(
        "maximum number of tokens to generate (default: 16; 0 only with echo)"
    )
    logprobs: int | None = option("top_logprobs")
    echo: bool | None = about(
        "return the prompt before the text, with its log-probabilities if logprobs is set"
    )

    @property
    def gap(self) -> Gap | None:
        """The text after the gap; None if it is empty."""
        return Gap("suffix", self.suffix) if self.suffix else None


# ---- what is asked for ---------------------------------------------------------------------------

NAMES = {"prompt": "messages", "template": "chat_template_kwargs"}
"""The fields that a chat comes from, for ``as_request_error``."""


def ask_chat(known: Read[ChatRequest], model: ServedModel) -> Ask:
    """What a request asks for; raises ``RequestError``, which names the field at fault."""
    request = known.request
    talk = of_chat(request.messages)
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError.at(
            "max_tokens", f"{old} contradicts max_completion_tokens={new}; send one of them"
        )
    if request.top_logprobs and not request.logprobs:
        raise RequestError.at("top_logprobs", "needs logprobs: true")
    return ask_of_generation(
        known,
        model,
        {
            "max_tokens": request.most_tokens,
            "top_logprobs": (request.top_logprobs or 0) if request.logprobs else None,
            "prompt_logprobs": request.prompt_logprobs,
        },
        partial(ChatReply, request),
        planned(request, turn_of(request, talk.messages, model), model, NAMES),
        names=NAMES,
        left_out=talk.left_out,
    )


def turn_of(request: ChatRequest, messages: Sequence[Json], model: ServedModel) -> Turn:
    """What a request means, with these messages for a chat template. The answer continues the last
    message if ``continue_final_message`` or the message's ``prefix`` says so; raises
    ``RequestError`` if the request contradicts itself."""
    functions = map(attrgetter("function"), request.tools or ())
    last, going_on = request.messages[-1], request.continue_final_message
    if going_on is None:
        going_on = last["role"] == "assistant" and bool(last.get("prefix"))
    if request.add_generation_prompt is going_on:
        value, other = ("true", "leave out") if going_on else ("false", "send")
        raise RequestError.at(
            "add_generation_prompt",
            f"{value} means that the answer is {'a new message' if going_on else 'the rest of one'}"
            f"; {other} continue_final_message: true",
        )
    if going_on and (last["role"] != "assistant" or last.get("tool_calls")):
        raise RequestError.at(
            "continue_final_message",
            "expected a last message with the role assistant and some text, to be continued",
        )
    template, parallel = request.chat_template_kwargs or {}, request.parallel_tool_calls
    return Turn(
        chat=Chat(messages, template=template, continue_final_message=going_on),
        tools=tools_of(
            functions, request.tool_choice, at="tools[{}].function", parallel=parallel
        ).used,
        form=form_of(request, model.registry),
        effort=request.reasoning_effort,
        thinking_budget=request.thinking_budget,
        usual_budget=model.thinking_budget,
        keep=keep_of(request, model, request.most_tokens)
        if request.truncate_prompt_tokens
        else None,
        raw_thoughts=request.reasoning_format == "none",
    )


C = TypeVar("C", bound=CompletionRequest)


def ask_completion(known: Read[CompletionRequest], model: ServedModel) -> Ask:
    """As ``ask_chat``."""
    return understood(known, model, partial(CompletionReply, known.request))


def understood(
    known: Read[C],
    model: ServedModel,
    make_reply: MakeReply,
    *,
    watched: bool = False,
    is_infill: bool = False,
    may_be_silent: bool = False,
) -> Ask:
    """What a completion of any form asks for; raises as ``ask_completion``."""
    request, gap = known.request, known.request.gap
    words = model.vocabulary
    prompts = list(prompts_of(request.prompt, words, may_be_empty=is_infill))
    steered = request.steered_by
    if steered is not None and prompts[0][0] != "prompt":
        raise RequestError.at("prompt", f"expected one prompt with {steered}, got a list")
    most = request.max_tokens
    if most is None and steered is None:  # a program ends by itself
        most = DEFAULT_TOKENS
    silent = request.max_tokens == 0
    if silent and not (request.echo or may_be_silent):
        name = name_used("max_tokens", known.names)
        raise RequestError.at(name, "expected 1 or more, got 0; 0 needs echo: true")
    infill = None if gap is None else infill_of(gap, request, words)
    keep, questions = keep_of(request, model, most), list[Question]()
    for at, prompt in prompts:
        try:
            if gap is not None and infill is not None:
                prompt = infill.prompt(prompt, gap.suffix, gap.files)
            whole = Prompt.of(prompt, words, width=model.vocab_size)
        except PromptError as error:
            raise RequestError.at(at, str(error), "invalid_prompt") from error
        whole = whole if keep is None else replace(whole, tokens=whole.tokens[-keep:])
        echo = ""
        if request.echo:
            is_text = isinstance(prompt, str) and keep is None
            echo = str(prompt) if is_text else words.decode(whole.tokens)
        questions.append(Question(at=at, prompt=whole, echo=echo))
    scored = request.logprobs if request.echo else None
    scores = [each for each in (request.prompt_logprobs, scored) if each is not None]
    return ask_of_generation(
        known,
        model,
        {
            "max_tokens": 1 if silent else most,
            "top_logprobs": request.logprobs,
            "prompt_logprobs": max(scores, default=None),
        },
        make_reply,
        Meant(questions, form_of(request, model.registry)),
        names={"prompt": "prompt"},
        ends=() if infill is None else infill.ends,
        watched=watched,
    )


# ---- answers -------------------------------------------------------------------------------------


def _told(text: str) -> Event:
    """Thoughts, under both of the names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


class ChatChoice(Choice):
    """A choice of a chat."""

    request: ChatRequest
    _called = 0

    @property
    def _thinks(self) -> bool:
        """Whether thoughts are shown."""
        return self.request.include_reasoning is not False

    def opening(self) -> Event:
        """As ``Choice.opening``: the role."""
        return self._choice({"role": "assistant", "content": "", "refusal": None})

    def nothing(self) -> Event:
        return self._choice({})

    def events(self, delta: Delta) -> list[Event]:
        """As ``Choice.events``, in order, with adjacent ones of the same kind joined."""
        parts = list[Event]()
        for event in delta.events:
            last: Event = parts[-1] if parts else {}
            if isinstance(event, Text):
                if "content" in last:
                    last["content"] += event.text
                else:
                    parts.append({"content": event.text})
            elif isinstance(event, Reasoning) and self._thinks:
                if "reasoning" in last:
                    last |= _told(last["reasoning"] + event.text)
                else:
                    parts.append(_told(event.text))
            elif isinstance(event, CallStarted):
                function = {"name": event.name, "arguments": ""}
                call = {"index": self._called, "id": event.id, "type": "function"}
                parts.append({"tool_calls": [{**call, "function": function}]})
                self._called += 1
            elif isinstance(event, CallArguments):
                if "tool_calls" in last:
                    last["tool_calls"][0]["function"]["arguments"] += event.text
                else:
                    more = {"index": self._called - 1, "function": {"arguments": event.text}}
                    parts.append({"tool_calls": [more]})
        extra = self.marks(delta) if self.marked else {}
        if self.logprobs:
            logprobs = self._logprobs(delta)
            if logprobs["content"] or "reasoning_content" in logprobs:
                extra["logprobs"] = {**logprobs, "content": logprobs["content"] or None}
        if extra and not parts and delta.last is None:
            parts = [{}]
        choices = list[Event]()
        for part in parts:
            choices.append(self._choice(part))
        if delta.last is not None:
            choices.append(self._choice({}, delta.finish))
        if extra:
            choices[0] |= extra
        return choices

    def marks(self, delta: Delta) -> dict[str, Any]:
        """As ``Choice.marks``: of thoughts only if they are shown."""
        marks = super().marks(delta)
        if not self._thinks:
            marks.pop("retract_reasoning", None)
        return marks

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
        if self.logprobs:
            told = folded["logprobs"] or {"refusal": None}
            folded["logprobs"] = {**told, "content": told.get("content") or []}
        return {**folded, "message": message}

    def _choice(self, delta: dict[str, Any], finish: Finish | None = None) -> Event:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        """The entries of the tokens, for each part that is returned."""
        entry = self.writer.chat_entry
        content = [entry(t, "content") for t in delta.tokens if "content" in t.parts]
        logprobs: dict[str, Any] = {"content": content, "refusal": None}
        if self._thinks:
            thoughts = [entry(t, "reasoning") for t in delta.tokens if "reasoning" in t.parts]
            logprobs |= {"reasoning_content": thoughts} if thoughts else {}
        return logprobs


class CompletionChoice(Choice):
    """A choice of a completion."""

    _began = False

    def opening(self) -> Event | None:
        """As ``Choice.opening``: the prompt, if it is to be echoed.

        With log-probabilities, the prompt comes with the first chunk, which has its own.
        """
        echo = self.question.echo
        return self._choice(echo) if echo and not self.logprobs else None

    def nothing(self) -> Event:
        return self._choice("")

    def events(self, delta: Delta) -> list[Event]:
        text, extra = delta.text, self.marks(delta) if self.marked else {}
        if self.logprobs:
            is_first, self._began = not self._began, True
            if is_first:
                text = self.question.echo + text
            if delta.tokens or (is_first and self.scores):
                extra["logprobs"] = self._logprobs(delta.tokens, echoes=is_first)
        if not text and not extra and delta.last is None:
            return []
        return [{**self._choice(text, delta.finish), **extra}]

    def whole(self, folded: Event) -> Event:
        if self.logprobs and folded["logprobs"] is None:
            folded["logprobs"] = self._logprobs([], echoes=True)
        return folded

    def _choice(self, text: str, finish: Finish | None = None) -> Event:
        return {"index": self.index, "text": text, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, reported: Sequence[Reported], *, echoes: bool) -> dict[str, Any]:
        """The four lists for the text, after those of an echoed prompt."""
        echo = self.question.echo
        lists = self.writer.legacy(reported, len(echo) - self.given)
        if not echoes or not self.scores or not echo:
            return lists
        echoed = self.writer.echoed(self.scores, echo)
        return {name: echoed[name] + lists[name] for name in lists}


class ChatReply(ChoicesReply):
    """A ``Reply``: choices of one prompt."""

    event, whole_event = "chat.completion.chunk", "chat.completion"
    choice = ChatChoice
    shares_prompt = True


class CompletionReply(ChoicesReply):
    """A ``Reply``."""

    event = whole_event = "text_completion"
    choice = CompletionChoice


CHATS = Api(
    "/v1/chat/completions",
    "Answer a conversation, rendered with the model's chat template.",
    ChatRequest,
    ask_chat,
    "chatcmpl-",
    DONE,
)
COMPLETIONS = Api(
    "/v1/completions",
    "Continue raw text or tokens.",
    CompletionRequest,
    ask_completion,
    "cmpl-",
    DONE,
)
