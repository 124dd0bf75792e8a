"""A runner of one rank's part of a model, and who may call the part.

Owns the order of what the ranks compute together. Must never know which rank leads. Invariant: what
a pass adds up with the other ranks follows from the commands alone, and it is submitted as a whole
while its command is carried out. So whoever gives all ranks the same commands in one order has them
add up the same things in one order; if one left out a sum, all would wait for each other for ever.
A program that called a part on rank 0 alone would wait like that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import mlx.core as mx

from ..engine.kv.commands import Run
from ..engine.kv.held import Fed, Later
from ..engine.step.runner import Runner
from ..errors import MachineError


class Part(Runner):
    """See the module.

    ``group``: the ranks that have a part of the model. ``piped``: the parts are of layers, and each
    gets its input from the one before; then all of a pass has to be computed, or nothing is passed
    on.
    """

    def __init__(self, *given: Any, group: mx.distributed.Group, piped: bool = False) -> None:
        super().__init__(*given)
        self._group = group
        self._piped = piped
        self._first: list[mx.array] = []  # of a pass, to be submitted before it

    def _inputs(self, rows: Sequence[Sequence[Fed]]) -> mx.array:
        """The tokens; where some are not known yet, those of rank 0, as the others have zeros."""
        tokens = super()._inputs(rows)
        if any(isinstance(token, Later) for row in rows for token in row):
            own = tokens.astype(mx.int32)
            tokens = mx.distributed.all_sum(own, group=self._group)
            if self._group.rank() == 0:  # it has them, and the sum may fail and leave anything
                (tokens,) = mx.depends([own], [tokens])
            if self._piped:  # what has not the first layers has no use for them
                self._first.append(tokens)
        return tokens

    def _run(self, run: Run) -> mx.array:
        self._first.clear()
        logits = super()._run(run)
        self._built(run)
        for each in self._first:
            mx.async_eval(each)
        wanted = any(run.wanted) or self._piped
        mx.async_eval(logits if wanted else [self._stores[kv].arrays() for kv, _ in run.rows])
        return logits

    def _built(self, run: Run) -> None:
        """A pass was built without a failure, and is about to be submitted."""


def forbid_calls(model: Any) -> None:
    """Have calls of a part of a model fail, but for those of ``Called``."""
    kind = type(model)

    def refuse(self: Any, *args: Any, **options: Any) -> NoReturn:
        raise MachineError(
            "only a part of this model is on this machine, and the others take no part in a call"
            " of it; generate with its LanguageModel, or load it with distributed=False"
        )

    own = {"__call__": refuse, "__module__": kind.__module__, "called": kind.__call__}
    model.__class__ = type(kind.__name__, (kind,), own)


class Called:
    """A part of a model, for those who have all ranks call it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._call = getattr(type(model), "called", type(model).__call__)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(self._model, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
