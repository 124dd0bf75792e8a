"""The timeline of a run in Chrome's trace event format, which Perfetto and chrome://tracing open.

Owns the form of the file: a JSON array with one event a line. Must never know what the engine
does, or what its moments mean. Invariant: times are microseconds from the first moment on; a file
that was closed is complete, and one that was not lacks only its last bracket, which the format
allows.

Every track is a thread of one process: ``M`` events name them, ``X`` events have a duration, ``i``
events are instants, and a ``C`` event counts the delivered tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import OptionError
from .asked import path_of

if TYPE_CHECKING:
    from ..engine import Moment

FIRST = ("host", "device")  # tracks that are shown above those of requests
PENDING = 100_000  # moments kept in memory at most: writing takes the host's time


class Trace:
    """See the module: a ``Watch`` that writes to ``path``. ``close`` it, or use it as a context."""

    def __init__(self, path: str | Path, name: str = "mlxgen") -> None:
        try:
            self._file: TextIO = path_of("trace", str(path)).open("w", encoding="utf-8")
        except OSError as error:
            raise OptionError("trace", f"{path} cannot be written: {error.strerror}") from error
        self._moments: list[Moment] = []
        self._threads: dict[str, int] = {}
        self._order = count(len(FIRST))
        self._zero: float | None = None
        self._tokens = 0
        self._write("[", {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name}})

    def __call__(self, moment: Moment) -> None:
        self._moments.append(moment)
        if len(self._moments) >= PENDING:
            self.flush()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def flush(self) -> None:
        """Write the moments so far."""
        moments, self._moments = self._moments, []
        if self._zero is None and moments:
            self._zero = min(moment.start for moment in moments)
        for moment in moments:
            for event in self._events(moment):
                self._write(",", event)
        self._file.flush()

    def close(self) -> None:
        """Write the rest; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.write("\n]\n")
            self._file.close()

    def _write(self, before: str, event: dict[str, Any]) -> None:
        self._file.write(f"{before}\n{json.dumps(event)}")

    def _events(self, moment: Moment) -> Iterator[dict[str, Any]]:
        thread = self._threads.get(moment.track)
        if thread is None:
            track = moment.track
            place = FIRST.index(track) if track in FIRST else next(self._order)
            thread = self._threads[track] = place + 1
            for name, args in (
                ("thread_name", {"name": track}),
                ("thread_sort_index", {"sort_index": thread}),
            ):
                yield {"name": name, "ph": "M", "pid": 1, "tid": thread, "args": args}
        start = self._microseconds(moment.start)
        event = {"name": moment.name, "pid": 1, "tid": thread, "ts": start}
        if moment.seconds is None:
            yield {**event, "ph": "i", "s": "t", "args": dict(moment.facts)}
        else:  # both ends are rounded, so that what ends together does so here, too
            end = self._microseconds(moment.start + moment.seconds)
            yield {**event, "ph": "X", "dur": end - start, "args": dict(moment.facts)}
        if moment.name == "token":
            self._tokens += 1
            counted = {"tokens": self._tokens}
            yield {**event, "name": "delivered tokens", "ph": "C", "args": counted}

    def _microseconds(self, seconds: float) -> int:
        assert self._zero is not None
        return max(0, round((seconds - self._zero) * 1e6))
