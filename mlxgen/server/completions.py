"""OpenAI's completions: their bodies, what these ask for, and their answers.

``null`` means the default for every field that is not required.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, WithJsonSchema

from ..engine import Prompt
from ..errors import PromptError
from ..tokens import Infill, Token, Vocabulary
from .ask import Api, Ask, MakeReply, Question
from .bodies import Read
from .choices import Choice, ChoicesReply, Delta, Finish
from .errors import RequestError
from .fields import Json, Limit, about, got, option
from .generation import GenerationRequest, ask_of_generation, form_of, keep_of
from .peers import OPENAI
from .reply import Event
from .served_model import ServedModel
from .told_tokens import Reported
from .wire import DONE

MAX_PROMPTS = 256
MAX_ANSWERS = 256
DEFAULT_TOKENS = 16
"""The default of ``max_tokens``, as in OpenAI's API."""

# ---- bodies --------------------------------------------------------------------------------------

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
        """What comes after the text; none if that is empty."""
        return Gap("suffix", self.suffix) if self.suffix else None


# ---- what is asked for ---------------------------------------------------------------------------

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
) -> Ask:
    """What a request asks for; raises as ``ask_completion``."""
    request, gap = known.request, known.request.gap
    words = model.vocabulary
    prompts = list(_prompts(request.prompt, words, may_be_empty=is_infill))
    steered = request.steered_by
    if steered is not None and prompts[0][0] != "prompt":
        raise RequestError.at("prompt", f"expected one prompt with {steered}, got a list")
    most = request.max_tokens
    if most is None and steered is None:  # a program ends by itself
        most = DEFAULT_TOKENS
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
        {
            "max_tokens": 1 if silent else most,
            "top_logprobs": request.logprobs,
            "prompt_logprobs": max(scores, default=None),
        },
        make_reply,
        names={"prompt": "prompt"},
        questions=questions,
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


# ---- answers -------------------------------------------------------------------------------------


class CompletionChoice(Choice):
    """A choice of a completion."""

    _began = False

    def opening(self) -> Event | None:
        """As of each API: the prompt, if it is to be echoed.

        With log-probabilities it comes with the first chunk, which has the prompt's own.
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
        """The four lists of the text, after those of an echo."""
        echo = self.question.echo
        lists = self.writer.legacy(reported, len(echo) - self.given)
        if not echoes or not self.scores or not echo:
            return lists
        echoed = self.writer.echoed(self.scores, echo)
        return {name: echoed[name] + lists[name] for name in lists}


class CompletionReply(ChoicesReply):
    """A ``Reply``."""

    event = whole_event = "text_completion"
    choice = CompletionChoice


COMPLETIONS = Api(
    "/v1/completions",
    "Continue raw text or tokens.",
    CompletionRequest,
    ask_completion,
    "cmpl-",
    DONE,
)
