"""OpenAI's completions, of one or several raw prompts: bodies, what they ask for, and a choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

from pydantic import Discriminator, Field, Tag

from ..engine import Prompt
from ..errors import PromptError
from ..tokens import Infill, Token, Vocabulary
from .ask import Ask, Question
from .bodies import Read, read
from .errors import RequestError
from .fields import Alternatives, Int, Limit, Text, about, limit_of, option
from .generation import GenerationRequest, ask_of_generation, form_of, keep_of
from .openai_reply import ChoiceText, Delta, Finish, Kind, OpenAIReply
from .peers import OPENAI
from .reply import Event, Reply
from .served_model import ServedModel
from .told_tokens import Reported

MAX_PROMPTS = 256
MAX_ANSWERS = 256
DEFAULT_TOKENS = 16
"""The default of ``max_tokens`` for completions, as in OpenAI's API."""

# ---- bodies --------------------------------------------------------------------------------------


def kind_of_prompt(given: Any) -> str | None:
    """Which of ``Prompts`` this is meant to be."""
    if not isinstance(given, list):
        return "text" if isinstance(given, str) else None
    if any(isinstance(item, list) for item in given):
        return "several"
    texts = sum(isinstance(item, str) for item in given)
    return "ids" if not texts else "texts" if texts == len(given) else "mixed"


def _kind_of_one(given: Any) -> str:
    """Which prompt this is meant to be, of several."""
    kind = kind_of_prompt(given)
    return "text" if kind == "text" else "mixed" if kind in ("mixed", "texts") else "ids"


def _kind_of_piece(given: Any) -> str:
    return "text" if isinstance(given, str) else "id"


def _any_of(schema: Any) -> None:
    """Describe alternatives as such of which several may fit, as a list of ids does."""
    parts = list(schema.values()) if isinstance(schema, dict) else schema
    for part in parts:
        if isinstance(part, dict | list):
            _any_of(part)
    if isinstance(schema, dict) and "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")


Ids: TypeAlias = Annotated[list[Int], Field(min_length=1)]
Mixed: TypeAlias = list[
    Annotated[
        Annotated[Text, Tag("text")] | Annotated[Int, Tag("id")], Discriminator(_kind_of_piece)
    ]
]
"""Texts and token ids, one after the other."""
Prompts: TypeAlias = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[Mixed, Tag("mixed")]
    | Annotated[list[Text], Field(max_length=MAX_PROMPTS), Tag("texts")]
    | Annotated[
        list[
            Annotated[
                Annotated[Text, Tag("text")]
                | Annotated[Ids, Tag("ids")]
                | Annotated[Mixed, Tag("mixed")],
                Discriminator(_kind_of_one),
            ]
        ],
        Field(max_length=MAX_PROMPTS),
        Tag("several"),
    ],
    Discriminator(
        kind_of_prompt,
        custom_error_type="literal_error",
        custom_error_context={"expected": "a string, a list of token ids, or a list of these"},
    ),
]


class CompletionRequest(GenerationRequest):
    """A body of ``POST /v1/completions``."""

    prompt: Prompts = Field(
        description="a string, token ids, both in one list, or a list of several prompts",
        json_schema_extra=_any_of,
    )
    suffix: str | None = about("what comes after the text, for models that can fill in a gap")
    max_tokens: Limit | None = about(
        "maximum number of tokens to generate (default: 16; 0 only with echo)"
    )
    logprobs: Alternatives | None = option("top_logprobs")
    echo: bool | None = about(
        "return the prompt before the text, with its log-probabilities if logprobs is set"
    )


# ---- what they ask for ---------------------------------------------------------------------------


R = TypeVar("R", bound=CompletionRequest)


class Gap(NamedTuple):
    """What comes after the text to generate, in the field ``at``, and other files to see first."""

    at: str
    suffix: str
    files: list[tuple[str, str]]


