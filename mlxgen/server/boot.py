"""Loading the model, in the engine's thread.

Owns the way from settings to a scheduler that has generated its first token. Must never know
HTTP or the event loop. Invariant: when it returns, the model has run once, and everything of it
that other threads use has been created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ..arguments import load_model
from ..engine import Limits, Options, Scheduler
from ..errors import MlxgenError
from ..language_model import LanguageModel
from ..load import weights_of
from ..loading.checkpoint import check_adapter
from .catalogue import Entry
from .engine import Engine, EngineBoot
from .logs import log
from .registry import Registry, SlowCalls
from .served_model import ServedModel
from .settings import Settings

Room: TypeAlias = Callable[[int], LanguageModel | None]
"""Waits until there is room for so many bytes of weights, and for the model that shares its own,
which it returns; raises if there will be none."""


def booting(
    settings: Settings,
    entry: Entry | None = None,
    ask: Room | None = None,
    slow: SlowCalls | None = None,
) -> EngineBoot:
    """The function that loads everything of one model, by default the only one of the settings.

    If it is one of several, it asks for room in memory before it reads the weights.
    """
    source = next(iter(settings.models), None) if entry is None else entry.source

    def loaded() -> LanguageModel:
        how = settings
        if entry is not None and entry.adapter is not None:
            assert ask is not None
            base = ask(check_adapter(entry.adapter))
            assert base is not None
            return base.with_adapter(entry.adapter, ignore_memory_limit=True)
        if ask is not None:
            ask(weights_of(source))
            how = replace(settings, ignore_memory_limit=True)  # that was looked after
        adapter, cache_bytes = settings.own_adapter, settings.cache_bytes
        return load_model(source, how, adapter=adapter, cache_bytes=cache_bytes)

    def boot() -> tuple[Scheduler, Engine]:
        lm = loaded()
        if entry is not None:
            lm.name = entry.name
        _limit_context(lm, settings)
        limits = Limits(
            max_batch=settings.max_batch,
            max_queue=settings.max_queue,
            longest_gap=settings.longest_gap,
        )
        _try_out(lm, Scheduler(lm.runtime, limits))
        if (folder := lm.prefix_cache.folder) is not None:
            log(logging.DEBUG, f"prefixes on disk: {folder}")
        return Scheduler(lm.runtime, limits), engine_of(lm, settings, slow)

    return boot


def engine_of(lm: LanguageModel, settings: Settings, slow: SlowCalls | None = None) -> Engine:
    """What other threads use of a loaded model; call this on the thread that runs it."""
    model = ServedModel.of(
        lm,
        sampling_choice=settings.sampling_defaults,
        registry=Registry.of(settings, lm, slow),
        thinking_budget=settings.thinking_budget,
        strict_fields=settings.strict_fields,
    )
    if model.dialect.tools is None:
        log(logging.DEBUG, "calls of tools in this model's text cannot be read, and stay text")
    return Engine(lm, model)


def _limit_context(lm: LanguageModel, settings: Settings) -> None:
    wanted = settings.max_context
    if wanted is None:
        return
    if lm.max_context is not None and wanted > lm.max_context:
        if settings.has_several:  # it is meant for the others
            return
        log(
            logging.WARNING,
            f"{lm.name} is said to hold {lm.max_context} tokens; what is beyond may be nonsense",
            max_context=wanted,
        )
    lm.max_context = wanted


def _try_out(lm: LanguageModel, scheduler: Scheduler) -> None:
    """Generate one token, so that a model that cannot is refused, and compiling is done."""
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
