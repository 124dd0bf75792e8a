"""``scripts/bench --trace FILE``: the timeline of one run of what is measured.

Owns which run that is: the first that generates with mlxgen in this process, after its warm-up and
before it is measured, so that no figure has the time in it that watching takes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlxgen
from mlxgen.engine import Moment
from mlxgen.terminal.trace import Trace

from . import alternate


class Traced:
    """A context in which the first comparison that generates has its timeline written to a file."""

    def __init__(self, path: Path) -> None:
        self.found = 0  # moments
        self._trace = Trace(path, "mlxgen: scripts/bench")

    def __enter__(self) -> Traced:
        alternate.traced = self._run
        return self

    def __exit__(self, *_: object) -> None:
        alternate.traced = None
        self._trace.close()

    def _run(self, work: Callable[[], object]) -> None:
        if self.found:
            return
        mlxgen.LanguageModel.watch = self._tell
        try:
            work()
        finally:
            mlxgen.LanguageModel.watch = None
            self._trace.flush()

    def _tell(self, moment: Moment) -> None:
        self.found += 1
        self._trace(moment)
