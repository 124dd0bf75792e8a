"""What requests for chats and for completions have in common: their fields, and what these mean.

Invariant: ``null`` means the default for every field that is not required. There is at most one
constraint of the text, which knows the field that it came from; what is named of the operator's own
code is registered, and has arguments that it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field

from ..chat.calls.use import Form
from ..chat.turn import Plan
from ..errors import MlxgenError
from ..filters import Choice, JsonObject, Lark, Regex, Specification
from ..filters.gbnf import is_gbnf, lark_of
from ..sampling import Hook
from ..tokens import Token
from .ask import Ask, Question, ask_of
from .bodies import Read
from .errors import RequestError, as_request_error
from .fields import (
    MAX_STOPS,
    Alternatives,
    Body,
    Budget,
    CheckField,
    Choices,
    Count,
    Drafted,
    Held,
    Json,
    Named,
    ObjectFormat,
    Off,
    Piece,
    Resampled,
    Schema,
    ShortText,
    Text,
    TextFormat,
    TextRequest,
    about,
    json_form,
    option,
    standard_format,
)
from .registry import Registry, Steered
from .reply import Reply
from .served_model import ServedModel

MAX_BANNED = 10_000
MAX_OPTIONS = 4096
MAX_HOOKS = 16
MAX_REGEX = 20_000
MAX_GRAMMAR = 200_000

RegexText: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_REGEX)]
Grammar: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]
Pieces: TypeAlias = Annotated[list[ShortText], Field(max_length=MAX_STOPS)]


class TextPart(Piece):
    """A piece of text."""

    type: Literal["text"]
    text: str


class StreamOptions(Body):
    """What a stream has in addition to the answer."""

    include_usage: bool | None = None
    include_obfuscation: Off | None = None


class NamedSchema(Body):
    """A JSON schema with its name."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class SchemaFormat(Body):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat: TypeAlias = Annotated[
    Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")],
    BeforeValidator(standard_format),
]


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


class FormFields(CheckField):
    """Where a text ends, and what it matches."""

    stop: ShortText | Pieces | None = option("stop")
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOPS)] | None = option(
        "stop_tokens"
    )
    response_format: ResponseFormat | None = about(
        "the format of the text: text, json_object or json_schema"
    )
    json_schema: Schema | None = about(
        "the text is JSON that matches this schema; objects have only the keys that it names, "
        "unless additionalProperties allows more"
    )
    regex: RegexText | None = about("the whole text matches this regular expression")
    grammar: Grammar | None = about("the text follows this grammar, in Lark or GBNF")
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_OPTIONS)] | None = about(
        "the text is one of these"
    )


class GenerationRequest(TextRequest, FormFields):
    """What chat and completion requests have in common."""

    stream_options: StreamOptions | None = about("what a stream has in addition to the answer")
    n: Choices | None = about("number of answers for each prompt (default: 1)")
    max_tokens: Budget | None = about(
        "maximum number of tokens to generate; -1 is as many as the context holds"
    )
    banned: Annotated[list[ShortText], Field(max_length=MAX_BANNED)] | None = about(
        "strings that never appear in the answer"
    )
    ban_strength: float | None = option("ban_strength")
    heal: bool | None = option("heal")
    num_draft_tokens: Drafted | None = option("num_draft_tokens", also="; 0 is no draft")
    prediction: Prediction | None = option("prediction")
    prefix_tokens: list[Count] | None = option("prefix")
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
    hooks: Annotated[list[Text | Named], Field(max_length=MAX_HOOKS)] | None = about(
        "hooks of the server's operator, by name or as an object with name and arguments"
    )
    arguments: Json | None = about("arguments of the program, the controller or the one hook")
    allow_retract: bool | None = about(
        "send text at once, and retract in an event if its last characters are taken back"
    )
    hold_tokens: Held | None = option("hold_tokens")
    max_resample: Resampled | None = option("max_resample")


# ---- what the text must match --------------------------------------------------------------------

_MAKERS: Mapping[str, Callable[[Any], Specification]] = {
    "regex": lambda pattern: Regex(pattern),
    "grammar": lambda grammar: Lark(lark_of(grammar) if is_gbnf(grammar) else grammar),
    "choice": lambda options: Choice(options),
}
_ONE = ("response_format", "json_schema", *_MAKERS)
FORMS = (*_ONE, "check")
"""The fields that become filters."""


