"""The server with another engine: ``python -m``, with ``BREAKS`` saying what is broken in it.

- ``engine``: it fails as soon as it has to run a row.
- ``prompt``: the model fails with prompts that hold the token ``POISON``.
- ``hang``: it takes no step while there is a file of the name in ``WHILE``.
- ``prefill``: the same, as soon as it has run a piece of a prompt.
- ``slow``: its steps take long while there is such a file.
- ``text``: nothing, but its tiny model sees images, too.

``SET`` gives constants of the server other values: ``exchange.SILENCE=0.05``, with spaces between
several.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mlxgen.engine import Limits, Scheduler
from mlxgen.server import served_model as loading
from mlxgen.server.process import serve
from mlxgen.server.served_model import Engine, ServedModel
from mlxgen.server.settings import read_settings
from tests.fakes.seeing import seeing

POISON = 77


class Broken:
    """A scheduler whose steps fail, or hang, after a while in which requests can come in."""

    def __init__(self, scheduler: Any, breaks: str) -> None:
        self._scheduler = scheduler
        self._breaks = breaks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(self) -> Sequence[Any]:
        if self._breaks == "engine":
            time.sleep(0.5)
            raise RuntimeError("the device is gone")
        if self._breaks == "slow" and Path(os.environ["WHILE"]).exists():
            time.sleep(0.05)
        while self._hangs and Path(os.environ["WHILE"]).exists():
            time.sleep(0.02)
        events: Sequence[Any] = self._scheduler.step()
        return events

    @property
    def _hangs(self) -> bool:
        if self._breaks == "hang":
            return True
        return self._breaks == "prefill" and any(
            handle.prefilled for handle in self._scheduler._prefill.turns
        )


class Poisoned:
    """A model that fails with every pass that runs ``POISON``."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, inputs: Any, cache: Any) -> Any:
        if POISON in np.array(inputs):
            raise RuntimeError("what somebody wrote")
        return self._model(inputs, cache=cache)


def set_constants() -> None:
    for given in os.environ.get("SET", "").split():
        place, _, value = given.partition("=")
        *path, name = place.split(".")
        outer = [each for each in path if each[0].isupper()]  # a class
        module = import_module(".".join(["mlxgen.server", *path[: len(path) - len(outer)]]))
        holder = getattr(module, outer[0]) if outer else module
        setattr(holder, name, type(getattr(holder, name))(value))


def main() -> int:
    set_constants()
    settings = read_settings()
    breaks = os.environ.get("BREAKS", "")
    if breaks == "prefill":  # after the first of several pieces
        vars(loading)["Limits"] = partial(Limits, prefill_chunk=16)

    def booting_badly() -> Any:
        if breaks == "text":
            lm = seeing()
            return Scheduler(lm.runtime, Limits()), Engine(lm, ServedModel.of(lm, settings))
        scheduler, loaded = loading.boot(settings)
        if breaks != "prompt":
            return Broken(scheduler, breaks), loaded
        runner = scheduler._loop.runner
        runner.model = Poisoned(runner.model)
        return scheduler, loaded

    return serve(settings, boot=booting_badly)


if __name__ == "__main__":
    sys.exit(main())
