"""A thread beside another one, which waits for it, but not for ever.

Owns the calls of hooks: the engine's thread has to know what a hook wants before it can go on, and
a hook may hang. Then its thread is left behind, and the next call gets another one.

Invariant: no call takes longer than the limit; at most ``MOST_STUCK`` threads are left behind.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ...errors import HookError
from ...sampling import Hook, PostSamplingResult
from ..logs import log
from ..threads import leave_mlx, stop_thread

MOST_STUCK = 8

T = TypeVar("T")


class _Done(NamedTuple):
    value: Any = None
    error: BaseException | None = None


class _Helper:
    """A thread that carries out one call after the other."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="hooks", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while (work := self.todo.get()) is not None:
                try:
                    done = _Done(work())
                except Exception as error:
                    done = _Done(error=error)
                self.done.put(done)
        except BaseException as error:
            self.done.put(_Done(error=error))
        finally:
            leave_mlx()


class Aside:
    """Calls functions for at most ``seconds``. It belongs to one thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._helper: _Helper | None = None
        self._stuck: list[_Helper] = []

    def call(self, what: str, work: Callable[[], T]) -> T:
        """What a function returns or raises; ``HookError`` if it does neither in time."""
        if self._helper is None or not self._helper.thread.is_alive():
            self._stuck = [helper for helper in self._stuck if helper.thread.is_alive()]
            if len(self._stuck) >= MOST_STUCK:
                raise HookError(
                    f"{what} is not called: {MOST_STUCK} calls of hooks have never returned; "
                    "restart the server"
                )
            self._helper = _Helper()
        helper = self._helper
        helper.todo.put(work)
        try:
            value, error = helper.done.get(timeout=self.seconds)
        except queue.Empty:
            self._helper = None
            self._stuck.append(helper)
            helper.todo.put(None)  # if it returns after all
            stop_thread(helper.thread)
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
