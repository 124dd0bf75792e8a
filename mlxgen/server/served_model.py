"""The facts about a model that requests need, and how it is loaded, in the engine's thread.

Owns ``ServedModel``: names, limits, defaults, and the model's dialect; and the way from settings to
a scheduler whose model has generated its first token. Must never know a request, or the event loop.
Invariant: a ``ServedModel`` is frozen, and any thread may read it: no field is an array.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..arguments import load_model
from ..chat.dialect import Dialect
from ..engine import Limits, Options, Scheduler
from ..errors import MlxgenError
from ..language_model import LanguageModel
from ..load import weights_of
from ..loading.checkpoint import check_adapter
from ..loading.generation_config import BALANCED, SamplingChoice, sampling_defaults
from ..tokens import Vocabulary
from .catalogue import Entry
from .logs import log
from .registry import Registry
from .settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model behind the server, as far as requests are concerned.

    - ``name``: the model's name in answers, unless the request has another.
    - ``vocab_size``: the width of the logits; ``max_context``: the most tokens of prompt and answer
      together (``None``: unknown).
    - ``sampling``: the sampling defaults of requests, from ``sampling_choice``.
    - ``dialect``: how the model writes; ``thinking_budget``: the most tokens of thinking if a
      request does not set it (``None``: any number).
    - ``registry``: the operator's own programs, controllers, hooks and checks.
    - ``chat_template``, ``bos_token`` and ``eos_token``: texts, empty if there is none.
    """

    name: str
    dialect: Dialect
    vocab_size: int
    max_context: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=lambda: BALANCED, hash=False)
    sampling_choice: SamplingChoice = "model"
    registry: Registry = field(default_factory=Registry, hash=False)
    thinking_budget: int | None = None
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""

    @classmethod
    def of(
        cls,
        lm: LanguageModel,
        settings: Settings | None = None,
        registry: Registry | None = None,
    ) -> ServedModel:
        """The facts of a loaded model; call this on the thread that runs it."""
        tokenizer: Any = lm.tokenizer
        settings = settings or Settings()
        choice = settings.sampling_defaults
        return cls(
            name=lm.name,
            dialect=Dialect.of(lm.vocabulary, lm.images),
            vocab_size=lm.vocab_size,
            max_context=lm.max_context,
            sampling=sampling_defaults(choice, lm.recommended),
            sampling_choice=choice,
            registry=replace(registry or Registry.of(settings), lm=lm),
            thinking_budget=settings.thinking_budget,
            chat_template=_text(getattr(tokenizer, "chat_template", None)),
            bos_token=_text(tokenizer.bos_token),
            eos_token=_text(tokenizer.eos_token),
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's facts."""
        return self.dialect.vocabulary


def _text(given: Any) -> str:
    """A text of the tokenizer; of several chat templates, the default one."""
    if isinstance(given, Mapping):
        given = given.get("default")
    return given if isinstance(given, str) else ""


# ---- loading it ----------------------------------------------------------------------------------


class Engine(NamedTuple):
    """The parts of an engine that other threads use."""

    lm: LanguageModel
    model: ServedModel


def size_of(entry: Entry) -> int:
    """The bytes of a model's weights, or of its adapter's; downloads missing files. Raises as
    ``load``."""
    return weights_of(entry.source) if entry.adapter is None else check_adapter(entry.adapter)


def boot(
    settings: Settings,
    entry: Entry | None = None,
    base: LanguageModel | None = None,
    registry: Registry | None = None,
) -> tuple[Scheduler, Engine]:
    """Load a model, by default the only one of the settings, and make its scheduler; ``base`` is
    the model whose weights it shares, if any."""
    if entry is not None and entry.adapter is not None:
        assert base is not None
        lm = base.with_adapter(entry.adapter, ignore_memory_limit=True)
    else:
        source = next(iter(settings.models), None) if entry is None else entry.source
        adapter, cache_bytes = settings.own_adapter, settings.cache_bytes
        lm = load_model(source, settings, adapter=adapter, cache_bytes=cache_bytes)
    if entry is not None:
        lm.name = entry.name
    known, wanted = lm.max_context, settings.max_context
    is_more = known is not None and wanted is not None and wanted > known
    if is_more and not settings.has_several:
        said = f"{lm.name} is said to hold {known} tokens; what is beyond may be nonsense"
        log(logging.WARNING, said, max_context=wanted)
    if wanted is not None and not (is_more and settings.has_several):  # meant for other models
        lm.max_context = wanted
    limits = Limits(
        max_batch=settings.max_batch,
        max_queue=settings.max_queue,
        longest_gap=settings.longest_gap,
    )
    _try_out(lm, Scheduler(lm.runtime, limits))
    model = ServedModel.of(lm, settings, registry)
    if model.dialect.tools is None:
        log(logging.DEBUG, "calls of tools in this model's text cannot be read, and stay text")
    if (folder := lm.prefix_cache.folder) is not None:
        log(logging.DEBUG, f"prefixes on disk: {folder}")
    return Scheduler(lm.runtime, limits), Engine(lm, model)


def _try_out(lm: LanguageModel, scheduler: Scheduler) -> None:
    """Generate one token, so that a model that cannot is refused, and compilation is done."""
    try:
        first = next(t for t in range(lm.vocabulary.size) if lm.vocabulary.is_ordinary(t))
        scheduler.submit(lm.runtime.prepare([first], Options.of({"max_tokens": 1})))
        while scheduler.busy:
            for event in scheduler.step():
                if event.error is not None:
                    raise event.error
    except MlxgenError:
        raise
    except Exception as error:
        raise MlxgenError(
            f"{lm.name} was loaded but cannot generate: {type(error).__name__}: {error}"
        ) from error
    finally:
        scheduler.close()
