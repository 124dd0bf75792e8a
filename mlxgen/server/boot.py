"""Loading the model, in the engine's thread.

Owns the way from settings to a scheduler that has generated its first token. Must never know
HTTP or the event loop. Invariant: when it returns, the model has run once, and everything of it
that other threads use has been created.
"""

from __future__ import annotations

import logging

from ..arguments import load_model
from ..engine import Limits, Options, Scheduler
from ..errors import MlxgenError
from ..language_model import LanguageModel
from ..load import weights_of
from ..loading.checkpoint import check_adapter
from .catalogue import Entry
from .engine import Engine
from .logs import log
from .registry import Registry
from .served_model import ServedModel
from .settings import Settings


def size_of(entry: Entry) -> int:
    """The bytes of a model's weights, or of its adapter's; fetches what is not there yet. Raises as
    ``load``."""
    return weights_of(entry.source) if entry.adapter is None else check_adapter(entry.adapter)


def boot(
    settings: Settings,
    entry: Entry | None = None,
    base: LanguageModel | None = None,
    registry: Registry | None = None,
) -> tuple[Scheduler, Engine]:
    """Load everything of one model, by default the only one of the settings; ``base`` is the one
    whose weights it shares, if so."""
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
    if wanted is not None and not (is_more and settings.has_several):  # it is meant for the others
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
