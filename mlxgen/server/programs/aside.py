"""A thread beside another one, which waits for it, but not for ever.

Owns the calls of hooks: the engine's thread has to know what a hook wants before it can go on, and
a hook may hang. Then its thread is left behind, and the next call gets another one.

Invariant: no call takes longer than the limit; at most ``MOST_STUCK`` threads are left behind.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ...errors import HookError
from ...sampling import Hook, PostSamplingResult
from ...workers import Work, workers
from ..logs import log
from ..threads import stop

MOST_STUCK = 8

T = TypeVar("T")


class _Done(NamedTuple):
    value: Any = None
    error: BaseException | None = None


class Aside:
    """Calls functions for at most ``seconds``. It belongs to one thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._stuck: list[Work] = []

    def call(self, what: str, work: Callable[[], T]) -> T:
        """What a function returns or raises; ``HookError`` if it does neither in time."""
        self._stuck = [call for call in self._stuck if not call.is_over]
        if len(self._stuck) >= MOST_STUCK:
            raise HookError(
                f"{what} is not called: {MOST_STUCK} calls of hooks have never returned; "
                "restart the server"
            )
        done: queue.SimpleQueue[_Done] = queue.SimpleQueue()

        def call() -> None:
            try:
                done.put(_Done(work()))
            except BaseException as error:
                done.put(_Done(error=error))

        called = workers().start(call, "hooks")
        try:
            value, error = done.get(timeout=self.seconds)
        except queue.Empty:
            self._stuck.append(called)
            stop(called)
            log(logging.ERROR, f"{what} was given up", seconds=self.seconds)
            raise HookError(f"{what} took more than {self.seconds:g} s") from None
        if error is not None:
            raise error
        result: T = value
        return result


class TimedHook:
    """A hook that is made, and called, aside. A fork is made anew."""

    def __init__(self, name: str, make: Callable[[], Hook], aside: Aside) -> None:
        self._name = name
        self._make = make
        self._aside = aside
        self._hook: Hook | None = None

    def __call__(self, result: PostSamplingResult) -> None:
        # Read here, because arrays that are not computed belong to this thread
        _ = result.sampled_prob, result.candidate_probs, result.logits
        self._aside.call(f"hook {self._name}", lambda: self._call(result))

    def _call(self, result: PostSamplingResult) -> None:
        try:
            if self._hook is None:
                self._hook = self._make()
            self._hook(result)
        except HookError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            log(logging.ERROR, "a hook failed", hook=self._name, error=said)
            raise HookError(
                f"hook {self._name} failed at position {result.position}: {said}"
            ) from error

    def fork(self) -> TimedHook:
        """A hook for another sequence."""
        return TimedHook(self._name, self._make, self._aside)
