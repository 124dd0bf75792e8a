"""A part of a model on several machines: who may call it, what runs it, and what it shares.

The collectives of a pass follow from its command alone, and all of them are submitted while the
command is carried out. So ranks that get the same commands in one order run the same collectives in
one order; if one left out a collective, all would wait for each other for ever. A program that
called the part on rank 0 alone would wait like that.

Rank 0 runs a command before it tells the others, so its failures do not reach them. Only prefix
files are saved and loaded by all ranks at the same time, and fail on all. Must never know requests,
or why a command was given.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import WeakSet, finalize, ref

import mlx.core as mx
import numpy as np

from ..engine.kv.commands import (
    Command,
    Keep,
    Run,
    Take,
    Trim,
    Wait,
    uses_files,
    written,
)
from ..engine.kv.footprint import Footprint
from ..engine.kv.held import Fed, Later
from ..engine.kv.runner import Runner
from ..engine.prefix.blocks import different
from ..engine.prefix.store import BlockStore
from ..engine.runtime import ModelRuntime
from ..errors import MachineError, MlxgenError
from ..images import Image, Patch
from ..loading.memory import memory_limit
from ..loading.sharding import Split
from .machines import Machines

M = TypeVar("M")


class NotCallable:
    """A part of a model, as code outside of mlxgen sees it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise MachineError(
            "only a part of this model is on this machine, and the others take no part in a call"
            " of it; generate with its LanguageModel, or load it with distributed=False"
        )


class Part(Runner):
    """A runner of a rank's part: see the module.

    ``group``: the ranks that have a part of the model. ``piped``: the parts are layers, each of
    which gets its input from the one before; so a pass must be computed as a whole, or nothing is
    passed on.
    """

    def __init__(self, *given: Any, group: mx.distributed.Group, piped: bool = False) -> None:
        super().__init__(*given)
        self._group = group
        self._piped = piped
        self._first: list[mx.array] = []  # arrays to submit before the pass

    def _inputs(self, rows: Sequence[Sequence[Fed]]) -> mx.array:
        """The tokens of a pass; a sum gives all ranks those that only rank 0's device has yet."""
        tokens = super()._inputs(rows)
        if any(isinstance(token, Later) for row in rows for token in row):
            own = tokens.astype(mx.int32)
            tokens = mx.distributed.all_sum(own, group=self._group)
            if self._group.rank() == 0:  # it has them, and a failed sum may leave anything
                (tokens,) = mx.depends([own], [tokens])
            if self._piped:  # ranks without the first layers do not use them
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
        """Called when a pass has been built without a failure, before it is submitted."""


# ---- rank 0 ------------------------------------------------------------------------------------


