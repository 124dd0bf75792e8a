"""The seam between a model's trunk, which gives hidden states, and the wide head of its logits.

Owns which module of a model is its head: the one that gives the logits last, found in the calls of
one pass. Must never know architectures, or why rows are wanted. That module gets a subclass of its
own class, so a model keeps its modules, their names and their parameters. Invariant: outside of
``run`` a model computes for anybody what it would without a seam; inside, its head computes the
rows that are wanted and no others. Each thread has passes of its own.

A model whose head is not found computes all rows, of which those that are wanted are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock, get_ident, local
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from .layers import CacheFactory, Model

_TRACING = Lock()
_METHODS = ("__call__", "as_linear")  # a tied head is a method of the embedding


class Wanted(NamedTuple):
    """The last ``counts`` of the ``lengths`` tokens of each row, padded at its end."""

    lengths: Sequence[int]
    counts: Sequence[int]

    def of(self, array: mx.array) -> mx.array:
        """Of [n, m, any], where the longest row ends with the array: all that are wanted, row by
        row, as [a, b, any]; if there are none, anything."""
        n, places, width = array.shape
        lengths, counts = self
        first, longest = counts[0], max(lengths)
        if not any(counts):
            return array[:1, -1:]
        if min(lengths) == longest and min(counts) == max(counts):
            return array if first == places else array[:, -first:]
        chosen: list[int] = []
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            end = (row + 1) * places - longest + length
            chosen += range(end - count, end)
        return array.reshape(n * places, width)[mx.array(chosen)][None]


class _Pass(local):
    """What a thread's pass wants, and what has come of it."""

    wanted: Wanted | None = None
    parted = False
    states: list[mx.array] | None = None


class Seam:
    """See the module. ``of`` makes them; ``Seam()`` has found no head."""

    def __init__(self) -> None:
        self._pass = _Pass()

    @classmethod
    def of(cls, model: Any, make: CacheFactory) -> Seam:
        """The seam of a model, which is there from now on; nothing is evaluated."""
        seam = cls()
        if not isinstance(model, nn.Module):
            return seam
        with _TRACING:
            head = _head(model, make)
            if head is None:
                return seam
            module, method, width = head
            known = vars(type(module)).get("_seam")
            if isinstance(known, Seam):  # of this model, or of one that shares its weights
                return known
            kind = type(module)
            module.__class__ = seam._parting(kind, method)
            if not seam._holds(model, make, width):
                module.__class__ = kind
        return seam

    def run(
        self, call: Callable[[], mx.array], wanted: Wanted, states: list[mx.array] | None = None
    ) -> mx.array:
        """The logits [r, vocab] of the rows that are ``wanted`` of a pass, which ``call`` makes;
        the ``states`` [n, m, width] that its head was given are added, if a list is given."""
        here = self._pass
        here.wanted, here.states, here.parted = wanted, states, False
        try:
            logits = call()
        finally:
            here.wanted = here.states = None
        if not here.parted:
            logits = wanted.of(logits)
        return logits.reshape(-1, logits.shape[-1])

    def _parting(self, kind: type, method: str) -> type:
        """The class of a head that computes what a pass wants."""
        here, whole = self._pass, getattr(kind, method)

        def part(module: nn.Module, states: mx.array, *given: Any, **more: Any) -> Any:
            if (wanted := here.wanted) is not None:
                here.parted = True
                if here.states is not None:
                    here.states.append(states)
                states = wanted.of(states)
            return whole(module, states, *given, **more)

        own = {"__module__": kind.__module__, method: part, "_seam": self}
        return type(kind.__name__, (kind,), own)

    def _holds(self, model: Model, make: CacheFactory, width: int) -> bool:
        """Whether a pass gives the rows that are wanted, whatever follows on the head."""
        try:
            last = self.run(lambda: model(mx.array([[0, 0]]), cache=make()), Wanted([2], [1]))
        except Exception:
            return False
        return self._pass.parted and last.shape == (1, width)


class _Called(NamedTuple):
    """A module was called by ``method``, with ``given`` first, and gave ``result``."""

    module: nn.Module
    method: str
    given: Any
    result: Any


def _head(model: Any, make: CacheFactory) -> tuple[nn.Module, str, int] | None:
    """What gives the logits last, of states alone; by which method; and how wide they are."""
    calls: list[_Called] = []
    try:
        return _last(calls, model, make)
    finally:
        calls.clear()  # the classes that note them stay until they are collected


def _last(
    calls: list[_Called], model: Any, make: CacheFactory
) -> tuple[nn.Module, str, int] | None:
    parts = {id(part): part for part in model.modules() if part is not model}
    kinds = [(part, type(part)) for part in parts.values()]
    if not kinds:
        return None
    watching = {kind: _watching(kind, calls) for _, kind in kinds}
    try:
        for part, kind in kinds:
            part.__class__ = watching[kind]
        logits = model(mx.array([[0, 0]]), cache=make())
    finally:
        for part, kind in kinds:
            part.__class__ = kind
    if logits.ndim != 3:
        return None
    found = [each for each in calls if _gives(each, logits.shape)]
    if not found:
        return None
    module, method, *_ = found[-1]
    several = sum(each.module is module and each.method == method for each in calls) > 1
    return None if several else (module, method, logits.shape[-1])


def _gives(call: _Called, shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape was made of states, not of tokens."""
    given, result = call.given, call.result
    return (
        isinstance(given, mx.array)
        and isinstance(result, mx.array)
        and mx.issubdtype(given.dtype, mx.floating)
        and result.shape == shape
        and given.shape[:-1] == shape[:-1]
    )


def _watching(kind: type, calls: list[_Called]) -> type:
    """A class of modules whose calls in this thread are noted as they end."""
    thread = get_ident()

    def watch(method: str) -> Callable[..., Any]:
        inner = getattr(kind, method)

        def call(module: nn.Module, *given: Any, **more: Any) -> Any:
            result = inner(module, *given, **more)
            if get_ident() == thread:
                calls.append(_Called(module, method, given[0] if given else None, result))
            return result

        return call

    watched = {name: watch(name) for name in _METHODS if hasattr(kind, name)}
    return type(kind.__name__, (kind,), watched)
