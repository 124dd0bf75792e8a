"""The ranks other than 0: they carry out rank 0's messages, until it says goodbye.

Owns the models, runners and caches that rank 0 made here, by its numbers. Must never know requests,
text or settings other than a model's. Invariant: nothing is decided here.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np

from ..engine.kv.commands import Command, Run, read, uses_files
from ..engine.kv.held import Fed, Later, Unread
from ..engine.kv.runner import Runner
from ..errors import MachineError, MlxgenError
from ..images import Image
from .machines import LATE, Machines
from .share import Share

CLEAR_EVERY = 256  # passes between two releases of MLX's buffer cache


class Follower:
    """See the module. ``load`` loads this rank's part of a model, given its settings, and returns a
    ``ModelRuntime``."""

    def __init__(self, machines: Machines, load: Callable[[Share, Mapping[str, Any]], Any]) -> None:
        self._machines = machines
        self._load = load
        self._models: dict[int, Any] = {}
        self._runners: dict[int, Runner] = {}
        self._images: dict[str, Image] = {}
        self._holders: Counter[str] = Counter()  # how many equal images rank 0 holds, by digest
        self._passes = 0

    def serve(self) -> NoReturn:
        """Carry out rank 0's messages, and end the process after the last one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for rank 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would wait for MLX to return
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        channel = self._machines.channel
        channel.on_loss(_end)  # this thread may wait for a collective for ever
        try:
            while (message := channel.receive()) is not None:
                self.hear(message)
        except Exception as error:
            channel.wait_lost(LATE)  # news of a loss, which ends this, may come after the failure
            channel.fail(f"{type(error).__name__}: {error}")
            raise
        sys.exit(0)

    def hear(self, message: bytes) -> None:
        """Carry out a message."""
        for word, *given in json.loads(message):
            self._obey(word, given)

    def _obey(self, word: str, given: Sequence[Any]) -> None:
        match word, given:
            case "run", (runner, held, run):
                self._run(runner, held, run)
            case "do", (runner, command):
                self._do(runner, read(command, self._images))
            case "open", (runner, model, batches, spare):
                made = self._models[model].runner(batches=batches, spare=spare)
                self._runners[runner] = made
            case "close", (runner,):
                del self._runners[runner]
            case "load", (model, settings):
                try:
                    self._models[model] = self._load(Share(self._machines, model), settings)
                except MlxgenError:  # raised on all ranks, and reported by rank 0
                    mx.clear_cache()
            case "unload", (model,):
                self._models.pop(model, None)
                mx.clear_cache()
            case "show", (digest, pixels, shape, count, token):
                array = np.frombuffer(base64.b85decode(pixels), np.float32).reshape(shape)
                self._images[digest] = Image(array, count, token, digest)
                self._holders[digest] += 1
            case "hide", (digest,):
                self._holders[digest] -= 1
                if not self._holders[digest]:
                    del self._images[digest]
            case _:
                raise MachineError(f"rank 0 said {word!r}, which this version does not know")

    def _do(self, runner: int, command: Command) -> None:
        try:
            self._runners[runner].do(command)
        except MlxgenError:
            if not uses_files(command):  # raised on all ranks, and reported by rank 0
                raise

    def _run(self, number: int, held: Sequence[int], text: Mapping[str, Any]) -> None:
        rows = text["rows"]
        own = self._runners[number].lengths(kv for kv, _ in rows)
        if own != held:
            raise MachineError(
                f"it holds {own} tokens where rank 0 holds {held}; this is an error in mlxgen, so"
                " please report it"
            )
        if isinstance(rows[0][1], int):
            run: Command = Run(_zeros(rows), tuple(text["wanted"]))
        else:
            run = read(text, self._images)
        self._runners[number].do(run)
        self._passes += 1
        if self._passes % CLEAR_EVERY == 0:
            mx.clear_cache()


def _end(lost: MachineError) -> None:
    print(f"mlxgen: {lost}", file=sys.stderr, flush=True)
    os._exit(1)


def _zeros(rows: Sequence[tuple[int, int]]) -> tuple[tuple[int, tuple[Fed, ...]], ...]:
    """The rows of a pass over tokens that only rank 0 has, given how many there are in each."""
    zeros, start = Unread(mx.zeros(sum([count for _, count in rows]), mx.int32)), 0
    result = []
    for kv, count in rows:
        result.append((kv, tuple([Later(zeros, start + i) for i in range(count)])))
        start += count
    return tuple(result)
