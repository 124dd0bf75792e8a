"""OpenAI's chat completions and completions: their bodies, and what these ask for.

``null`` means the default for every field that is not required. Every field of a request that was
accepted has had its effect, or has none on the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, WithJsonSchema

from ..chat import Chat
from ..chat.calls.use import Form
from ..chat.template.sandbox import RenderLimits
from ..chat.turn import Effort, Plan, Turn, prompt_of
from ..engine import Prompt
from ..errors import MlxgenError, PromptError
from ..images import plain
from ..sampling import Hook
from ..tokens import Infill, Token, Vocabulary
from .ask import Ask, Question, ask_of, planned
from .bodies import Read, read
from .conversation import ChatMessage, of_chat
from .errors import RequestError, as_request_error
from .fields import Body, Budget, Json, Limit, Named, about, got, limit_of, option
from .generation import GenerationRequest, form_of
from .openai_reply import CHATS, TEXTS, THOUGHTLESS, OpenAIReply
from .peers import OPENAI
from .registry import Registry, Steered
from .reply import Reply
from .served_model import ServedModel
from .tools import MAX_TOOLS, Function, ToolChoice, tools_of

MAX_PROMPTS = 256
MAX_ANSWERS = 256
DEFAULT_TOKENS = 16
"""The default of ``max_tokens`` for completions, as in OpenAI's API."""

# ---- bodies of chats -----------------------------------------------------------------------------


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


# ---- bodies of completions -----------------------------------------------------------------------

_PROMPT: list[Json] = [
    {"type": "string", "minLength": 1},
    {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]},
    },
]
_PROMPTS: Json = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}


class Gap(NamedTuple):
    """What comes after the text to generate, in the field ``at``, and other files to see first."""

    at: str
    suffix: str
    files: Sequence[tuple[str, str]] = ()


class CompletionRequest(GenerationRequest):
    """A body of ``POST /v1/completions``."""

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
        """What comes after the text; none if that is empty."""
        return Gap("suffix", self.suffix) if self.suffix else None


# ---- what a chat asks for ------------------------------------------------------------------------

NAMES = {"prompt": "messages", "template": "chat_template_kwargs"}
"""The fields that a chat comes from, for ``as_request_error``."""


def parse_chat(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """What a body asks for; raises ``RequestError``, which names the field at fault."""
    known = read(body, ChatRequest, OPENAI, unknown=model.unknown)
    request = known.request
    model = model.called(request.model)
    talk = of_chat(request.messages)
    plan = planned(turn_of(request, talk.messages, model), model, NAMES)
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
        [Question.of_chat("messages", plan)],
        {
            "max_tokens": limit_of(old if new is None else new),
            "top_logprobs": (request.top_logprobs or 0) if request.logprobs else None,
            "prompt_logprobs": request.prompt_logprobs,
        },
        partial(OpenAIReply, THOUGHTLESS if request.include_reasoning is False else CHATS, request),
        names=NAMES,
        plan=plan,
        left_out=talk.left_out,
    )


def turn_of(request: ChatRequest, messages: Sequence[Json], model: ServedModel) -> Turn:
    """What a request means, with these messages for a chat template."""
    functions = {
        f"tools[{i}].function": tool.function for i, tool in enumerate(request.tools or ())
    }
    return Turn(
        chat=Chat(
            messages,
            template=request.chat_template_kwargs or {},
            continue_final_message=_goes_on(request),
        ),
        tools=tools_of(functions, request.tool_choice, parallel=request.parallel_tool_calls).used,
        form=form_of(request, model.registry),
        effort=request.reasoning_effort,
        thinking_budget=request.thinking_budget,
        usual_budget=model.thinking_budget,
        keep=keep_of(request, model),
        raw_thoughts=request.reasoning_format == "none",
    )


def _goes_on(request: ChatRequest) -> bool:
    """Whether the answer is the rest of the last message, in either way to say so; raises
    ``RequestError`` if it is neither that nor a new one."""
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
    return going_on


def tokens_of(body: Mapping[str, Any], model: ServedModel) -> list[Token]:
    """The tokens of the prompt that a chat would have; ``add_generation_prompt: false`` begins no
    answer."""
    begins = body.get("add_generation_prompt") is not False
    given = body if begins else {**body, "add_generation_prompt": None}
    request = read(given, ChatRequest, OPENAI, unknown=model.unknown).request
    turn = turn_of(request, of_chat(request.messages).messages, model)
    turn = replace(turn, chat=replace(turn.chat, add_generation_prompt=begins))
    try:
        return plain(prompt_of(turn, model.dialect, RenderLimits()).tokens)
    except MlxgenError as error:
        raise as_request_error(error, NAMES) from error


