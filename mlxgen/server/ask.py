"""What a request asks for, whichever API it came through, as one value.

Invariant: an ``Ask`` is frozen and may be used in any thread. An option that the engine would
refuse is refused here, under the name that it has in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..chat.calls.use import Form, HeldCalls
from ..chat.marks import Reading
from ..chat.turn import Turn, plan_turn
from ..engine import Options, Prompt, control_options
from ..errors import MlxgenError
from ..filters import Specification
from ..sampling import derive_seed
from ..text import heal_plan
from ..tokens import Token
from .bodies import Read, name_used
from .errors import RequestError, as_request_error, error_body
from .fields import TextRequest, options_of
from .registry import Steered
from .reply import Event, Reply
from .served_model import ServedModel

R = TypeVar("R", bound=TextRequest)
MakeReply: TypeAlias = Callable[["Ask", str, int], Reply]
"""Makes the reply to an ``Ask``, given its id, such as ``chatcmpl-...``, and the Unix time at which
it began."""
Asks: TypeAlias = Callable[[Read[Any], ServedModel], "Ask"]
"""Turns a request to a model into an ``Ask``; raises ``RequestError``, which names the field at
fault."""

UNBOUNDED = 16_384
"""``max_tokens`` if neither the request nor the model's context limits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt, and how to read the text of each answer to it.

    - ``at``: the field that the prompt came from.
    - ``echo``: the prompt's text, if it is to precede each answer.
    - ``reading``: how to read an answer's text.
    - ``skip``: the number of bytes of the prompt that the answer's text repeats.
    """

    at: str
    prompt: Prompt
    echo: str = ""
    reading: Reading = field(default_factory=Reading)
    skip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to generate, and how to reply.

    - ``name``: the request's name for the ``model``, which the answer repeats.
    - ``questions``: the prompts, with ``answers`` answers each; ``options``: the first answer's.
    - ``spec``: the constraint on the text; ``held``: the calls that it holds to schemas.
    - ``steered``: the program or controller that writes the text; its branches are the answers.
    - ``stream``: whether the client wants events; ``watched``: whether chunks come with progress.
    - ``own_stops``, ``own_stop_tokens``: stops that the prompt's format needs, not the client's.
    - ``names``: the fields that the engine's ``prompt`` and ``filters`` come from, and those that
      exclude tokens, for ``error_body(error, ask.names)``.
    - ``ignored``: accepted fields that have no effect.
    """

    name: str
    model: ServedModel
    questions: Sequence[Question]
    options: Options
    make_reply: MakeReply = field(repr=False)
    answers: int = 1
    spec: Specification | None = None
    held: HeldCalls | None = None
    steered: Steered | None = None
    stream: bool = False
    watched: bool = False
    own_stops: Sequence[str] = ()
    own_stop_tokens: Sequence[Token] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    @property
    def jobs(self) -> Sequence[tuple[Prompt, Options]]:
        """The sequences to run: the answers to each question in turn. The first answer to each has
        the given seed, and the others have seeds derived from it."""
        jobs, given = list[tuple[Prompt, Options]](), self.options.seed
        for question in self.questions:
            for i in range(self.answers):
                seed = given if given is None or i == 0 else derive_seed(given, i)
                jobs.append((question.prompt, replace(self.options, seed=seed).fork()))
        return jobs

    @property
    def shows_images(self) -> bool:
        """Whether any prompt has images."""
        return any(token < 0 for one in self.questions for token in one.prompt.tokens)

    def loosened(self, loose: Set[str]) -> Ask:
        """The same, with the calls of these tools held only to the outline of their schemas."""
        assert self.held is not None
        spec = self.held.spec_of(loose)
        filters = () if spec is None else (spec,)
        return replace(self, options=replace(self.options, filters=filters), spec=spec)


class Api(NamedTuple):
    """An endpoint that generates answers; ``about`` describes it in one sentence. ``asks`` turns a
    ``body`` into an ``Ask``, ids begin with ``prefix``, ``end`` follows a stream's last event, and
    ``fail`` makes the event, given an id, for a stream that fails before there is an ``Ask``."""

    path: str
    about: str
    body: type[TextRequest]
    asks: Asks
    prefix: str
    end: bytes = b""
    fail: Callable[[BaseException, str], Event] = lambda error, id: error_body(error)[1]


class Meant(NamedTuple):
    """The questions of a request, and the constraints on the answers.

    - ``form``: the form that the text must have.
    - ``options``: options that a plan sets in place of the request's own.
    - ``stop``: a string that ends the text in the prompt's format.
    - ``held``: the calls that are held to schemas.
    - ``ignored``: our names of fields that have no effect on the model.
    """

    questions: Sequence[Question]
    form: Form | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    stop: str | None = None
    held: HeldCalls | None = None
    ignored: Sequence[str] = ()


