"""The common part of chats and completions: their fields, the constraints on an answer's text, the
operator's own code, and prompts.

There is at most one constraint on the text, besides a check, and it knows the field that it came
from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field

from ..chat.calls.use import Form
from ..errors import MlxgenError, PromptError
from ..filters import Choice, Lark, Regex, is_gbnf, lark_of
from ..sampling import Hook
from ..tokens import Infill, Token, Vocabulary
from .ask import Ask, MakeReply, Meant, ask_of
from .bodies import Read
from .errors import RequestError, as_request_error
from .fields import (
    MAX_CHOICES,
    MAX_STOPS,
    Body,
    Budget,
    CheckField,
    Count,
    Format,
    Json,
    Named,
    Piece,
    Schema,
    ShortText,
    Text,
    TextRequest,
    about,
    format_of,
    got,
    json_form,
    option,
)
from .registry import NamedHook, Registry, Steered
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
    """What a stream contains besides the answer."""

    include_usage: bool | None = None


class Prediction(Body):
    """What most of the text is expected to be."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The whole text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class FormFields(CheckField):
    """Where a text ends, and what it matches."""

    stop: ShortText | Pieces | None = option("stop")
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOPS)] | None = option(
        "stop_tokens"
    )
    response_format: Format | None = about(
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
    """The common fields of chat and completion requests."""

    stream_options: StreamOptions | None = about("what a stream has in addition to the answer")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = about(
        "number of answers for each prompt (default: 1)"
    )
    max_tokens: Budget | None = about(
        "maximum number of tokens to generate; -1 is as many as the context holds"
    )
    banned: Annotated[list[ShortText], Field(max_length=MAX_BANNED)] | None = about(
        "strings that never appear in the answer"
    )
    ban_strength: float | None = option("ban_strength")
    heal: bool | None = option("heal")
    num_draft_tokens: int | None = option("num_draft_tokens", low=0, also="; 0 is no draft")
    prediction: Prediction | None = option("prediction")
    prefix_tokens: list[Count] | None = option("prefix")
    close_json: bool | None = option("close_json")
    prompt_logprobs: int | None = option("prompt_logprobs", also="; not for streams")
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
    hold_tokens: int | None = option("hold_tokens")
    max_resample: int | None = option("max_resample")

    @property
    def steered_by(self) -> Literal["program", "controller"] | None:
        """Whether the operator's program or controller writes the text; None: neither."""
        if self.program is not None:
            return "program"
        return None if self.controller is None else "controller"


# ---- what the text must match --------------------------------------------------------------------

_MAKERS: Mapping[str, Callable[[Any], Form]] = {
    "json_schema": partial(json_form, "json_schema"),
    "regex": lambda pattern: Form("regex", Regex(pattern)),
    "grammar": lambda text: Form("grammar", Lark(lark_of(text) if is_gbnf(text) else text)),
    "choice": lambda options: Form("choice", Choice(options)),
}
FORMS = ("response_format", *_MAKERS, "check")
"""The fields that become filters or checks of the text."""


def form_of(request: FormFields, registry: Registry) -> Form | None:
    """The form that the text must have; raises ``RequestError`` if it is invalid, or if there are
    several besides a check."""
    form = None
    if request.response_format is not None:
        form = format_of("response_format", request.response_format)
    for name, make in _MAKERS.items():
        if (given := getattr(request, name)) is None:
            continue
        if form is not None:
            raise RequestError.at(name, f"cannot be combined with {form.field}; send one of them")
        try:
            form = make(given)
        except MlxgenError as error:
            raise as_request_error(error, {"filters": name}) from error
    return form if request.check is None else registry.checked(form, request.check)


# ---- the operator's own code ---------------------------------------------------------------------

_EXCLUDED = ("n", "echo", "tools", "prompt_logprobs", "timings_per_token", "return_progress")
"""Fields that a program's answer cannot have: it is one text, whose branches come as it grows."""
_OWN_CODE = frozenset(
    ("program", "controller", "hooks", "arguments", "allow_retract", "hold_tokens")
)
"""The fields of code that may write the text, or take it back."""
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


def hooks_of(request: GenerationRequest, registry: Registry) -> list[Hook]:
    """The hooks of a request; raises ``RequestError``."""
    named, given = request.hooks or [], request.arguments
    if request.steered_by is not None or given is None:
        made = [registry.named("hook", each, f"hooks[{i}]") for i, each in enumerate(named)]
    elif len(named) == 1 and isinstance(named[0], str):
        made = [registry.steered("hook", named[0], "hooks[0]", given, "arguments")]
    else:
        raise RequestError.at(
            "arguments", "are for a program, a controller or one hook; name one of these"
        )
    return [NamedHook(*each, registry.slow) for each in made]


def _is_given(request: GenerationRequest, name: str) -> bool:
    value = getattr(request, name, None)
    return value is not None and value is not False and value != []


# ---- what both ask for ---------------------------------------------------------------------------

G = TypeVar("G", bound=GenerationRequest)


def ask_of_generation(
    known: Read[G],
    model: ServedModel,
    own: Mapping[str, Any],
    make_reply: MakeReply,
    meant: Meant,
    *,
    names: Mapping[str, str],
    left_out: Sequence[str] = (),
    ends: Sequence[Token] = (),
    watched: bool = False,
) -> Ask:
    """As ``ask_of``. ``own``: the options that chats and completions spell differently:
    ``max_tokens`` and those for log-probabilities."""
    request = known.request
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
    fields, steered, hooks = request.model_fields_set, None, list[Hook]()
    if not fields.isdisjoint(_OWN_CODE):
        steered = steered_of(request, model.registry)
        hooks = hooks_of(request, model.registry)
    given = {
        **own,
        "stop": [request.stop] if isinstance(request.stop, str) else request.stop or (),
        "stop_tokens": [*(request.stop_token_ids or ()), *ends],
        "banned": request.banned,
        "prefix": request.prefix_tokens,
        "prediction": request.prediction and request.prediction.text,
        "hooks": hooks,
    }
    if steered is not None:  # a program decides itself; the reply holds text back if it must
        given["allow_retract"] = None
        # The usual thinking budget, or that of an effort, does not bind a program.
        given["thinking_budget"] = request.thinking_budget
        usual = () if request.loops else ("loops",)
        off = [name for name in ("heal", "close_json") if getattr(request, name) is False]
        given |= dict.fromkeys([*usual, *off])
    if request.num_draft_tokens == 0:
        given |= {"draft": "off", "num_draft_tokens": None}
    return ask_of(
        known,
        model,
        given,
        make_reply,
        meant,
        names=names,
        left_out=left_out,
        answers=request.n or 1,
        watched=watched or bool(request.timings_per_token),
        steered=steered,
        ends=ends,
    )


def keep_of(request: GenerationRequest, model: ServedModel, most: int | None) -> int | None:
    """The number of last tokens of a prompt that ``truncate_prompt_tokens`` keeps, which leave room
    for an answer of at ``most`` so many tokens; None: all."""
    keep = request.truncate_prompt_tokens
    if keep is None or keep >= 0:
        return keep
    if model.max_context is None:
        return None
    answer = max(most or 1, len(request.prefix_tokens or ()) + 1)
    return max(1, model.max_context - min(answer, model.max_context - 1))


# ---- prompts of tokens and texts -----------------------------------------------------------------

MAX_PROMPTS = 256


class Gap(NamedTuple):
    """The text after the one to generate, from the field ``at``, and other files to read first."""

    at: str
    suffix: str
    files: Sequence[tuple[str, str]] = ()


def prompts_of(
    given: Any, vocabulary: Vocabulary, *, may_be_empty: bool
) -> Iterator[tuple[str, str | list[Token]]]:
    """The path in the body and the prompt, for each prompt. One that is a list of token ids and
    texts becomes token ids, with each text continuing what comes before it."""
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
    """The tokens of a prompt made of token ids and texts. The text of a control token becomes that
    token, wherever it stands."""
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


def infill_of(gap: Gap, request: GenerationRequest, vocabulary: Vocabulary) -> Infill:
    """The model's format for filling a gap; raises ``RequestError``."""
    for name in ("echo", "truncate_prompt_tokens", "program", "controller"):
        if getattr(request, name, None):
            raise RequestError.at(name, f"cannot be combined with {gap.at}; leave out one of them")
    try:
        return Infill.of(vocabulary)
    except PromptError as error:
        raise RequestError.at(gap.at, str(error), "unsupported_parameter") from error
