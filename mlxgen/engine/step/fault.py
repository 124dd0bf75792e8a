"""A failure in the middle of a step: of a forward pass, of what leads to one, or of reading it.

It never leaves the engine: callers get its ``error``. Nobody looks for who is to blame: what is on
the device is dropped, and every row that ran begins again from its history.
"""

from __future__ import annotations

from ...errors import CapacityError, MlxgenError, ModelError

_SHOWN = 300  # characters of a foreign message


class Fault(Exception):  # noqa: N818 (it is not an error of the caller)
    """See the module."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """An error as a fault, if it is not one."""
        return error if isinstance(error, Fault) else cls(error)

    @property
    def short_of_memory(self) -> bool:
        """Whether the device had no memory left, as far as the message tells."""
        said = str(self.cause).lower()
        return isinstance(self.cause, MemoryError) or any(sign in said for sign in _NO_MEMORY)

    def error(self) -> MlxgenError:
        """What to tell the caller of a sequence that the model fails with."""
        if isinstance(self.cause, MlxgenError):
            return self.cause
        if self.short_of_memory:
            error: MlxgenError = CapacityError(
                f"the device has no memory left for this sequence ({self._said}); shorten it"
            )
        else:
            error = ModelError(f"the model failed on this sequence: {self._said}")
        error.__cause__ = self.cause
        return error

    def error_of_all(self) -> MlxgenError:
        """The same, if it fails with everything."""
        error = ModelError(f"the model fails on every sequence: {self._said}")
        error.__cause__ = self.cause
        return error

    @property
    def _said(self) -> str:
        said = " ".join(str(self.cause).split())[:_SHOWN]
        return f"{type(self.cause).__name__}: {said}"


_NO_MEMORY = ("out of memory", "outofmemory", "insufficient memory", "unable to allocate", "malloc")
"""Parts of the messages of MLX and of Metal."""
