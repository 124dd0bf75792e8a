"""The masks of many constraints at once, in the grammar engine's own threads.

Owns the choice of what is worth a thread: masks of grammars, which are computed without
Python's lock. Must never know what the masks are for.

Invariant: afterwards every constraint's mask is what it would have been without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import FilterError
from .constraint import Constraint
from .matcher import Engine, GrammarFilter
from .protocol import Filter


def fill_masks(constraints: Sequence[Constraint], *, threads: int | None = None) -> None:
    """Have every constraint know its mask: grammars' in parallel, the others one by one.

    ``threads`` is the number of threads, by default the number of cores. Errors of a
    constraint are left for its own ``mask()`` to raise.
    """
    waiting = [constraint for constraint in constraints if not constraint.knows_mask]
    by_engine: dict[Engine, list[GrammarFilter]] = {}
    for constraint in waiting:
        for part in constraint.parts:
            for grammar in _grammars(part):
                by_engine.setdefault(grammar.engine, []).append(grammar)
    for engine, grammars in by_engine.items():
        if len(grammars) > 1:
            _fill(engine, grammars, threads)
    for constraint in waiting:
        try:
            constraint.mask()
        except FilterError:
            continue


def _grammars(filter: Filter) -> Iterator[GrammarFilter]:
    if isinstance(filter, GrammarFilter):
        yield filter
    else:
        for inner in getattr(filter, "asked", tuple)():
            yield from _grammars(inner)


def _fill(engine: Engine, grammars: Sequence[GrammarFilter], threads: int | None) -> None:
    rows = np.empty((len(grammars), engine.words), dtype=np.int32)
    work = [(grammar.matcher, index) for index, grammar in enumerate(grammars)]
    executor = engine.executor(threads)
    executor.unsafe_compute_mask_ptr(work, rows.ctypes.data, rows.strides[0], len(grammars))
    for grammar, row in zip(grammars, rows, strict=True):
        grammar.take_mask(row)
