"""The one error tree of mlxgen.

Owns every exception that mlxgen raises on purpose. Knows nothing of the rest of
the package. Invariant: whatever a caller can get wrong ends in one of these, with
a message that names the thing, the value and what to do next.

    MlxgenError                        500
     ├── OptionError (ValueError)      400   an option or argument; ``field`` names it
     ├── PromptError (ValueError)      400   the prompt is empty, too long or no prompt
     ├── LoadError                     500   a model that cannot be loaded
     │    ├── ModelNotFoundError       404   no such folder, hub id or file in it
     │    ├── WeightsError             500   weights missing, truncated or not matching
     │    ├── UnsupportedModelError    500   an architecture or tokenizer nobody here knows
     │    ├── AdapterError             500   an adapter that does not fit the model
     │    └── MemoryLimitError         507   the weights do not fit the device's memory
     ├── FilterError                   400   a token that a filter does not allow
     │    ├── GrammarError             400   a schema or grammar that cannot be compiled
     │    └── DeadEndError             500   no token is allowed at a position
     ├── RewindError (ValueError)      400   a rewind that cannot be done; ``possible`` says how far
     ├── ModelError                    500   a model that fails, or whose logits cannot be sampled
     ├── QueueFullError                429   more requests wait than the queue holds
     ├── CapacityError                 413   a KV cache that can never fit the memory given to it
     ├── HookError                     500   a hook that failed or asked for nonsense
     └── StateError (RuntimeError)     500   a call on something closed or finished

The number is ``status``: the HTTP status that a server should answer with. All of them can be
pickled and copied, with their fields and notes: they come back from a process pool as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class MlxgenError(Exception):
    """Base of everything that mlxgen raises on purpose."""

    status: int = 500

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        # Exception's own way calls the class with the message alone, whatever it takes.
        return _again, (type(self), *self.args), self.__dict__


class OptionError(MlxgenError, ValueError):
    """An option is unknown, has the wrong type or is out of its range."""

    status = 400

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class PromptError(MlxgenError, ValueError):
    """The prompt is empty, longer than the model's context, or not a prompt at all."""

    status = 400


class LoadError(MlxgenError):
    """A model could not be loaded."""


class ModelNotFoundError(LoadError):
    """There is no such folder or hub id, or it does not hold a model."""

    status = 404


class WeightsError(LoadError):
    """The weights are missing, truncated, or do not match the configuration."""


class UnsupportedModelError(LoadError):
    """The architecture or the tokenizer is not known to mlx-lm or mlxgen."""


class AdapterError(LoadError):
    """The adapter is missing, unreadable, or made for another model."""


class MemoryLimitError(LoadError):
    """The weights need more memory than the device recommends."""

    status = 507


class FilterError(MlxgenError):
    """A token was offered to a filter that does not allow it."""

    status = 400


class GrammarError(FilterError):
    """A schema, grammar or expression cannot be compiled, or asks for what is not supported."""


class DeadEndError(FilterError):
    """Filters, bans and exclusions together leave no token for a position."""

    status = 500


class RewindError(MlxgenError, ValueError):
    """A rewind reaches further back than is possible.

    ``possible`` is the number of tokens that could have been taken back.
    """

    status = 400

    def __init__(self, message: str, possible: int) -> None:
        super().__init__(message)
        self.possible = possible


class ModelError(MlxgenError):
    """The model failed: a forward pass raised, or gave logits that cannot be sampled.

    Those are NaN, infinity, or nothing at all. What a pass raised is the ``__cause__``.
    """


class QueueFullError(MlxgenError):
    """As many requests wait as the queue holds; try again when some are done."""

    status = 429


class CapacityError(MlxgenError):
    """A sequence needs more memory for its KV cache than all of them together may have."""

    status = 413


class HookError(MlxgenError):
    """A hook raised an exception or asked for something that makes no sense."""


class StateError(MlxgenError, RuntimeError):
    """A call on something that is closed, finished or in another thread's hands."""


def _again(kind: type[MlxgenError], *args: Any) -> MlxgenError:
    """An error with its message; its fields follow, as after unpickling anything."""
    return kind.__new__(kind, *args)