def planned(
    request: TextRequest, turn: Turn, model: ServedModel, names: Mapping[str, str]
) -> Meant:
    """What a turn of a chat means; ``names["prompt"]`` is the field with the conversation. Raises
    ``RequestError``."""
    try:
        plan = plan_turn(turn, model.dialect)
    except MlxgenError as error:
        raise as_request_error(error, names) from error
    prompt = Prompt(plan.ids, plan.opens_text, plan.thinking)
    loops = {} if request.loops is not None else {"loops": "take back"}
    return Meant(
        [Question(at=names["prompt"], prompt=prompt, reading=plan.reading)],
        None if plan.spec is None else Form(plan.field, plan.spec),
        {"thinking_budget": plan.thinking_budget, **loops},
        plan.stop,
        plan.held,
        plan.ignored,
    )


def ask_of(
    known: Read[R],
    model: ServedModel,
    own: Mapping[str, Any],
    make_reply: MakeReply,
    meant: Meant,
    *,
    names: Mapping[str, str],
    left_out: Sequence[str] = (),
    answers: int = 1,
    watched: bool = False,
    steered: Steered | None = None,
    ends: Sequence[Token] = (),
) -> Ask:
    """What a request asks for; raises ``RequestError``.

    ``own``: the options whose fields the API names differently; None means the default. ``names``:
    the API's names for ours. ``ends``: tokens that the prompt's format needs as stop tokens; they
    are already in ``own``.
    """
    request, questions, form = known.request, meant.questions, meant.form
    field = "filters" if form is None else form.field
    names = {**known.names, **names}
    names["filters"] = names.get(field, field)
    narrowing = [] if form is None else [names["filters"]]
    for name in ("banned", "heal"):
        if getattr(request, name, None):
            narrowing.append(name)
    if narrowing:  # only the request's own fields can exclude everything
        names["dead_end"] = ", ".join(narrowing)
    prefix = len(own.get("prefix") or ())
    for one in questions:
        whole = len(one.prompt.tokens) + prefix
        if model.max_context is not None and whole >= model.max_context:
            raise _too_long(one.at, whole, prefix, model.max_context)
    stops = [] if meant.stop is None else [meant.stop]
    given = _options(request, model, meant, own)
    given["stop"] = [*given.get("stop", ()), *stops]
    try:
        options = Options.of(given) if steered is None else control_options(given)
        options.check_vocabulary(model.vocab_size)
    except MlxgenError as error:
        raise as_request_error(error, names) from error
    if options.heal:
        spelled = [len(heal_plan(model.vocabulary, one.prompt.tokens)[1]) for one in questions]
        questions = [replace(one, skip=n) for one, n in zip(questions, spelled, strict=True)]
    ignored = [*known.idle]
    for name in meant.ignored:
        ignored.append(name_used(names.get(name.partition("[")[0], name), known.names))
    return Ask(
        name=request.model or model.name,
        model=model,
        questions=questions,
        options=options,
        make_reply=make_reply,
        answers=answers,
        spec=None if form is None else form.spec,
        held=meant.held,
        steered=steered,
        stream=bool(request.stream),
        watched=watched or bool(request.return_progress),
        own_stops=stops,
        own_stop_tokens=ends,
        names=names,
        ignored=[*ignored, *left_out],
    )


def _options(
    request: TextRequest, model: ServedModel, meant: Meant, own: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a request, unchecked. The model's defaults give way to the request's fields,
    these to the plan's options, and these to the API's own options.
    """
    given = dict[str, Any]()
    every = {**model.sampling, **options_of(request), **meant.options, **own}
    for name, value in every.items():
        if value is not None:
            given[name] = value
    if given.get("close_json") and meant.form is None:
        raise RequestError.at(
            "close_json", "there is nothing to close; send json_schema or another constraint"
        )
    given["filters"] = [] if meant.form is None else [meant.form.spec]
    if given.get("max_tokens", -1) < 0:
        given["max_tokens"] = None if model.max_context is not None else UNBOUNDED
    return given


def _too_long(at: str, whole: int, prefix: int, most: int) -> RequestError:
    """The error for a prompt that leaves no room for an answer; ``prefix`` of its tokens count as
    already generated. Clients recognise the error by its words or its code, and shorten their
    prompts."""
    part = f", {prefix} of them in prefix_tokens" if prefix else ""
    return RequestError.at(
        at,
        f"the prompt is too long: this model's maximum context length is {most} tokens. However, "
        f"your request resulted in {whole} tokens{part}, and at least one is to be generated; "
        "shorten it",
        "context_length_exceeded",
    )