def apply_template(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """The text of the prompt that a chat would have."""
    return {"prompt": model.vocabulary.decode(tokens_of(body, model))}


# ---- what a completion asks for ------------------------------------------------------------------

C = TypeVar("C", bound=CompletionRequest)


def parse_completion(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """As ``parse_chat``."""
    known = read(body, CompletionRequest, OPENAI, unknown=model.unknown)
    return understood(known, model, partial(OpenAIReply, TEXTS, known.request))


def understood(
    known: Read[C],
    model: ServedModel,
    make_reply: Callable[[Ask, str, int], Reply],
    *,
    watched: bool = False,
    is_infill: bool = False,
) -> Ask:
    """What a request asks for; raises as ``parse_completion``."""
    request, gap = known.request, known.request.gap
    model = model.called(request.model)
    words = model.vocabulary
    prompts = list(_prompts(request.prompt, words, may_be_empty=is_infill))
    steered = request.steered_by
    if steered is not None and prompts[0][0] != "prompt":
        raise RequestError.at("prompt", f"expected one prompt with {steered}, got a list")
    usual = DEFAULT_TOKENS if steered is None else None  # a program ends by itself
    silent = request.max_tokens == 0
    if silent and not request.echo and not is_infill:
        raise RequestError.at("max_tokens", "expected 1 or more, got 0; 0 needs echo: true")
    n = request.n or 1
    if n * len(prompts) > MAX_ANSWERS:
        raise RequestError.at(
            "n",
            f"expected at most {MAX_ANSWERS} answers, got {n} to each of {len(prompts)} prompts; "
            "send several requests",
        )
    infill = None if gap is None else _infill(gap, request, words)
    keep, questions = keep_of(request, model), list[Question]()
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
        questions,
        {
            "max_tokens": 1 if silent else limit_of(request.max_tokens, usual),
            "top_logprobs": request.logprobs,
            "prompt_logprobs": max(scores, default=None),
        },
        make_reply,
        names={"prompt": "prompt"},
        form=form_of(request, model.registry),
        ends=() if infill is None else infill.ends,
        watched=watched,
    )


def _prompts(
    given: Any, vocabulary: Vocabulary, *, may_be_empty: bool
) -> Iterator[tuple[str, str | list[Token]]]:
    """Each prompt, after its path in the body: as token ids if it is made of pieces, where a text
    goes on with what comes before."""
    several = isinstance(given, list) and any(isinstance(each, list) for each in given)
    if isinstance(given, list) and given and not several:
        several = all(isinstance(each, str) for each in given)
    if several and len(given) > MAX_PROMPTS:
        raise RequestError.at("prompt", f"expected at most {MAX_PROMPTS} prompts, got {len(given)}")
    for i, prompt in enumerate(given if several else [given]):
        at = f"prompt[{i}]" if several else "prompt"
        if not isinstance(prompt, str | list):
            wrong = f"expected a string or a list of token ids, got {got(prompt)}"
            raise RequestError.at(at, wrong, "invalid_type" if several else "invalid_value")
        if not prompt and not (may_be_empty and prompt == ""):
            raise RequestError.at(at, "is empty; send a text or at least one token id")
        yield at, prompt if isinstance(prompt, str) else _pieced(prompt, at, vocabulary)


def _pieced(prompt: Sequence[Any], at: str, vocabulary: Vocabulary) -> list[Token]:
    """The tokens of a prompt of token ids and texts. Control tokens in a text are these, wherever
    it stands."""
    control = {
        vocabulary.piece(token).decode("utf-8", "replace"): token for token in vocabulary.special
    }
    names = sorted(filter(None, control), key=len, reverse=True)
    tokens: list[Token] = []
    for i, piece in enumerate(prompt):
        if isinstance(piece, int) and not isinstance(piece, bool):
            tokens.append(piece)
        elif not isinstance(piece, str):
            wrong = f"expected a token id or a text, got {got(piece)}"
            raise RequestError.at(f"{at}[{i}]", wrong, "invalid_type")
        elif not piece:
            raise RequestError.at(f"{at}[{i}]", "is empty; leave it out")
        elif not i:
            tokens += vocabulary.encode(piece)
        else:
            for part in (
                re.split(f"({'|'.join(map(re.escape, names))})", piece) if names else [piece]
            ):
                known = control.get(part)
                tokens += vocabulary.continue_with(part.encode()) if known is None else [known]
    return tokens


def _infill(gap: Gap, request: CompletionRequest, vocabulary: Vocabulary) -> Infill:
    """How the model writes prompts with a gap; raises ``RequestError``."""
    for name in ("echo", "truncate_prompt_tokens", "program", "controller"):
        if getattr(request, name):
            raise RequestError.at(name, f"cannot be combined with {gap.at}; leave out one of them")
    try:
        return Infill.of(vocabulary)
    except PromptError as error:
        raise RequestError.at(gap.at, str(error), "unsupported_parameter") from error


# ---- the operator's own code ---------------------------------------------------------------------

_EXCLUDED = ("n", "echo", "tools", "prompt_logprobs", "timings_per_token", "return_progress")
"""What a program's answer has not: it is one text, with branches that come up as it is written."""
_NOT_TAKEN_BACK = ("logprobs", "return_token_ids", "tools")


def steered_of(request: GenerationRequest, registry: Registry) -> Steered | None:
    """The program or controller of a request; raises ``RequestError``."""
    what = request.steered_by
    held = "hold_tokens" if what is not None and request.hold_tokens else None
    late = "allow_retract" if request.allow_retract else held
    for name in _NOT_TAKEN_BACK if late and request.stream else ():
        if _is_given(request, name):
            raise RequestError.at(
                str(late),
                f"what {name} adds to a stream cannot be taken back; leave out one of them",
            )
    if what is None:
        return None
    if what == "program" and request.controller is not None:
        raise RequestError.at("controller", "cannot be combined with program; send one of them")
    for name in _EXCLUDED:
        if _is_given(request, name) and not (name == "n" and request.n == 1):
            raise RequestError.at(name, f"cannot be used with {what}; leave it out")
    return registry.steered(what, getattr(request, what), what, request.arguments, "arguments")


def hooks_of(request: GenerationRequest, registry: Registry) -> Sequence[Hook]:
    """The hooks of a request; raises ``RequestError``."""
    named, given = request.hooks or [], request.arguments
    if request.steered_by is None and given is not None:
        if len(named) != 1 or not isinstance(named[0], str):
            raise RequestError.at(
                "arguments", "are for a program, a controller or one hook; name one of these"
            )
        return [registry.hook(named[0], "hooks[0]", given, "arguments")]
    hooks = []
    for place, each in enumerate(named):
        at = f"hooks[{place}]"
        if isinstance(each, Named):
            name, own = each.name, each.arguments
            hooks.append(registry.hook(name, f"{at}.name", own, f"{at}.arguments"))
        else:
            hooks.append(registry.hook(each, at, None, f"{at}.arguments"))
    return hooks


def _is_given(request: GenerationRequest, name: str) -> bool:
    value = getattr(request, name, None)
    return value is not None and value is not False and value != []


# ---- what both ask for ---------------------------------------------------------------------------

G = TypeVar("G", bound=GenerationRequest)


def ask_of_generation(
    known: Read[G],
    model: ServedModel,
    questions: Sequence[Question],
    own: Mapping[str, Any],
    make_reply: Callable[[Ask, str, int], Reply],
    *,
    names: Mapping[str, str],
    plan: Plan | None = None,
    form: Form | None = None,
    left_out: Sequence[str] = (),
    ends: Sequence[Token] = (),
    watched: bool = False,
) -> Ask:
    """As ``ask_of``. ``own`` are the options that each kind of request spells in its own way:
    ``max_tokens`` and those of log-probabilities. ``ends`` are tokens that end the text, besides
    the request's own."""
    request = known.request
    if request.close_json and form is None and (plan is None or plan.spec is None):
        raise RequestError.at(
            "close_json", "there is nothing to close; send json_schema or another constraint"
        )
    if own["prompt_logprobs"] is not None and request.heal:
        raise RequestError.at(
            "heal",
            "takes back tokens of the prompt whose log-probabilities are wanted; leave it out",
        )
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError.at(
            "prompt_logprobs",
            "is not for streams; leave out stream, or for a completion send echo and logprobs",
        )
    steered = steered_of(request, model.registry)
    given = {
        **own,
        "stop": [request.stop] if isinstance(request.stop, str) else request.stop or (),
        "stop_tokens": [*(request.stop_token_ids or ()), *ends],
        "banned": request.banned,
        "prefix": request.prefix_tokens,
        "prediction": request.prediction and request.prediction.text,
        "hooks": hooks_of(request, model.registry),
    }
    if steered is not None:  # whose option it is; the reply holds what the client must not see
        given["allow_retract"] = None
        # What is usual, or an effort means, does not bind a program.
        given["thinking_budget"] = request.thinking_budget
        given |= {name: None for name in ("heal", "close_json") if getattr(request, name) is False}
    if request.num_draft_tokens == 0:
        given |= {"draft": "off", "num_draft_tokens": None}
    ask = ask_of(
        known,
        model,
        questions,
        given,
        make_reply,
        names=names,
        plan=plan,
        form=form,
        left_out=left_out,
        answers=request.n or 1,
        watched=watched or bool(request.timings_per_token),
        steered=steered,
    )
    return replace(ask, own_stop_tokens=ends)


def keep_of(request: GenerationRequest, model: ServedModel) -> int | None:
    """How many tokens of a prompt ``truncate_prompt_tokens`` leaves: its last ones; None: all."""
    most = request.truncate_prompt_tokens
    if most is None or most >= 0:
        return most
    if model.max_context is None:
        return None
    answer = max(request.max_tokens or 1, len(request.prefix_tokens or ()) + 1)
    return max(1, model.max_context - min(answer, model.max_context - 1))
