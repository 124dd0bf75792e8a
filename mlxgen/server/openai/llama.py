"""Completions as llama.cpp's own endpoint has them: ``POST /completion``.

Invariant: the concatenated contents of a stream's events are the whole content, and each prompt
ends with one event that says ``stop``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ...engine import Chunk, Options, Progress, Usage
from ..call import Call, Comment, Event
from ..errors import RequestError, error_body
from ..served_model import ServedModel
from ..timings import timings
from .choice_text import ChoiceText, Delta
from .completion import understood
from .peers import renamed
from .plan import ReplyPlan
from .reading import read
from .schemas import CompletionRequest
from .usage import prompt_progress, still_alive, timed

_STOP_TYPES = {"length": "limit", "cancelled": "none"}
_ELSEWHERE = (
    "echo",
    "prompt_logprobs",
    "program",
    "controller",
    "allow_retract",
)  # what has no room in this answer


def parse_llama(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
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
        known = read(given, CompletionRequest)
    except RequestError as error:
        raise renamed(error, {"logprobs": "n_probs"}) from None
    call = understood(known, model, LlamaReply)
    return replace(call, watched=True, ends_with_done=False)


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
    """A ``Reply`` as llama.cpp's."""

    def __init__(self, plan: ReplyPlan, id: str, created: int) -> None:
        self._plan = plan
        self._texts = [ChoiceText(plan, index) for index in range(len(plan.rows))]
        self._progress: list[Progress | None] = [None] * len(plan.rows)
        self._last: list[Chunk | None] = [None] * len(plan.rows)

    def start(self) -> list[Event]:
        """As ``Reply.start``: nothing."""
        return []

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        if not self._plan.progress:
            return []
        event = self._event(index, progress, Delta())
        return [{**event, "prompt_progress": prompt_progress(progress)}]

    def alive(self) -> list[Comment]:
        return [still_alive(self._progress)]

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
            "prompt": plan.vocabulary.decode(plan.rows[index].prompt.tokens),
            "generation_settings": _settings(plan.options),
            "truncated": False,
            "stop_type": "word" if word else _STOP_TYPES.get(last.finish_reason or "", "eos"),
            "stopping_word": word,
        }
        if progress is not None:
            final["tokens_cached"] = progress.usage.cached_tokens
            final["timings"] = timings([progress.usage], given=plan.given)
        return final