def form_of(request: FormFields, registry: Registry) -> Form | None:
    """What the text must match; raises ``RequestError`` if it is invalid or more than one, besides
    a check."""
    return registry.checked(_form_of(request), request.check)


def _form_of(request: FormFields) -> Form | None:
    given = {name: getattr(request, name) for name in _ONE}
    fields = [
        name
        for name, value in given.items()
        if value is not None and not isinstance(value, TextFormat)
    ]
    if not fields:
        return None
    field = fields[0]
    if len(fields) > 1:
        raise RequestError.at(fields[1], f"cannot be combined with {field}; send one of them")
    value = given[field]
    try:
        if isinstance(value, ObjectFormat):
            return Form(field, JsonObject(), is_json=True)
        if isinstance(value, SchemaFormat):
            return json_form(field, value.json_schema.schema_)
        if field == "json_schema":
            return json_form(field, value)
        return Form(field, _MAKERS[field](value))
    except MlxgenError as error:
        raise as_request_error(error, {"filters": field}) from error


# ---- the operator's own code ---------------------------------------------------------------------

_ONE_PROMPT = "a program writes one text and its branches; leave it out"
_EXCLUDED = {
    "n": _ONE_PROMPT,
    "echo": "a program may take back tokens of the prompt; leave it out",
    "tools": "a program decides on the text itself, not on calls of tools; leave them out",
    "prompt_logprobs": "the prompt of a program is not scored; leave it out",
    "timings_per_token": "the times of branches are not told; leave it out",
    "return_progress": "the progress of branches is not told; leave it out",
}
_NOT_TAKEN_BACK = ("logprobs", "return_token_ids", "tools")


def steered_of(request: GenerationRequest, registry: Registry) -> Steered | None:
    """The program or controller of a request; raises ``RequestError``."""
    _check_retract(request)
    program, controller, given = request.program, request.controller, request.arguments
    if program is not None and controller is not None:
        raise RequestError.at("controller", "cannot be combined with program; send one of them")
    if program is None and controller is None:
        return None
    _check_alone(request, "controller" if program is None else "program")
    if program is not None:
        return registry.steered("program", program, "program", given, "arguments")
    assert controller is not None
    return registry.steered("controller", controller, "controller", given, "arguments")


def hooks_of(request: GenerationRequest, registry: Registry) -> Sequence[Hook]:
    """The hooks of a request; raises ``RequestError``."""
    named, given = request.hooks or [], request.arguments
    if request.program is None and request.controller is None and given is not None:
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


def _check_alone(request: GenerationRequest, what: str) -> None:
    """Raise ``RequestError`` for fields that make no sense with a program or controller."""
    for name, reason in _EXCLUDED.items():
        if _is_given(request, name) and not (name == "n" and request.n == 1):
            raise RequestError.at(name, f"cannot be used with {what}: {reason}")


def _check_retract(request: GenerationRequest) -> None:
    steered = request.program is not None or request.controller is not None
    late = "hold_tokens" if steered and request.hold_tokens else None
    field = "allow_retract" if request.allow_retract else late
    if field is None or not request.stream:
        return
    for name in _NOT_TAKEN_BACK:
        if _is_given(request, name):
            raise RequestError.at(
                field,
                f"what {name} adds to a stream cannot be taken back; leave out one of them",
            )


def _is_given(request: GenerationRequest, name: str) -> bool:
    value = getattr(request, name, None)
    return value is not None and value is not False and value != []


# ---- what it asks for ----------------------------------------------------------------------------

R = TypeVar("R", bound=GenerationRequest)


def ask_of_generation(
    known: Read[R],
    model: ServedModel,
    questions: Sequence[Question],
    own: Mapping[str, Any],
    make_reply: Callable[[Ask, str, int], Reply],
    *,
    names: Mapping[str, str],
    plan: Plan | None = None,
    form: Form | None = None,
    ends: Sequence[Token] = (),
    watched: bool = False,
) -> Ask:
    """As ``ask_of``. ``own`` are the options that each kind of request spells in its own way:
    ``max_tokens`` and those of log-probabilities. ``ends`` are tokens that end the text, besides
    the request's own."""
    request = known.request
    _check(request, own, is_held=form is not None or (plan is not None and plan.spec is not None))
    steered = steered_of(request, model.registry)
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or ()
    given = {
        **own,
        "stop": stops,
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


def _check(request: GenerationRequest, own: Mapping[str, Any], *, is_held: bool) -> None:
    """Raise ``RequestError`` for fields that cannot be combined."""
    if request.close_json and not is_held:
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
