"""The endpoints of llama.cpp's server: ``/completion``, ``/infill``, ``/props``, ``/slots``.

Invariant: the contents of a stream's events, concatenated, are the whole content, and the answer to
each prompt ends with exactly one event that has ``stop: true``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field

from .. import __version__
from ..chat.events import Ended
from ..engine import Options, Usage
from ..options.table import SamplingOptions, checked
from . import peers
from .ask import Api, Ask
from .bodies import Read
from .choices import Choice, ChoicesReply, Delta, grown
from .errors import RequestError
from .fields import MAX_STOPS, Piece, about
from .generation import MAX_PROMPTS, Gap
from .openai import CompletionRequest, understood
from .reply import Event, timings
from .served_model import ServedModel

# ---- bodies --------------------------------------------------------------------------------------


class LlamaRequest(CompletionRequest):
    """A body of ``POST /completion``."""

    rules = peers.LLAMA
    response_fields: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = about(
        "return these fields of the answer only, such as content or timings/prompt_n"
    )


class OtherFile(Piece):
    """A file, or a part of one, that the model reads before the file with the gap."""

    filename: str = "other"
    text: str


class InfillRequest(LlamaRequest):
    """A body of ``POST /infill``."""

    rules = peers.INFILL
    prompt: str | None = about("what comes right before the gap, after input_prefix")
    input_prefix: str = Field(description="what comes before the gap")
    input_suffix: str = Field(description="what comes after the gap")
    input_extra: Annotated[list[OtherFile], Field(max_length=MAX_PROMPTS)] | None = about(
        "other files, each with filename and text"
    )

    @property
    def gap(self) -> Gap:
        """The text after the gap, and the other files."""
        files = [(each.filename, each.text) for each in self.input_extra or ()]
        return Gap("input_suffix", self.input_suffix, files)


# ---- what they ask for ---------------------------------------------------------------------------

R = TypeVar("R", bound=LlamaRequest)

_ELSEWHERE = ("echo", "prompt_logprobs", "program", "controller", "allow_retract")
"""Fields that llama.cpp's form of an answer has no place for."""


def ask_llama(known: Read[R], model: ServedModel) -> Ask:
    """What a request asks for; raises ``RequestError``, which names the field at fault. 0 tokens
    only make the server prefill the prompt."""
    given = known.request
    for name in _ELSEWHERE:
        if getattr(given, name) not in (None, False):
            raise RequestError.at(
                name,
                "is not part of this answer; leave it out, or send POST /v1/completions",
                "unsupported_parameter",
            )
    meant: dict[str, Any] = {"max_tokens": -1} if given.max_tokens is None else {}
    meant |= {"seed": None} if given.seed == -1 else {}  # any
    if isinstance(given, InfillRequest):
        meant["prompt"] = given.input_prefix + (given.prompt or "")
    whole = given.model_copy(update=meant)
    reply = partial(LlamaReply, whole)
    return understood(
        known._replace(request=whole),
        model,
        reply,
        watched=True,
        is_infill=isinstance(given, InfillRequest),
        may_be_silent=True,
    )


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


class LlamaChoice(Choice):
    """The answer to one prompt, in the form of llama.cpp's server."""

    request: LlamaRequest

    def nothing(self) -> Event:
        return self._event(Delta())

    def events(self, delta: Delta) -> list[Event]:
        event = self._event(delta)
        events = [event] if event["content"] or delta.ids else []
        if delta.last is not None:
            final = self._final(delta.last)
            events.append(self.chosen(final) if self.ask.stream else final)
        return events

    def whole(self, folded: Event) -> Event:
        return self.chosen(folded if self.ids else {**folded, "tokens": []})

    def _event(self, delta: Delta) -> Event:
        usage = Usage() if self.progress is None else self.progress.usage
        given = len(self.ask.options.prefix)
        event = {
            "index": self.index,
            "content": delta.text,
            "tokens": delta.ids,
            "stop": False,
            "tokens_predicted": max(0, usage.completion_tokens - given),
            "tokens_evaluated": usage.prompt_tokens + given,
        }
        if delta.tokens:
            event["completion_probabilities"] = [self.writer.full_entry(t) for t in delta.tokens]
        return event

    def _final(self, last: Ended) -> Event:
        """The last event of a prompt's answer."""
        ask, word = self.ask, last.stop if isinstance(last.stop, str) else ""
        final = {
            **self.nothing(),
            "stop": True,
            "model": ask.name,
            "prompt": ask.model.vocabulary.decode(self.question.prompt.tokens),
            "generation_settings": _settings(ask.options),
            "truncated": False,
            "stop_type": "word" if word else _STOP_TYPES.get(last.reason, "eos"),
            "stopping_word": word,
        }
        if self.progress is not None:
            usage = self.progress.usage
            final["tokens_cached"] = usage.cached_tokens
            final["timings"] = timings([usage], given=len(ask.options.prefix))
        return final

    def chosen(self, answer: Event) -> Event:
        """The parts of an answer at the wanted paths, such as ``timings/prompt_n``; paths that it
        does not have are left out."""
        if not self.request.response_fields:
            return answer
        chosen = {}
        for path in self.request.response_fields:
            found: Any = answer
            for key in path.split("/"):
                if not isinstance(found, Mapping) or key not in found:
                    break
                found = found[key]
            else:
                chosen[path] = found
        return chosen


_STOP_TYPES = {"length": "limit", "cancelled": "none"}


class LlamaReply(ChoicesReply):
    """A ``Reply`` in llama.cpp's form: each event is a choice, and each choice has its own end."""

    choice = LlamaChoice

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        return []

    def fold(self, event: Event) -> None:
        super().fold({"choices": [event]})

    def whole(self) -> Any:
        """As ``Reply.whole``: an object, or a list of them for several prompts."""
        folded = grown(self._whole)["choices"]
        choices = [one.whole(each) for one, each in zip(self._choices, folded, strict=True)]
        return choices[0] if len(choices) == 1 else choices

    def _event(self, choice: Event) -> Event:
        return choice


COMPLETION = Api(
    "/completion",
    "The same in llama.cpp's form and names: n_predict (no limit), n_probs and others.",
    LlamaRequest,
    ask_llama,
    "cmpl-",
)
INFILL = Api(
    "/infill",
    "What fits between input_prefix and input_suffix, in the same form.",
    InfillRequest,
    ask_llama,
    "cmpl-",
)

# ---- what the server says of itself --------------------------------------------------------------

_UNLIMITED = -1  # llama.cpp's value for as many tokens as the context holds
_ORDER = (
    *("penalties", "dry", "top_p", "min_p", "top_n_sigma", "xtc", "top_k"),
    *("temperature", "adaptive_p"),
)
"""The order of the samplers, under llama.cpp's names."""


def in_force(model: ServedModel) -> dict[str, Any]:
    """Every sampling field of a request, with its default value."""
    values = checked(model.sampling)
    return {name: values[name] for name in SamplingOptions.__annotations__ if name != "logit_bias"}


def props_of(model: ServedModel, *, slots: int, path: str | None) -> dict[str, Any]:
    """The answer of ``/props``; ``slots``: how many sequences may run at a time; ``path``: the
    model as it was given to the server."""
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
    """The answer of ``/slots``; ``busy`` slots are taken; ``model``: None if it is not loaded."""
    context = None if model is None else model.max_context
    return [
        {"id": index, "n_ctx": context, "is_processing": index < busy} for index in range(slots)
    ]
