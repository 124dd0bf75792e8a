"""Completions as llama.cpp's own endpoints have them: ``POST /completion`` and ``POST /infill``.

Invariant: the concatenated contents of a stream's events are the whole content, and each prompt
ends with one event that says ``stop``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from ...engine import Chunk, Options, Progress, Usage
from ..call import Aside, Call, Event
from ..errors import RequestError, error_body
from ..served_model import ServedModel
from ..timings import prompt_progress, queue_progress, timings
from .choice_text import ChoiceText, Delta
from .completion import Gap, gap_of, understood
from .peers import PEERS, Neutral, Rule, renamed
from .plan import ReplyPlan
from .reading import Read, read
from .schemas import InfillRequest, LlamaRequest
from .usage import still_alive, timed

R = TypeVar("R", bound=LlamaRequest)

_STOP_TYPES = {"length": "limit", "cancelled": "none"}
_ELSEWHERE = (
    "echo",
    "prompt_logprobs",
    "program",
    "controller",
    "allow_retract",
)  # what has no room in this answer
_EDITORS: Mapping[str, Rule] = {
    **PEERS,  # what editors send to cut a suggestion short has no effect
    **dict.fromkeys(("t_max_prompt_ms", "t_max_predict_ms", "n_indent", "samplers"), Neutral(None)),
}


def parse_llama(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    known = _read(body, LlamaRequest, PEERS, model)
    return _call(known, model, gap_of(known.request))


def parse_infill(body: Mapping[str, Any], model: ServedModel) -> Call:
    """The same for ``/infill``."""
    known = _read(body, InfillRequest, _EDITORS, model)
    request = known.request
    files = [(each.filename, each.text) for each in request.input_extra or ()]
    whole = request.model_copy(update={"prompt": request.whole_prefix})
    gap = Gap("input_suffix", request.input_suffix, files)
    return _call(known._replace(request=whole), model, gap)


def _call(known: Read[R], model: ServedModel, gap: Gap | None) -> Call:
    reply = partial(LlamaReply, fields=known.request.response_fields or ())
    call = understood(known, model, reply, gap)
    return replace(call, watched=True)


def _read(
    body: Mapping[str, Any], kind: type[R], rules: Mapping[str, Rule], model: ServedModel
) -> Read[R]:
    given = dict(body)
    for name in _ELSEWHERE:
        if given.get(name) not in (None, False):
            raise RequestError.at(
                name,
                "is not part of this answer; leave it out, or send POST /v1/completions",
                "unsupported_parameter",
            )
    given["logprobs"] = given.pop("n_probs", None) or None
    if given.get("seed") == -1:  # any
        del given["seed"]
    if given.get("n_predict") is None and given.get("max_tokens") is None:
        given["max_tokens"] = -1
    try:
        return read(given, kind, rules, served=model)
    except RequestError as error:
        raise renamed(error, {"logprobs": "n_probs"}) from None


def _settings(options: Options) -> dict[str, Any]:
    sampling = options.sampling
    return {
        **asdict(sampling),
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.repetition_context_size or -1,
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "seed": options.seed,
        "stop": list(options.stop),
        "ignore_eos": options.ignore_eos,
    }


class LlamaReply:
    """A ``Reply`` as llama.cpp's; ``fields``: the paths in the answer that are wanted, or all."""

    def __init__(
        self, plan: ReplyPlan, id: str, created: int, *, fields: Sequence[str] = ()
    ) -> None:
        self._plan = plan
        self._fields = fields
        self._texts = [ChoiceText(plan, index) for index in range(len(plan.questions))]
        self._progress: list[Progress | None] = [None] * len(plan.questions)
        self._last: list[Chunk | None] = [None] * len(plan.questions)

    def start(self) -> list[Event]:
        """As ``Reply.start``: nothing."""
        return []

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        self._progress[index] = progress
        if not self._plan.progress:
            return []
        event = self._event(index, progress, Delta())
        return [{**event, "prompt_progress": prompt_progress(progress)}]

    def queued(self, index: int, ahead: int) -> list[Event]:
        """As ``QueuedReply.queued``."""
        if not self._plan.progress:
            return []
        tokens = len(self._plan.questions[index].prompt.tokens)
        event = self._event(index, None, Delta())
        return [{**event, "prompt_progress": queue_progress(tokens, ahead)}]

    def alive(self) -> list[Aside]:
        return [still_alive(self._plan, self._progress)]

    def push(
        self, index: int, chunk: Chunk, progress: Progress | None = None, usage: Usage | None = None
    ) -> list[Event]:
        self._progress[index] = progress
        delta = self._texts[index].take(chunk, usage)
        if chunk.finish_reason is not None:
            self._last[index] = chunk
        if not self._plan.stream:
            return []
        event = self._event(index, progress, delta)
        events = [timed(event, self._plan, [progress])] if event["content"] or delta.ids else []
        return events if self._last[index] is None else [*events, self._final(index)]

    def fail(self, error: BaseException) -> Event:
        return error_body(error, self._plan.params)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: nothing, as each prompt has its own end."""
        return []

    def complete(self, usages: Sequence[Usage]) -> Any:
        """As ``Reply.complete``: an object, or a list of them for several prompts."""
        whole = [self._final(index) for index in range(len(self._texts))]
        return whole[0] if len(whole) == 1 else whole

    def _event(self, index: int, progress: Progress | None, delta: Delta) -> dict[str, Any]:
        usage = Usage() if progress is None else progress.usage
        event = {
            "index": index,
            "content": delta.text,
            "tokens": delta.ids,
            "stop": False,
            "tokens_predicted": max(0, usage.completion_tokens - self._plan.given),
            "tokens_evaluated": usage.prompt_tokens + self._plan.given,
        }
        if delta.tokens:
            entry = self._texts[index].writer.full_entry
            event["completion_probabilities"] = [entry(token) for token in delta.tokens]
        return event

    def _final(self, index: int) -> dict[str, Any]:
        """The end of a prompt's answer, or all of it if nothing was sent before."""
        plan, progress, last = self._plan, self._progress[index], self._last[index]
        assert last is not None
        word = last.stop if isinstance(last.stop, str) else ""
        event = self._event(index, progress, self._texts[index].whole)
        final = {
            **event,
            "tokens": event["tokens"] if plan.ids else [],
            "stop": True,
            "model": plan.model,
            "prompt": plan.vocabulary.decode(plan.questions[index].prompt.tokens),
            "generation_settings": _settings(plan.options),
            "truncated": False,
            "stop_type": "word" if word else _STOP_TYPES.get(last.finish_reason or "", "eos"),
            "stopping_word": word,
        }
        if progress is not None:
            final["tokens_cached"] = progress.usage.cached_tokens
            final["timings"] = timings([progress.usage], given=plan.given)
        return _chosen(final, self._fields) if self._fields else final


def _chosen(answer: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """What is found at these paths, such as ``timings/prompt_n``; others are left out."""
    chosen = {}
    for path in paths:
        found: Any = answer
        for key in path.split("/"):
            if not isinstance(found, Mapping) or key not in found:
                break
            found = found[key]
        else:
            chosen[path] = found
    return chosen