class Leading(Part):
    """Rank 0's runner, which has the others do what it does; ``model``: the model's number."""

    def __init__(self, machines: Machines, model: int, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self._machines = machines
        self._number = machines.number()
        self._held: list[int] = []  # how many tokens the caches of a pass held before it
        self._is_out = False  # the others have been told of the pass
        self._shown: WeakSet[Image] = WeakSet()
        with machines.turn():
            slots = self.slots
            machines.note(["open", self._number, model, slots.may_batch, slots.spare])
        finalize(self, machines.dispose, ["close", self._number])

    def do(self, command: Command) -> Any:
        machines = self._machines
        # The others need not wait for a cache: they have joined all of its collectives by then
        if isinstance(command, Wait) and command.kv is not None:
            with machines.evaluating():
                return super().do(command)
        with uninterrupted(), machines.turn():
            if isinstance(command, Run):
                return self._do_run(command)
            if isinstance(command, Take | Keep):
                self._show(command.tokens)
            told = ["do", self._number, written(command)]
            if uses_files(command):  # the ranks wait for each other
                machines.tell(told)
                return super().do(command)
            result = super().do(command)
            machines.note(told)
            if not isinstance(command, Trim):  # it goes with the next item, mostly a pass
                machines.flush()
            return result

    def read(self, array: mx.array) -> list[int]:
        with self._machines.evaluating():
            return super().read(array)

    def _do_run(self, run: Run) -> Any:
        self._held = self.lengths(kv for kv, _ in run.rows)
        self._is_out = False
        try:
            with self._machines.channel.step():  # it blocks if much is submitted already
                return super().do(run)
        except Exception as error:
            if self._is_out:
                raise self._machines.blamed(error) from error
            raise  # the caller frees what it may have changed here alone

    def _built(self, run: Run) -> None:
        """Tell the others of a pass; if tokens are not read yet, only how many there are."""
        if any(isinstance(token, Later) for _, tokens in run.rows for token in tokens):
            rows = [[kv, len(tokens)] for kv, tokens in run.rows]
            told = {"do": "Run", "rows": rows, "wanted": run.wanted}
        else:
            self._show(token for _, tokens in run.rows for token in tokens)
            told = written(run)
        self._is_out = True
        self._machines.tell(["run", self._number, self._held, told])

    def _show(self, tokens: Iterable[Fed]) -> None:
        """Send the images among ``tokens``, because a patch names its image by the digest."""
        if self.feed is None:
            return
        images = {token.image for token in tokens if isinstance(token, Patch)}
        for image in images - set(self._shown):
            pixels = base64.b85encode(np.ascontiguousarray(image.pixels).tobytes()).decode()
            told = [image.digest, pixels, image.pixels.shape, image.count, image.token]
            self._machines.note(["show", *told])
            self._shown.add(image)
            finalize(image, self._machines.dispose, ["hide", image.digest])


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A context that delays SIGINT to its end. It does nothing outside of the main thread, the only
    one that is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda *given: noted.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted and callable(before):
            before(*noted[-1])


# ---- the model ---------------------------------------------------------------------------------


class Share(NamedTuple):
    """The part of model ``number`` that this rank has."""

    machines: Machines
    number: int

    @property
    def group(self) -> mx.distributed.Group:
        """The ranks, for mlx-lm."""
        return self.machines.group.raw


class PartRuntime(ModelRuntime):
    """The runtime of a model whose other parts are on other ranks."""

    def __init__(self, share: Share, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.share = share
        # Of all ranks, once all parts are loaded
        self.footprints: tuple[Footprint, ...] = ()
        self.room = 0  # the fewest bytes that a machine has left next to its part of the weights

    def settle(self) -> None:
        """Exchange the facts that the ranks need from one another: collective.

        Raises ``LoadError`` if rank 0 could not decide for all parts from its own.
        """
        room = memory_limit()[0] - self.footprint.weights
        told = [asdict(self.footprint), room, self.batches]  # on all ranks, as it has collectives
        said = self.share.machines.group.exchange(told)
        footprints, rooms, batches = zip(*said, strict=True)
        for each in footprints:
            each["windows"] = tuple(map(tuple, each["windows"]))  # JSON has no tuples
        self.footprints = tuple([Footprint(**each) for each in footprints])
        different(self.footprints)
        self.room, self.batches = min(rooms), all(batches)

    @property
    def shown(self) -> Any:
        return NotCallable(self.model)

    @property
    def _device(self) -> int:
        return self.room + self.footprint.weights  # as if it had the room of the smallest

    def _store(self, **_: Any) -> BlockStore:
        group = self.share.machines.group
        return super()._store(part=(group.rank, group.size), sizes=self.footprints)

    def _opened(self, cache: BlockStore) -> None:
        machines, limit = self.share.machines, cache.max_bytes
        cache.together = machines.together
        if machines.leads:
            cache.through = partial(_through, ref(self), cache)
            cache.max_bytes = limit  # on all ranks

    @property
    def _make_runner(self) -> Callable[..., Part]:
        machines, number = self.share
        piped = Split.of(self.model, self.share.group).kind == "pipeline"
        make = partial(Leading, machines, number) if machines.leads else Part
        return partial(make, group=self.share.group, piped=piped)


def _through(of: ref[PartRuntime], cache: BlockStore, command: Command) -> Any:
    """Change the prefix caches of all parts of a model, which the cache must not keep alive."""
    lm = of()
    return cache.do(command) if lm is None else lm.runner().do(command)


def shared(machines: Machines, load: Callable[[Share], M], settings: Mapping[str, Any]) -> M:
    """Load a model of which every rank has a part: ``load`` loads this rank's, and the others get
    ``settings``."""
    with machines.turn():
        number = machines.number()
        machines.tell(["load", number, settings])
        try:
            model = load(Share(machines, number))
        except MlxgenError:  # raised on all ranks
            raise
        except BaseException as error:  # the others would wait for ever
            machines.channel.fail(f"loading was broken off by {type(error).__name__}")
            raise
    finalize(model, machines.dispose, ["unload", number])
    return model
