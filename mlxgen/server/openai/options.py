"""From the fields that all requests share to the engine's options, and to a ``Call``.

Invariant: an option that the engine would refuse is refused here, by the name that it has in the
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...chat.calls.held import HeldCalls
from ...engine import Options
from ...filters import Specification
from ...sampling import Hook
from ...tokens import Token
from ..asked import Asked, Question, call_of
from ..call import Call, Reply
from ..errors import RequestError
from ..served_model import ServedModel
from ..text_request import options_of
from .plan import ReplyPlan
from .schemas import GenerationRequest
from .steering import hooks_of, steered_of


def limit_of(max_tokens: int | None, default: int | None = None) -> int | None:
    """The most tokens to generate; ``None`` is as many as the context holds."""
    if max_tokens is None:
        return default
    return None if max_tokens < 0 else max_tokens


def call_of_request(
    request: GenerationRequest,
    model: ServedModel,
    questions: Sequence[Question],
    own: Mapping[str, Any],
    *,
    prompt: str,
    filters: str,
    make_reply: Callable[[ReplyPlan, str, int], Reply],
    ignored: Sequence[str],
    spec: Specification | None = None,
    stop: str | None = None,
    ends: Sequence[Token] = (),
    held: HeldCalls | None = None,
    reasoning: bool = True,
    silent: bool = False,
) -> Call:
    """The call of a request: ``n`` answers to each of the ``questions``.

    ``own`` are the options that each kind of request spells in its own way: ``max_tokens`` and
    those of log-probabilities. ``prompt`` and ``filters`` are the fields that the questions and
    ``spec`` come from; ``ends`` are tokens that end the text, besides the request's own. The others
    are those of ``Asked`` and ``ReplyPlan``. Raises ``RequestError``.
    """
    params = {"prompt": prompt, "filters": filters}
    narrowing = [filters] if spec is not None else []
    narrowing += [name for name in ("banned", "heal") if getattr(request, name)]
    if narrowing:
        params["dead_end"] = ", ".join(narrowing)
    _check(request, own, spec)
    steered = steered_of(request, model.registry)
    hooks = hooks_of(request, model.registry)
    plan = partial(
        ReplyPlan,
        model=model.name,
        vocabulary=model.vocabulary,
        choices=request.n or 1,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        ids=bool(request.return_token_ids),
        reasoning=reasoning,
        prompt_logprobs=request.prompt_logprobs is not None,
        silent=silent,
        branched=steered is not None,
        retracts=bool(request.allow_retract and request.stream),
        timings=bool(request.timings_per_token),
        progress=bool(request.return_progress),
        params=params,
    )
    asked = Asked(
        questions=questions,
        options=_options(request, own, hooks, ends, steered=steered is not None),
        answers=request.n or 1,
        spec=spec,
        stop=stop,
        held=held,
        stream=bool(request.stream),
        watched=bool(request.timings_per_token or request.return_progress),
        ignored=ignored,
        steered=steered,
        params=params,
    )

    def reply(questions: Sequence[Question], options: Options, id: str, created: int) -> Reply:
        return make_reply(plan(questions=questions, options=options), id, created)

    return call_of(asked, model, reply)


def keep_of(request: GenerationRequest, model: ServedModel) -> int | None:
    """How many tokens of a prompt ``truncate_prompt_tokens`` leaves: its last ones; None: all."""
    most = request.truncate_prompt_tokens
    if most is None or most >= 0:
        return most
    if model.max_context is None:
        return None
    answer = max(request.max_tokens or 1, len(request.prefix_tokens or ()) + 1)
    return max(1, model.max_context - min(answer, model.max_context - 1))


def _check(request: GenerationRequest, own: Mapping[str, Any], spec: Specification | None) -> None:
    """Raise ``RequestError`` for fields that cannot be combined."""
    if request.close_json and spec is None:
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


def _options(
    request: GenerationRequest,
    own: Mapping[str, Any],
    hooks: Sequence[Hook],
    ends: Sequence[Token],
    *,
    steered: bool,
) -> dict[str, Any]:
    """The options of a request by the engine's names."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or ()
    given = {
        **options_of(request),
        **own,
        "stop": stops,
        "stop_tokens": [*(request.stop_token_ids or ()), *ends],
        "banned": request.banned,
        "prefix": request.prefix_tokens,
        "prediction": request.prediction and request.prediction.text,
        "hooks": hooks,
    }
    if steered:  # whose option it is; the reply holds what the client must not see
        given = {name: value for name, value in given.items() if value is not False}
        given.pop("allow_retract", None)
        # What is usual, or an effort means, does not bind a program.
        given["thinking_budget"] = request.thinking_budget
    if request.num_draft_tokens == 0:
        given |= {"draft": "off", "num_draft_tokens": None}
    return given
