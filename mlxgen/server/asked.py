"""What a request asks for, whichever API it came by, and the call that answers it.

Invariant: an option that the engine would refuse is refused here, by the name that it has in the
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..chat.calls.held import HeldCalls
from ..chat.splitter import Reading
from ..engine import Options, Prompt, control_options
from ..errors import MlxgenError
from ..filters import Specification
from ..sampling import derive_seed
from ..text import heal_plan
from .call import Call, Job, Reply, Steered
from .errors import RequestError, as_request_error
from .served_model import ServedModel

UNBOUNDED = 16_384
"""``max_tokens`` if neither the request nor the model's context limits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt, and how to read the text of each answer to it.

    - ``at``: the field that it came from.
    - ``echo``: its text, if that is to come before each answer.
    - ``reading``: that of the answer's events.
    - ``skip``: bytes of the prompt that the text spells again.
    """

    at: str
    prompt: Prompt
    echo: str = ""
    reading: Reading = field(default_factory=Reading)
    skip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be generated.

    - ``questions``: each has so many ``answers``.
    - ``options``: those that the request gives, by the engine's names; None means the default.
    - ``spec``: what the text is held to; ``stop`` ends it, besides the request's own stops.
    - ``stream``, ``watched``, ``steered``, ``held``, ``params``, ``ignored``:
      as in ``Call``.
    """

    questions: Sequence[Question]
    options: Mapping[str, Any]
    answers: int = 1
    spec: Specification | None = None
    stop: str | None = None
    stream: bool = False
    watched: bool = False
    steered: Steered | None = None
    held: HeldCalls | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()


MakeReply: TypeAlias = Callable[[Sequence[Question], Options, str, int], Reply]
"""Makes a reply of the question of each answer, the options of the first one, an id and a time."""


def call_of(asked: Asked, model: ServedModel, make_reply: MakeReply) -> Call:
    """The call; raises ``RequestError``."""
    for one in asked.questions:
        _check_context(one, model, asked.options.get("prefix") or ())
    options = _options(asked, model)
    choices = _choices(options, asked.answers)
    questions = asked.questions
    if options.heal:
        known = model.vocabulary
        questions = [
            replace(one, skip=len(heal_plan(known, one.prompt.tokens)[1])) for one in questions
        ]
    each = [one for one in questions for _ in choices]
    return Call(
        jobs=tuple(Job(one.prompt, choice.fork()) for one in questions for choice in choices),
        stream=asked.stream,
        watched=asked.watched,
        specs=() if asked.spec is None else (asked.spec,),
        steered=asked.steered,
        held=asked.held,
        params=asked.params,
        ignored=asked.ignored,
        make_reply=lambda id, created: make_reply(each, options, id, created),
    )


def _options(asked: Asked, model: ServedModel) -> Options:
    """The options of the first answer; what the request leaves out is the model's default."""
    own = {name: value for name, value in asked.options.items() if value is not None}
    stops = [*own.get("stop", ()), *([] if asked.stop is None else [asked.stop])]
    filters = [] if asked.spec is None else [asked.spec]
    given = {**model.sampling, **own, "stop": stops, "filters": filters}
    if "max_tokens" not in own:
        given["max_tokens"] = None if model.max_context is not None else UNBOUNDED
    try:
        options = Options.of(given) if asked.steered is None else control_options(given)
        options.check_vocabulary(model.vocab_size)
    except MlxgenError as error:
        raise as_request_error(error, asked.params) from error
    return options


def _check_context(question: Question, model: ServedModel, prefix: Sequence[Any]) -> None:
    """Raise ``RequestError`` for a prompt that leaves no room for an answer.

    ``prefix`` is taken as generated already. Clients know the error by its words, or by its code,
    and make their prompts shorter.
    """
    whole = len(question.prompt.tokens) + len(prefix)
    if model.max_context is None or whole < model.max_context:
        return
    part = f", {len(prefix)} of them in prefix_tokens" if prefix else ""
    raise RequestError.at(
        question.at,
        f"the prompt is too long: this model's maximum context length is {model.max_context} "
        f"tokens. However, your request resulted in {whole} tokens{part}, and at least one is to "
        "be generated; shorten it",
        "context_length_exceeded",
    )


def _choices(options: Options, n: int) -> Sequence[Options]:
    """The options of ``n`` choices: the first has the given seed, the others seeds from it."""
    if options.seed is None:
        return [options] * n
    seeds = [options.seed, *(derive_seed(options.seed, i) for i in range(1, n))]
    return [options, *(replace(options, seed=seed) for seed in seeds[1:])]
