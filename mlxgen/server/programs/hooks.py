"""Hooks of the operator's, as a request names them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...errors import HookError
from ...sampling import Hook, PostSamplingResult
from ..logs import log
from .slow import SlowCalls


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
