"""The masks of many constraints at once, in the grammar engine's own threads.

Owns the choice of what is worth a thread: masks of grammars, which are computed without
Python's lock, where there are many and cores to spare. Must never know what they are for.

A mask takes 5 to 30 µs, and handing it to a thread about as much, so few rows gain nothing:
on two cores that are busy, 32 rows took 0.6 ms one by one and 1.2 to 2 ms in threads.

Invariant: afterwards every constraint's mask is what it would have been without.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from .compiled import Engine
from .constraint import Constraint
from .matcher import GrammarFilter
from .protocol import Filter

_WORTH = 8  # grammars for which threads are woken


def fill_masks(constraints: Sequence[Constraint], *, threads: int | None = None) -> None:
    """Have every constraint know its mask: grammars' in parallel, the others one by one.

    ``threads`` is the number of threads. By default it is one less than there are cores, and
    fewer than ``_WORTH`` grammars, or one thread, are no reason to use any. Errors of a
    constraint are left for its own ``mask()`` to raise.
    """
    count = threads or (os.cpu_count() or 1) - 1
    worth = 2 if threads else _WORTH if count > 1 else sys.maxsize
    waiting = [constraint for constraint in constraints if not constraint.knows_mask]
    by_engine: dict[Engine, list[GrammarFilter]] = {}
    for constraint in waiting:
        for part in constraint.parts:
            for grammar in _grammars(part):
                by_engine.setdefault(grammar.engine, []).append(grammar)
    for engine, grammars in by_engine.items():
        if len(grammars) >= worth:
            _fill(engine, grammars, count)
    for constraint in waiting:
        with contextlib.suppress(Exception):  # a filter of the caller's may raise anything
            constraint.mask()


def _grammars(filter: Filter) -> Iterator[GrammarFilter]:
    if isinstance(filter, GrammarFilter):
        yield filter
    else:
        for inner in getattr(filter, "asked", tuple)():
            yield from _grammars(inner)


def _fill(engine: Engine, grammars: Sequence[GrammarFilter], threads: int) -> None:
    rows = np.empty((len(grammars), engine.words), dtype=np.int32)
    work = [(grammar.matcher, index) for index, grammar in enumerate(grammars)]
    executor = engine.executor(threads)
    executor.unsafe_compute_mask_ptr(work, rows.ctypes.data, rows.strides[0], len(grammars))
    for grammar, row in zip(grammars, rows, strict=True):
        grammar.take_mask(row)
