"""The masks of many constraints at once, in the grammar engine's own threads.

Threads are used for masks of grammars, which are computed without the GIL, if there are many
of them and cores to spare. A mask takes 5 to 30 µs, and handing it to a thread about as much,
so few rows gain nothing: on two busy cores, 32 rows took 0.6 ms one by one and 1.2 to 2 ms in
threads.

Invariant: afterwards every constraint has the mask that it would have computed itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import numpy as np

from .compiled import GrammarEngine
from .compose import leaves
from .constraint import Constraint
from .matcher import GrammarFilter

_WORTH = 8  # from so many rows on, threads are used


def fill_masks(constraints: Sequence[Constraint], *, threads: int | None = None) -> None:
    """Computes the mask of every constraint: those of grammars in parallel, others one by one.

    ``threads`` is the number of threads: by default one less than there are cores, and none
    for fewer than ``_WORTH`` constraints. A constraint's own ``mask()`` raises its errors.
    """
    count = threads or (os.cpu_count() or 1) - 1
    worth = 2 if threads else _WORTH if count > 1 else sys.maxsize
    waiting = [constraint for constraint in constraints if constraint.outlook is None]
    by_engine: dict[GrammarEngine, list[GrammarFilter]] = {}
    for constraint in waiting if len(waiting) >= worth else ():
        for leaf in leaves(constraint.filter):
            if isinstance(leaf, GrammarFilter):
                by_engine.setdefault(leaf.engine, []).append(leaf)
    for engine, grammars in by_engine.items():
        _fill(engine, grammars, count)
    for constraint in waiting:
        with contextlib.suppress(Exception):  # a caller's filter may raise anything
            constraint.look()


def _fill(engine: GrammarEngine, grammars: Sequence[GrammarFilter], threads: int) -> None:
    rows = np.empty((len(grammars), engine.words), dtype=np.int32)
    work = [(grammar.matcher, index) for index, grammar in enumerate(grammars)]
    executor = engine.executor(threads)
    executor.unsafe_compute_mask_ptr(work, rows.ctypes.data, rows.strides[0], len(grammars))
    for grammar, row in zip(grammars, rows, strict=True):
        grammar.take_mask(row)