def parse_completion(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    known = read(body, CompletionRequest, OPENAI, served=model)
    return understood(
        known, model, partial(OpenAIReply, _KIND, known.request), gap_of(known.request)
    )


def gap_of(request: CompletionRequest) -> Gap | None:
    """What a completion says about the text after it; none if that is empty."""
    return Gap("suffix", request.suffix, []) if request.suffix else None


def understood(
    known: Read[R],
    model: ServedModel,
    make_reply: Callable[[Ask, str, int], Reply],
    gap: Gap | None,
    *,
    watched: bool = False,
    may_be_silent: bool = False,
) -> Ask:
    """What a request asks for, before a gap if there is one; raises as ``parse_completion``."""
    request = known.request
    model = model.called(request.model)
    steered = "controller" if request.program is None else "program"
    is_steered = request.program is not None or request.controller is not None
    if is_steered and kind_of_prompt(request.prompt) in ("texts", "several"):
        raise RequestError.at("prompt", f"expected one prompt with {steered}, got a list")
    default = None if is_steered else DEFAULT_TOKENS  # a program ends by itself
    silent = request.max_tokens == 0
    if silent and not request.echo and not may_be_silent:
        raise RequestError.at("max_tokens", "expected 1 or more, got 0; 0 needs echo: true")
    scored = bool(request.echo) and request.logprobs is not None
    prompts = _prompts(request.prompt, model.vocabulary)
    infill = None if gap is None else _infill(gap, request, model)
    n = request.n or 1
    if n * len(prompts) > MAX_ANSWERS:
        raise RequestError.at(
            "n",
            f"expected at most {MAX_ANSWERS} answers, got {n} to each of {len(prompts)} prompts; "
            "send several requests",
        )
    questions = [
        _question(at, prompt, request, model)
        if gap is None or infill is None
        else _gap_question(at, prompt, infill, gap, model)
        for at, prompt in prompts
    ]
    scores = [request.prompt_logprobs, request.logprobs if scored else None]
    return ask_of_generation(
        known,
        model,
        questions,
        {
            "max_tokens": 1 if silent else limit_of(request.max_tokens, default),
            "top_logprobs": request.logprobs,
            "prompt_logprobs": max((n for n in scores if n is not None), default=None),
        },
        make_reply,
        names={"prompt": "prompt"},
        form=form_of(request, model.registry),
        ends=() if infill is None else infill.ends,
        watched=watched,
    )


def _prompts(given: Any, vocabulary: Vocabulary) -> list[tuple[str, str | list[Token]]]:
    """Each prompt and its path in the body."""
    if kind_of_prompt(given) in ("texts", "several"):
        return [(f"prompt[{i}]", _one_kind(item, vocabulary)) for i, item in enumerate(given)]
    return [("prompt", _one_kind(given, vocabulary))]


def _one_kind(prompt: str | Mixed, vocabulary: Vocabulary) -> str | list[Token]:
    """A prompt, as token ids if it is mixed: a text in it goes on with what comes before."""
    if isinstance(prompt, str):
        return prompt
    tokens: list[Token] = []
    for i, piece in enumerate(prompt):
        if isinstance(piece, int):
            tokens.append(piece)
        elif i == 0:
            tokens += vocabulary.encode(piece)
        else:
            tokens += _going_on(piece, vocabulary)
    return tokens


def _going_on(text: str, vocabulary: Vocabulary) -> list[Token]:
    """The tokens of raw text in the middle of a prompt; control tokens in it are these, as they
    are at its beginning."""
    control = {
        vocabulary.piece(token).decode("utf-8", "replace"): token for token in vocabulary.special
    }
    names = sorted(filter(None, control), key=len, reverse=True)
    if not names:
        return vocabulary.continue_with(text.encode())
    tokens: list[Token] = []
    for piece in re.split(f"({'|'.join(map(re.escape, names))})", text):
        known = control.get(piece)
        tokens += vocabulary.continue_with(piece.encode()) if known is None else [known]
    return tokens


def _question(
    at: str, prompt: str | list[Token], request: CompletionRequest, model: ServedModel
) -> Question:
    keep = keep_of(request, model)
    try:
        known = Prompt.of(prompt, model.vocabulary, width=model.vocab_size)
    except PromptError as error:
        raise RequestError.at(at, str(error), "invalid_prompt") from error
    if keep is not None:
        known = replace(known, tokens=known.tokens[-keep:])
    echo = ""
    if request.echo:
        echo = model.vocabulary.decode(known.tokens)
        if isinstance(prompt, str) and keep is None:
            echo = prompt
    return Question(at=at, prompt=known, echo=echo)


def _infill(gap: Gap, request: CompletionRequest, model: ServedModel) -> Infill:
    """How the model writes prompts with a gap; raises ``RequestError``."""
    for name in ("echo", "truncate_prompt_tokens", "program", "controller"):
        if getattr(request, name):
            raise RequestError.at(name, f"cannot be combined with {gap.at}; leave out one of them")
    try:
        return Infill.of(model.vocabulary)
    except PromptError as error:
        raise RequestError.at(gap.at, str(error), "unsupported_parameter") from error


def _gap_question(
    at: str, prefix: str | list[Token], infill: Infill, gap: Gap, model: ServedModel
) -> Question:
    try:
        tokens = infill.prompt(prefix, gap.suffix, gap.files)
        known = Prompt.of(tokens, model.vocabulary)
    except PromptError as error:
        raise RequestError.at(at, str(error), "invalid_prompt") from error
    return Question(at=at, prompt=known)


# ---- a choice of an answer -----------------------------------------------------------------------


class CompletionChoice:
    """A ``ReplyChoice`` of a completion."""

    def __init__(self, request: GenerationRequest, ask: Ask, index: int, id: str) -> None:
        self._index = index
        self.text = ChoiceText(request, ask, index)
        self._echo = self.text.question.echo
        self._began = False

    def opening(self) -> Event | None:
        """As ``ReplyChoice.opening``: the prompt, if it is to be echoed.

        With log-probabilities it comes with the first chunk, which has the prompt's own.
        """
        return self._choice(self._echo) if self._echo and not self.text.logprobs else None

    def nothing(self) -> Event:
        return self._choice("")

    def events(self, delta: Delta) -> list[Event]:
        text, extra = delta.text, self.text.marks(delta)
        if self.text.logprobs:
            is_first, self._began = not self._began, True
            if is_first:
                text = self._echo + text
            if delta.tokens or (is_first and self.text.scores):
                extra["logprobs"] = self._logprobs(delta.tokens, echoes=is_first)
        if not text and not extra and delta.finish is None:
            return []
        return [{**self._choice(text, delta.finish), **extra}]

    def whole(self, folded: Event) -> Event:
        if self.text.logprobs and folded["logprobs"] is None:
            folded["logprobs"] = self._logprobs([], echoes=True)
        return folded

    def _choice(self, text: str, finish: Finish | None = None) -> Event:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, reported: Sequence[Reported], *, echoes: bool) -> dict[str, Any]:
        """The four lists of the text, after those of an echo."""
        lists = self.text.writer.legacy(reported, len(self._echo) - self.text.given)
        if not echoes or not self.text.scores or not self._echo:
            return lists
        echoed = self.text.writer.echoed(self.text.scores, self._echo)
        return {name: echoed[name] + lists[name] for name in lists}


_KIND = Kind("text_completion", "text_completion", CompletionChoice, shares_prompt=False)
