"""The server with a tiny model that takes images: ``python -m``. ``SET`` is as in ``broken``."""

from __future__ import annotations

import sys
from typing import Any

from mlxgen.engine import Limits, Scheduler
from mlxgen.server.process import serve
from mlxgen.server.served_model import Engine, ServedModel
from mlxgen.server.settings import read_settings
from tests.fakes.seeing import seeing

from .broken import set_constants


def main() -> int:
    set_constants()
    settings = read_settings()

    def boot() -> Any:
        lm = seeing()
        return Scheduler(lm.runtime, Limits()), Engine(lm, ServedModel.of(lm, settings))

    return serve(settings, boot=boot)


if __name__ == "__main__":
    sys.exit(main())
