"""Completions as llama.cpp's own endpoint has them: ``POST /completion``.

Owns the names of its answer, and where its requests differ from ``/v1/completions``. Must never
know how a completion is parsed or made. Invariant: the concatenated contents of a stream's events
are the whole content, and each prompt ends with one event that says ``stop``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from ...engine import Chunk, Options, Progress, Usage
from ..call import Call, Event
from ..errors import RequestError, error_body
from ..served_model import ServedModel
from .choice_text import ChoiceText, Delta
from .completion import understood
from .fields import check_body
from .logprobs import TokenWriter
from .peers import renamed
from .reading import read
from .reply import ReplyPlan
from .schemas import CompletionRequest
from .timings import prompt_progress, timings

_STOP_TYPES = {"length": "limit", "cancelled": "none"}
_ELSEWHERE = ("echo", "prompt_logprobs")  # what has no room in this answer


def parse_llama(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    given = dict(check_body(body))
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
        request = read(given, CompletionRequest)
    except RequestError as error:
        raise renamed(error, {"logprobs": "n_probs"}) from None
    call, plan = understood(request, model)
    make_reply = partial(LlamaReply, plan, _settings(call.jobs[0].options))
    return replace(call, watched=True, ends_with_done=False, make_reply=make_reply)


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


@dataclass(slots=True)
class _Row:
    """The answer to one prompt, so far."""

    text: ChoiceText
    writer: TokenWriter
    content: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    probabilities: list[dict[str, Any]] = field(default_factory=list)
    progress: Progress | None = None
    last: Chunk | None = None


class LlamaReply:
    """A ``Reply`` as llama.cpp's."""

    def __init__(self, plan: ReplyPlan, settings: dict[str, Any], id: str, created: int) -> None:
        self._plan = plan
        self._settings = settings
        self._rows = [_Row(ChoiceText(text), plan.writer(text)) for text in plan.texts]

    def start(self) -> list[Event]:
        """As ``Reply.start``: nothing."""
        return []

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        """As ``Reply.prefilled``."""
        if not self._plan.progress:
            return []
        event = self._event(index, progress, "", [])
        return [{**event, "prompt_progress": prompt_progress(progress)}]

    def push(
        self,
        index: int,
        chunk: Chunk,
        progress: Progress | None = None,
        usage: Usage | None = None,
    ) -> list[Event]:
        """As ``Reply.push``."""
        row = self._rows[index]
        row.progress = progress
        delta = row.text.take(chunk, usage)
        content = delta.text
        probabilities = self._probabilities(row, delta)
        if chunk.finish_reason is not None:
            row.last = chunk
        if not self._plan.stream:
            row.content.append(content)
            row.ids.extend(delta.ids)
            row.probabilities.extend(probabilities)
            return []
        event = self._event(index, progress, content, delta.ids)
        if probabilities:
            event["completion_probabilities"] = probabilities
        events = [self._plan.timed(event, [progress])] if content or delta.ids else []
        return events if row.last is None else [*events, self._final(index)]

    def fail(self, error: BaseException) -> Event:
        """As ``Reply.fail``."""
        return error_body(error, self._plan.params)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: nothing, as each prompt has its own end."""
        return []

    def complete(self, usages: Sequence[Usage]) -> Any:
        """As ``Reply.complete``: an object, or a list of them for several prompts."""
        whole = [self._final(index) for index in range(len(self._rows))]
        return whole[0] if len(whole) == 1 else whole

    def _probabilities(self, row: _Row, delta: Delta) -> list[dict[str, Any]]:
        if not self._plan.logprobs:
            return []
        return [row.writer.full_entry(token) for token in delta.tokens]

    def _event(
        self, index: int, progress: Progress | None, content: str, ids: Sequence[int]
    ) -> dict[str, Any]:
        usage = Usage() if progress is None else progress.usage
        return {
            "index": index,
            "content": content,
            "tokens": list(ids),
            "stop": False,
            "tokens_predicted": max(0, usage.completion_tokens - self._plan.given),
            "tokens_evaluated": usage.prompt_tokens + self._plan.given,
        }

    def _final(self, index: int) -> dict[str, Any]:
        """The end of a prompt's answer, or all of it if nothing was sent before."""
        row, plan = self._rows[index], self._plan
        assert row.last is not None
        word = row.last.stop if isinstance(row.last.stop, str) else ""
        ids = row.ids if plan.ids else []
        final = {
            **self._event(index, row.progress, "".join(row.content), ids),
            "stop": True,
            "model": plan.model,
            "prompt": plan.texts[index].vocabulary.decode(plan.prompts[index]),
            "generation_settings": self._settings,
            "truncated": False,
            "stop_type": "word" if word else _STOP_TYPES.get(row.last.finish_reason or "", "eos"),
            "stopping_word": word,
        }
        if row.probabilities:
            final["completion_probabilities"] = row.probabilities
        if row.progress is not None:
            final["tokens_cached"] = row.progress.usage.cached_tokens
            final["timings"] = timings([row.progress], given=plan.given)
        return final
