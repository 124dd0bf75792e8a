"""The device's side of the engine: it carries out commands, and knows nothing else.

Owns the model, the caches by number, and the slots. Must never know requests, text, or why a
command was given. Invariant: the state after a command depends only on the commands so far, so that
another runner of the same model, given the same commands, holds the same.

Nothing is evaluated unless a command waits; a pass whose logits nobody wants is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, cast

import mlx.core as mx

from ...errors import CapacityError, MlxgenError, ModelError
from ...loading.predictor import HeadPredictor
from ..prefix.store import BlockStore
from .commands import Command, Copy, Drop, Free, Keep, Open, Run, Take, Trim, Wait
from .feed import Feed, Shown
from .groups import Slots
from .held import Fed, Here, stacked
from .layers import PREFILL_STEP, CacheFactory, LayerCache, Model
from .slots import Slot

_SHOWN = 300  # characters shown of a foreign message


class Runner(Here):
    """See the module.

    ``slots`` are the places of all sequences; without them, each has a group of its own. ``cache``
    gives the prefix cache when it is needed. ``piece`` says how many tokens of a prompt there is
    memory to run at once after ``held`` others. ``feed`` handles patches of images, if there can be
    any, and ``predictor`` knows the states of a pass, for drafters that read them.
    """

    def __init__(
        self,
        model: Model,
        make: CacheFactory,
        slots: Slots | None = None,
        cache: Callable[[], BlockStore] | None = None,
        piece: Callable[[int], int] = lambda held: PREFILL_STEP,
        feed: Feed | None = None,
        predictor: HeadPredictor | None = None,
    ) -> None:
        self.model = model
        self.make = make
        self.slots = Slots(make) if slots is None else slots
        self.cache = cache
        self.piece = piece
        self.states: list[mx.array] | None = None
        """If this is a list, a pass appends its states [rows, n, width]."""
        self.feed = feed
        self.predictor = predictor
        self._stores: dict[int, Slot] = {}
        self._numbers = count()
        self._keeps = False  # this runner put something into the prefix cache
        self._rests = False  # nothing has run since the prefix cache was settled

    def number(self) -> int:
        """A number for a new cache."""
        return next(self._numbers)

    def lengths(self, caches: Iterable[int]) -> list[int]:
        """How many tokens each of these caches holds."""
        return [self._stores[kv].length for kv in caches]

    def settle(self) -> None:
        """Nothing runs: wait until all that was put into the prefix cache is computed, and let it
        be written to disk."""
        if self.cache is not None and not self._rests:
            self.do(Wait())

    def do(self, command: Command) -> Any:
        """Carry out a command; returns the logits of a ``Run``, the slot of an ``Open`` or
        ``Copy``, the result of a ``Take`` or ``Keep``, and None for all others."""
        match command:
            case Run(rows, wanted):
                logits = self._run(command)
                if not any(wanted):
                    mx.async_eval([self._stores[kv].arrays() for kv, _ in rows])
                return logits
            case Trim(kv, to):
                self._stores[kv].go_back(to)
            case Wait(kv) if kv is not None:
                mx.eval(self._stores[kv].arrays())
            case Open(kv, room):
                slot = self._stores[kv] = self.slots.open(room)
                return slot
            case Copy(kv, twin):
                slot = self._stores[twin] = self.slots.fork(self._stores[kv])
                return slot
            case Free(kv) if kv is not None:
                slot = self._stores.pop(kv)
                slot.group.leave(slot)
            case Free():
                self.slots.clear()
                if self._keeps and self.cache is not None:
                    self.cache().forget()
                if isinstance(self.feed, Shown):
                    self.feed.forget()
            case _:
                return self._do_with_prefixes(command)
        return None

    def _do_with_prefixes(self, command: Command) -> Any:
        assert self.cache is not None
        cache = self.cache()
        try:
            match command:
                case Take(int(kv), tokens):
                    return cache.take(tokens, self._stores[kv])
                case Keep(int(kv), tokens, room):
                    self._keeps, self._rests = True, False
                    return cache.keep(tokens, self._stores[kv], room=room)
            self._rests = self._rests or isinstance(command, Wait)
            return cache.do(command)
        except MlxgenError:
            raise
        except BaseException:
            self.do(Drop(0))  # how far this or another runner got is not known
            raise

    def _run(self, run: Run) -> mx.array:
        if self._rests and self.cache is not None:
            self._rests = False
            self.cache().work()
        model = self.model
        if self.states is not None and self.predictor is not None:
            model = Told(model, self.predictor, self.states)
        slots: list[Slot] = []
        given: list[Sequence[Fed]] = []
        for (kv, tokens), wanted in zip(run.rows, run.wanted, strict=True):
            slot = self._stores[kv]
            if wanted > 1:
                slot.checkpoint(before=len(tokens))
            slots.append(slot)
            given.append(tokens)
        rows: Sequence[Sequence[Fed]] = given
        if self.feed is not None:
            rows, model = self.feed(rows, model)
        first, last, counts = slots[0].index, slots[-1].index, run.wanted
        if last - first >= len(slots):  # slots between them get padding
            places = {slot.index: i for i, slot in enumerate(slots)}
            between = [places.get(index) for index in range(first, last + 1)]
            rows = [() if i is None else rows[i] for i in between]
            counts = tuple([0 if i is None else counts[i] for i in between])
        lengths = list(map(len, rows))
        logits = slots[0].group.run(model, self._inputs(rows), lengths, first)
        if len(rows) == 1 or not any(counts):
            return logits[0, -max(1, counts[0]) :]
        _, longest, vocab = logits.shape
        if min(lengths) == longest and min(counts) == max(counts):
            same = logits if counts[0] == longest else logits[:, -counts[0] :]
            return same.reshape(-1, vocab)
        chosen: list[int] = []
        for row, (length, own) in enumerate(zip(lengths, counts, strict=True)):
            end = row * longest + length
            chosen += range(end - own, end)
        return logits.reshape(-1, vocab)[mx.array(chosen)]

    _inputs = staticmethod(stacked)
    """Makes the array of a pass's tokens [rows, longest]."""


