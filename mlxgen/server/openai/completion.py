"""Completion requests, with one or several raw prompts: from the body to a ``Call``.

Invariant: that of chat requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ...engine import Prompt
from ...errors import PromptError
from ...tokens import Infill, Token, Vocabulary
from ..asked import Question
from ..call import Call, Reply
from ..errors import RequestError
from ..served_model import ServedModel
from .completion_choice import COMPLETION
from .constraints import form_of
from .options import call_of_request, keep_of, limit_of
from .plan import ReplyPlan
from .reading import Read, read
from .schemas import MAX_ANSWERS, CompletionRequest, InfillRequest, Mixed, kind_of_prompt

DEFAULT_TOKENS = 16
"""The default of ``max_tokens`` for completions, as in OpenAI's API."""


R = TypeVar("R", bound=CompletionRequest)


class Gap(NamedTuple):
    """What comes after the text to generate, in the field ``at``, and other files to see first."""

    at: str
    suffix: str
    files: list[tuple[str, str]]


def parse_completion(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    known = read(body, CompletionRequest, served=model)
    return understood(known, model, COMPLETION, gap_of(known.request))


def gap_of(request: CompletionRequest) -> Gap | None:
    """What a completion says about the text after it; none if that is empty."""
    return Gap("suffix", request.suffix, []) if request.suffix else None


def understood(
    known: Read[R],
    model: ServedModel,
    make_reply: Callable[[ReplyPlan, str, int], Reply],
    gap: Gap | None,
) -> Call:
    """The call of a request, before a gap if there is one; raises as ``parse_completion``."""
    request = known.request
    model = model.called(request.model)
    form = form_of(request)
    silent = request.max_tokens == 0
    if silent and not request.echo and not isinstance(request, InfillRequest):
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
    return call_of_request(
        request,
        model,
        questions,
        {
            "max_tokens": 1 if silent else limit_of(request.max_tokens, _default(request)),
            "top_logprobs": request.logprobs,
            "prompt_logprobs": max((n for n in scores if n is not None), default=None),
        },
        prompt="prompt",
        filters="prompt" if form is None else form.field,
        make_reply=make_reply,
        ignored=known.ignored(),
        spec=None if form is None else form.spec,
        ends=() if infill is None else infill.ends,
        silent=silent,
    )


def _default(request: CompletionRequest) -> int | None:
    """The default of ``max_tokens``; a program ends by itself."""
    steered = request.program is not None or request.controller is not None
    return None if steered else DEFAULT_TOKENS


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
