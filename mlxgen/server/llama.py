"""What clients of llama.cpp's server expect: ``/completion``, ``/infill``, ``/props``, ``/slots``.

Invariant: the concatenated contents of a stream's events are the whole content, and each prompt
ends with one event that says ``stop``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field

from .. import __version__
from ..engine import Chunk, Options, Progress, Usage
from ..options.table import SamplingOptions, checked
from .ask import Ask
from .engine.mailbox import Delivery
from .errors import RequestError, error_body
from .fields import MAX_STOPS, Piece, about
from .openai import MAX_PROMPTS, CompletionRequest, Gap, gap_of, understood
from .openai_reply import ChoiceText, Delta, grow, grown, still_alive, timed
from .peers import INFILL, OPENAI, Read, Rule, read, renamed
from .reply import Aside, Event, progress_of, timings
from .served_model import ServedModel

# ---- bodies --------------------------------------------------------------------------------------


class LlamaRequest(CompletionRequest):
    """A body of ``POST /completion``."""

    response_fields: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = about(
        "return these fields of the answer only, such as content or timings/prompt_n"
    )


class OtherFile(Piece):
    """A file, or a part of one, that the model sees before the one with the gap."""

    filename: str = "other"
    text: str


class InfillRequest(LlamaRequest):
    """A body of ``POST /infill``."""

    prompt: str | None = about("what comes right before the gap, after input_prefix")
    input_prefix: str = Field(description="what comes before the gap")
    input_suffix: str = Field(description="what comes after the gap")
    input_extra: Annotated[list[OtherFile], Field(max_length=MAX_PROMPTS)] | None = about(
        "other files, each with filename and text"
    )

    @property
    def whole_prefix(self) -> str:
        """All that comes before the gap."""
        return self.input_prefix + (self.prompt or "")


# ---- what they ask for ---------------------------------------------------------------------------

R = TypeVar("R", bound=LlamaRequest)

_ELSEWHERE = ("echo", "prompt_logprobs", "program", "controller", "allow_retract")
"""What has no room in this answer."""


def parse_llama(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """What a body asks for; raises ``RequestError``, which names the field at fault."""
    known = _read(body, LlamaRequest, OPENAI, model)
    request = known.request
    return understood(known, model, partial(LlamaReply, request), gap_of(request), watched=True)


def parse_infill(body: Mapping[str, Any], model: ServedModel) -> Ask:
    """The same for ``/infill``; 0 tokens only make the server read the prompt."""
    known = _read(body, InfillRequest, INFILL, model)
    request = known.request
    files = [(each.filename, each.text) for each in request.input_extra or ()]
    whole = request.model_copy(update={"prompt": request.whole_prefix})
    gap = Gap("input_suffix", request.input_suffix, files)
    reply = partial(LlamaReply, whole)
    return understood(
        known._replace(request=whole), model, reply, gap, watched=True, is_infill=True
    )


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
    """A ``Reply`` as llama.cpp's server has it."""

    def __init__(self, request: LlamaRequest, ask: Ask, id: str, created: int) -> None:
        self._request = request
        self._ask = ask
        self._given = len(ask.options.prefix)
        count = len(ask.asked)
        self._texts = [ChoiceText(request, ask, index) for index in range(count)]
        self._progress: list[Progress | None] = [None] * count
        self._wholes: list[Event] = [{} for _ in range(count)]

    def start(self) -> list[Event]:
        """As ``Reply.start``: nothing."""
        return []

    def take(self, news: Delivery) -> list[Event]:
        index, progress = news.place, news.progress
        if progress is not None:
            self._progress[index] = progress
        events: list[Event] = []
        for chunk in news.chunks:
            delta = self._texts[index].take(chunk, news.usage)
            event = self._event(index, progress, delta)
            if event["content"] or delta.ids:
                events.append(timed(event, self._request, self._ask, [progress]))
            if chunk.finish_reason is not None:
                final = self._final(index, progress, chunk)
                events.append(self._chosen(final) if self._ask.stream else final)
        if self._ask.stream and self._request.return_progress and not news.chunks:
            told = progress_of(news, len(self._ask.asked[index].prompt.tokens))
            events += [{**self._event(index, progress, Delta()), **each} for each in told]
        return events

    def alive(self) -> list[Aside]:
        return [still_alive(self._ask, self._progress)]

    def fail(self, error: BaseException) -> Event:
        return error_body(error, self._ask.names)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: nothing, as each prompt has its own end."""
        return []

    def fold(self, event: Event) -> None:
        grow(self._wholes[event["index"]], event)

    def whole(self) -> Any:
        """As ``Reply.whole``: an object, or a list of them for several prompts."""
        ids = self._request.return_token_ids
        whole = [grown(each) for each in self._wholes]
        chosen = [self._chosen(each if ids else {**each, "tokens": []}) for each in whole]
        return chosen[0] if len(chosen) == 1 else chosen

    def _event(self, index: int, progress: Progress | None, delta: Delta) -> Event:
        usage = Usage() if progress is None else progress.usage
        event = {
            "index": index,
            "content": delta.text,
            "tokens": delta.ids,
            "stop": False,
            "tokens_predicted": max(0, usage.completion_tokens - self._given),
            "tokens_evaluated": usage.prompt_tokens + self._given,
        }
        if delta.tokens:
            entry = self._texts[index].writer.full_entry
            event["completion_probabilities"] = [entry(token) for token in delta.tokens]
        return event

    def _final(self, index: int, progress: Progress | None, last: Chunk) -> Event:
        """The end of a prompt's answer."""
        ask, word = self._ask, last.stop if isinstance(last.stop, str) else ""
        final = {
            **self._event(index, progress, Delta()),
            "stop": True,
            "model": ask.model.name,
            "prompt": ask.model.vocabulary.decode(ask.asked[index].prompt.tokens),
            "generation_settings": _settings(ask.options),
            "truncated": False,
            "stop_type": "word" if word else _STOP_TYPES.get(last.finish_reason or "", "eos"),
            "stopping_word": word,
        }
        if progress is not None:
            final["tokens_cached"] = progress.usage.cached_tokens
            final["timings"] = timings([progress.usage], given=self._given)
        return final

    def _chosen(self, answer: Event) -> Event:
        """What is found at the paths that are wanted, such as ``timings/prompt_n``; others are left
        out."""
        if not self._request.response_fields:
            return answer
        chosen = {}
        for path in self._request.response_fields:
            found: Any = answer
            for key in path.split("/"):
                if not isinstance(found, Mapping) or key not in found:
                    break
                found = found[key]
            else:
                chosen[path] = found
        return chosen