class Told:
    """A model whose passes append their states to ``states``, as a ``predictor`` reads them."""

    def __init__(self, model: Any, predictor: HeadPredictor, states: list[mx.array]) -> None:
        self._model, self._predictor, self._states = model, predictor, states

    def __call__(self, inputs: mx.array, cache: list[LayerCache], **given: Any) -> mx.array:
        states, logits = self._predictor.trunk(inputs, cache, **given)
        self._states.append(states)
        return logits

    def embed_inputs(self, *given: Any, **more: Any) -> mx.array:
        """Embed tokens and images as the model does."""
        return cast(mx.array, self._model.embed_inputs(*given, **more))


class Fault(Exception):  # noqa: N818 (it is not an error of the caller)
    """A failure in the middle of a step: of a pass, of what leads to one, or of reading its result.

    It never leaves the engine: callers get its ``error``. Nobody looks for a culprit: everything on
    the device is dropped, and every row that ran begins again from its history.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """An error as a fault, unless it is one already."""
        return error if isinstance(error, Fault) else cls(error)

    @property
    def short_of_memory(self) -> bool:
        """Whether the device was out of memory, as far as the message tells."""
        said = str(self.cause).lower()
        return isinstance(self.cause, MemoryError) or any(sign in said for sign in _NO_MEMORY)

    def error(self) -> MlxgenError:
        """The error for the caller of a sequence on which the model fails."""
        if isinstance(self.cause, MlxgenError):
            return self.cause
        if self.short_of_memory:
            error: MlxgenError = CapacityError(
                f"the device has no memory left for this sequence ({self._said}); shorten it"
            )
        else:
            error = ModelError(f"the model failed on this sequence: {self._said}")
        error.__cause__ = self.cause
        return error

    def error_of_all(self) -> MlxgenError:
        """The error if the model fails on every sequence."""
        error = ModelError(f"the model fails on every sequence: {self._said}")
        error.__cause__ = self.cause
        return error

    @property
    def _said(self) -> str:
        said = " ".join(str(self.cause).split())[:_SHOWN]
        return f"{type(self.cause).__name__}: {said}"


_NO_MEMORY = ("out of memory", "outofmemory", "insufficient memory", "unable to allocate", "malloc")
"""Parts of MLX's and Metal's messages."""
