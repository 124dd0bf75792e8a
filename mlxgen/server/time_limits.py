"""How long a request may take for each of its stages.

Owns the stages, and the error of one that takes too long. Must never know a clock: it is told how
to call a function later.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from .errors import RequestError
from .settings import Settings


class Stage(enum.IntEnum):
    """What a request does, in this order."""

    WAITS = 0
    READS = 1  # the first of its prompts is run, for as long as that takes
    ANSWERS = 2  # that was run


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class TimeLimits:
    """The time that is left to a request.

    ``call_later`` is an event loop's; ``interrupt`` is called with the error if a stage takes too
    long.
    """

    def __init__(
        self,
        settings: Settings,
        interrupt: Callable[[BaseException], object],
        call_later: Callable[..., Timer],
    ) -> None:
        self._interrupt = interrupt
        self._call_later = call_later
        self._limits = _limits(settings)
        self._stage = Stage.WAITS
        self._timer = self._started()

    def heard(self, *, all_run: bool) -> None:
        """Note that a prompt is being run, or that all of it was; a stage never comes again."""
        stage = Stage.ANSWERS if all_run else Stage.READS
        if stage > self._stage:
            self.close()
            self._stage = stage
            self._timer = self._started()

    def close(self) -> None:
        """Limit nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _started(self) -> Timer | None:
        seconds, late = self._limits.get(self._stage, (0.0, None))
        return self._call_later(seconds, self._interrupt, late) if seconds else None


def queue_timeout(settings: Settings) -> RequestError:
    """The error of a request that has waited for too long."""
    return RequestError(
        f"the request has waited for more than {settings.queue_timeout:g} seconds; try again later",
        status=503,
        code="queue_timeout",
    )


def _limits(settings: Settings) -> dict[Stage, tuple[float, RequestError]]:
    """The seconds of each stage, where 0 is no limit, and what to say after them."""
    answers = settings.request_timeout
    return {
        Stage.WAITS: (settings.queue_timeout, queue_timeout(settings)),
        Stage.ANSWERS: (
            answers,
            RequestError(
                f"the answer took more than {answers:g} seconds; ask for fewer tokens",
                status=504,
                code="timeout",
            ),
        ),
    }
