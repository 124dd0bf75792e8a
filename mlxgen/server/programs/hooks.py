"""Hooks of the operator's, as a request names them, and how often code of theirs is slow."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from ...errors import HookError
from ...sampling import Hook, PostSamplingResult
from ..logs import log

SLOW = 0.1  # seconds: a pause that a reader notices


class SlowCalls:
    """Calls of programs, controllers and hooks that took ``SLOW`` seconds or more, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def saw(self, name: str, seconds: float) -> None:
        """Note how long a call took, in the thread that runs all requests."""
        if seconds < SLOW:
            return
        self.counts[name] = times = self.counts[name] + 1
        if times & (times - 1) == 0:  # the first, the second, the fourth: not for every token
            said = "the operator's code held others up"
            log(logging.WARNING, said, name=name, seconds=seconds, times=times)


class NamedHook:
    """A hook that is made when it is first called. A fork is made anew."""

    def __init__(self, name: str, make: Callable[[], Hook], slow: SlowCalls) -> None:
        self._name = name
        self._make = make
        self._slow = slow
        self._hook: Hook | None = None

    def __call__(self, result: PostSamplingResult) -> None:
        began = time.monotonic()
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
        finally:
            self._slow.saw(self._name, time.monotonic() - began)

    def fork(self) -> NamedHook:
        """A hook for another sequence."""
        return NamedHook(self._name, self._make, self._slow)
