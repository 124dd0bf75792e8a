"""The server with an engine that fails as soon as it has to run a row: ``python -m``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from mlxgen.server.boot import booting
from mlxgen.server.process import serve
from mlxgen.server.settings import read_settings


class Failing:
    """A scheduler whose steps fail after a while in which requests can come in."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(self) -> Sequence[Any]:
        time.sleep(0.5)
        raise RuntimeError("the device is gone")


def main() -> int:
    settings = read_settings()
    boot = booting(settings)

    def booting_badly() -> Any:
        scheduler, loaded = boot()
        return Failing(scheduler), loaded

    return serve(settings, boot=booting_badly)


if __name__ == "__main__":
    sys.exit(main())
