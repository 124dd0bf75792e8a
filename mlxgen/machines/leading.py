"""The runner of rank 0: what it carries out, the other ranks are told to carry out as well.

Owns what is told of a command. Must never know requests, or why a command was given. Invariant: the
others are told what has been done here, in this order; so what fails here reaches nobody. Only
files of prefixes are saved and loaded by all ranks at a time, and fail on all.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any
from weakref import WeakSet, finalize

import mlx.core as mx
import numpy as np

from ..engine.kv.commands import (
    Command,
    Copy,
    Expect,
    Keep,
    Load,
    Open,
    Restore,
    Run,
    Save,
    Snapshot,
    Spoil,
    Submit,
    Take,
    Trim,
    Wait,
    written,
)
from ..engine.kv.held import Fed, Later
from ..images import Image, Patch
from .machines import Machines
from .part import Part

_SMALL = (Trim, Snapshot, Expect)
"""They go out with what comes next, which mostly is a pass."""


class Leading(Part):
    """See the module. ``model``: the number of its model."""

    def __init__(self, machines: Machines, model: int, *given: Any, piped: bool) -> None:
        super().__init__(*given, group=machines.group.raw, piped=piped)
        self._machines = machines
        self._number = machines.number()
        self._told: set[int] = set()  # caches that the others hold
        self._held: list[int] = []  # how many tokens the caches of a pass held before it
        self._is_out = False  # the others have been told of the pass
        self._shown: WeakSet[Image] = WeakSet()
        with machines.turn():
            machines.note(["open", self._number, model, self.slots is not None])
        finalize(self, machines.dispose, ["close", self._number])

    def do(self, command: Command) -> Any:
        machines = self._machines
        if isinstance(command, Submit):  # it was, with its pass
            return None
        if isinstance(command, Wait):  # the others need not: they have added up all of it by then
            with machines.evaluating():
                return super().do(command)
        with uninterrupted(), machines.turn():
            if isinstance(command, Run):
                return self._do_run(_as_far_as_known(command))
            if isinstance(command, Take | Keep):
                self._show(command.tokens)
            told = ["do", self._number, written(command)]
            if isinstance(command, Restore | Save | Load):  # ranks wait for each other in them
                machines.tell(told)
                return super().do(command)
            result = super().do(command)
            machines.note(told)
            if isinstance(command, Open | Copy):
                self._told.add(command.kv if isinstance(command, Open) else command.twin)
                self._forget()
            if not isinstance(command, _SMALL):
                machines.flush()
            return result

    def read(self, array: mx.array) -> list[int]:
        with self._machines.evaluating():
            return super().read(array)

    def _do_run(self, run: Run) -> Any:
        self._held = [self._stores[kv].length for kv, _ in run.rows]
        self._is_out = False
        try:
            return super().do(run)
        except Exception as error:
            if self._is_out:
                raise self._machines.blamed(error) from error
            for kv, _ in run.rows:
                self.do(Spoil(kv))
            raise

    def _built(self, run: Run) -> None:
        """Tell of a pass; of tokens that nobody knows yet only how many there are."""
        if any(isinstance(token, Later) for _, tokens in run.rows for token in tokens):
            rows = [[kv, len(tokens)] for kv, tokens in run.rows]
            told = {"do": "Run", "rows": rows, "wanted": run.wanted}
        else:
            self._show(token for _, tokens in run.rows for token in tokens)
            told = written(run)
        self._is_out = True
        self._machines.tell(["run", self._number, self._held, told])

    def _show(self, tokens: Iterable[Fed]) -> None:
        """Tell of the images among tokens, as a patch is told by its digest."""
        if self.feed is None:
            return
        images = {token.image for token in tokens if isinstance(token, Patch)}
        for image in images - set(self._shown):
            pixels = base64.b85encode(np.ascontiguousarray(image.pixels).tobytes()).decode()
            told = [image.digest, pixels, image.pixels.shape, image.count, image.token]
            self._machines.note(["show", *told])
            self._shown.add(image)
            finalize(image, self._machines.dispose, ["hide", image.digest])

    def _forget(self) -> None:
        """Tell of the caches that nobody holds any more."""
        dead = self._told.difference(self._stores.keys())
        if dead:
            self._told -= dead
            self._machines.note(["drop", self._number, sorted(dead)])


def _as_far_as_known(run: Run) -> Run:
    """A pass with those tokens that have been read by now."""
    if not any(isinstance(t, Later) and t.of.is_read for _, row in run.rows for t in row):
        return run
    rows = []
    for kv, row in run.rows:
        known = [t.read() if isinstance(t, Later) and t.of.is_read else t for t in row]
        rows.append((kv, tuple(known)))
    return run._replace(rows=tuple(rows))


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A context after which SIGINT does what it would have done in it; for the main thread, as no
    other one is interrupted."""
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
