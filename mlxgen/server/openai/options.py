"""From the fields that all requests share to the engine's options, and to a ``Call``.

Invariant: an option that the engine would refuse is refused here, by the name that it has in the
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ...engine import Options
from ...errors import MlxgenError
from ...filters import Specification
from ...options.table import OPTIONS, understood
from ...sampling import derive_seed
from ...text import heal_plan
from ..call import Call, Job, Reply
from ..errors import RequestError, as_request_error
from ..served_model import ServedModel
from .plan import ReplyPlan, Row
from .schemas import GenerationRequest

MakeReply: TypeAlias = Callable[[ReplyPlan, str, int], Reply]

UNBOUNDED = 16_384
"""``max_tokens`` if neither the request nor the model's context limits it."""


def limit_of(max_tokens: int | None, default: int | None = None) -> int | None:
    """The most tokens to generate; ``None`` is as many as the context holds."""
    if max_tokens is None:
        return default
    return None if max_tokens < 0 else max_tokens


def call_of(
    request: GenerationRequest,
    model: ServedModel,
    rows: Sequence[Row],
    own: Mapping[str, Any],
    *,
    prompt: str,
    filters: str,
    make_reply: MakeReply,
    spec: Specification | None = None,
    stop: str | None = None,
    reasoning: bool = True,
    silent: bool = False,
) -> Call:
    """The call of a request: ``n`` answers to each of the ``rows``.

    ``own`` are the options that each kind of request spells in its own way: ``max_tokens`` and
    those of log-probabilities. ``prompt`` and ``filters`` are the fields that the rows and ``spec``
    come from. ``spec`` is what the text is held to, and ``stop`` ends it, besides the request's
    stops. The others are those of ``ReplyPlan``. Raises ``RequestError``.
    """
    for row in rows:
        _check_context(row, model, request.prefix_tokens or ())
    params = {"prompt": prompt, "filters": filters}
    narrowing = [filters] if spec is not None else []
    narrowing += [name for name in ("banned_strings", "heal") if getattr(request, name)]
    if narrowing:
        params["dead_end"] = ", ".join(narrowing)
    options = _options(request, model, own, [] if spec is None else [spec], stop, params)
    answers = request.n or 1
    choices = _choices(options, answers)
    if options.heal:
        known = model.vocabulary
        rows = [replace(row, skip=len(heal_plan(known, row.prompt.tokens)[1])) for row in rows]
    plan = ReplyPlan(
        model=model.name,
        vocabulary=model.vocabulary,
        rows=[row for row in rows for _ in choices],
        options=options,
        choices=answers,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        ids=bool(request.return_token_ids),
        reasoning=reasoning,
        prompt_logprobs=request.prompt_logprobs is not None,
        silent=silent,
        timings=bool(request.timings_per_token),
        progress=bool(request.return_progress),
        params=params,
    )
    return Call(
        jobs=tuple(Job(row.prompt, one) for row in rows for one in choices),
        stream=plan.stream,
        watched=plan.timings or plan.progress,
        specs=() if spec is None else (spec,),
        params=params,
        make_reply=partial(make_reply, plan),
    )


def _check_context(row: Row, model: ServedModel, prefix: Sequence[Any]) -> None:
    """Raise ``RequestError`` for a prompt that leaves no room for an answer.

    ``prefix`` is taken as generated already. Clients know the error by its words, or by its code,
    and make their prompts shorter.
    """
    whole = len(row.prompt.tokens) + len(prefix)
    if model.max_context is None or whole < model.max_context:
        return
    part = f", {len(prefix)} of them in prefix_tokens" if prefix else ""
    raise RequestError.at(
        row.at,
        f"the prompt is too long: this model's maximum context length is {model.max_context} "
        f"tokens. However, your request resulted in {whole} tokens{part}, and at least one is to "
        "be generated; shorten it",
        "context_length_exceeded",
    )


def keep_of(request: GenerationRequest, model: ServedModel) -> int | None:
    """How many tokens of a prompt ``truncate_prompt_tokens`` leaves: its last ones; None: all."""
    most = request.truncate_prompt_tokens
    if most is None or most >= 0:
        return most
    if model.max_context is None:
        return None
    answer = max(request.max_tokens or 1, len(request.prefix_tokens or ()) + 1)
    return max(1, model.max_context - min(answer, model.max_context - 1))


def _options(
    request: GenerationRequest,
    model: ServedModel,
    own: Mapping[str, Any],
    filters: list[Specification],
    stop: str | None,
    params: Mapping[str, str],
) -> Options:
    """The options of the first choice; what the request leaves out is the model's default."""
    if request.close_json and not filters:
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
    asked = {name: getattr(request, name, None) for name in OPTIONS}
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or ()
    given = {
        **model.sampling,
        **{name: understood(name, value) for name, value in asked.items() if value is not None},
        **own,
        "stop": [*stops, *([] if stop is None else [stop])],
        "stop_tokens": request.stop_token_ids,
        "banned": request.banned_strings,
        "prefix": request.prefix_tokens,
        "logit_bias": _biases(request),
        "filters": filters,
    }
    if request.num_draft_tokens == 0:
        given |= {"draft": "off", "num_draft_tokens": None}
    if own["max_tokens"] is None and model.max_context is None:
        given["max_tokens"] = UNBOUNDED
    try:
        options = Options.of(given)
        options.check_vocabulary(model.vocab_size)
    except MlxgenError as error:
        raise as_request_error(error, params) from error
    return options


def _biases(request: GenerationRequest) -> dict[int, float] | None:
    if request.logit_bias is None:
        return None
    biases = {}
    for text, bias in request.logit_bias.items():
        if not text.isdecimal() or not text.isascii() or len(text) > 12:
            raise RequestError.at("logit_bias", f"expected token ids as keys, got {text[:40]!r}")
        biases[int(text)] = bias
    return biases


def _choices(options: Options, n: int) -> Sequence[Options]:
    """The options of ``n`` choices: the first has the given seed, the others seeds from it."""
    if options.seed is None:
        return [options] * n
    seeds = [options.seed, *(derive_seed(options.seed, i) for i in range(1, n))]
    return [options, *(replace(options, seed=seed) for seed in seeds[1:])]