_STOP_TYPES = {"length": "limit", "cancelled": "none"}


# ---- what the server says of itself --------------------------------------------------------------

_UNLIMITED = -1  # llama.cpp's value for as many tokens as the context holds
_ORDER = (
    *("penalties", "dry", "top_p", "min_p", "top_n_sigma", "xtc", "top_k"),
    *("temperature", "adaptive_p"),
)
"""How tokens are drawn, in llama.cpp's words."""


def in_force(model: ServedModel) -> dict[str, Any]:
    """Every sampling field of a request, with its default value."""
    values = checked(model.sampling)
    return {name: values[name] for name in SamplingOptions.__annotations__ if name != "logit_bias"}


def props_of(model: ServedModel, *, slots: int, path: str | None) -> dict[str, Any]:
    """The answer; ``slots``: how many sequences may run at a time; ``path``: the model as it was
    given to the server."""
    sampling = in_force(model)
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": model.max_context,
            "is_processing": False,
            "params": {
                **sampling,
                "repeat_penalty": sampling["repetition_penalty"],
                "repeat_last_n": sampling["repetition_context_size"] or _UNLIMITED,
                "n_predict": _UNLIMITED,
                "max_tokens": _UNLIMITED,
                "ignore_eos": False,
                "samplers": _ORDER,
                "seed": -1,
                "stop": [],
                "stream": False,
            },
        },
        "sampling_defaults": model.sampling_choice,
        "n_ctx": model.max_context,
        "total_slots": slots,
        "model_alias": model.name,
        "model_path": path or model.name,
        "modalities": {"vision": model.dialect.images is not None, "audio": False},
        "chat_template": model.chat_template,
        "bos_token": model.bos_token,
        "eos_token": model.eos_token,
        "endpoint_slots": True,
        "endpoint_metrics": True,
        "endpoint_props": False,  # they cannot be changed
        "is_sleeping": False,
        "build_info": f"mlxgen {__version__}",
    }


def slots_of(model: ServedModel | None, *, busy: int, slots: int) -> list[dict[str, Any]]:
    """What ``/slots`` says; ``busy`` of the places are taken. No model: it is being loaded."""
    context = None if model is None else model.max_context
    return [
        {"id": index, "n_ctx": context, "is_processing": index < busy} for index in range(slots)
    ]
