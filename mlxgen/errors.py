"""All errors of mlxgen, in one tree.

Owns every exception that mlxgen raises on purpose. Must never know the rest of the
package. Invariant: whatever a caller can get wrong raises one of these, with a message
that says what was expected, what was given and what to do.

    MlxgenError                        500
     ├── OptionError (ValueError)      400   an option or argument is wrong; ``field`` names it
     ├── PromptError (ValueError)      400   the prompt is empty, too long or not a prompt
     ├── LoadError                     500   a model cannot be loaded
     │    ├── ModelNotFoundError       404   the folder, the hub id or a file in it does not exist
     │    ├── WeightsError             500   weights are missing, truncated or do not match
     │    ├── UnsupportedModelError    500   the architecture or tokenizer is not supported
     │    ├── AdapterError             500   the adapter does not fit the model
     │    └── MemoryLimitError         507   the weights do not fit in memory
     ├── FilterError                   400   a filter does not allow a token
     │    ├── GrammarError             400   a schema or grammar cannot be compiled
     │    └── DeadEndError             500   no token is allowed at a position
     ├── RewindError (ValueError)      400   a rewind goes too far; ``possible`` is the limit
     ├── ModelError                    500   the model failed, or its logits cannot be sampled
     ├── QueueFullError                429   the queue of waiting requests is full
     ├── CapacityError                 413   a KV cache can never fit the memory allowed for it
     ├── HookError                     500   a hook failed or asked for something invalid
     ├── MachineError                  503   one of several machines is lost, or differs from others
     └── StateError (RuntimeError)     500   a call on a closed, finished or busy object

The number is ``status``, the HTTP status of a server's answer. All errors can be pickled and
copied with their fields and notes, so they pass through a process pool unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class MlxgenError(Exception):
    """The base class of all errors that mlxgen raises on purpose.

    ``status`` is the HTTP status of a server's answer.
    """

    status: int = 500

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        # Exception's own __reduce__ calls the class with only the message, whatever it expects.
        return _again, (type(self), *self.args), self.__dict__


class OptionError(MlxgenError, ValueError):
    """An option or argument is unknown, has the wrong type or is out of range.

    ``field`` names it. ``code``: a word for programs, if they can handle the error.
    ``index``: the place of the value at fault, if the option is a list.
    """

    status = 400

    def __init__(
        self, field: str, message: str, *, code: str | None = None, index: int | None = None
    ) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.code = code
        self.index = index


class PromptError(MlxgenError, ValueError):
    """The prompt is empty, longer than the model's context, or not a prompt."""

    status = 400


class LoadError(MlxgenError):
    """A model could not be loaded."""


class ModelNotFoundError(LoadError):
    """The folder or hub id does not exist, or does not contain a model."""

    status = 404


class WeightsError(LoadError):
    """The weights are missing, truncated, or do not match the configuration."""


class UnsupportedModelError(LoadError):
    """mlx-lm or mlxgen does not support the architecture or the tokenizer."""


class AdapterError(LoadError):
    """The adapter is missing, unreadable, or made for another model."""


class MemoryLimitError(LoadError):
    """The weights need more memory than the device recommends."""

    status = 507


class FilterError(MlxgenError):
    """A filter does not allow a token that it was given.

    ``field``: the place in a request of a grammar that cannot be compiled, if it is known.
    """

    status = 400
    field: str | None = None


class GrammarError(FilterError):
    """A schema, grammar or expression cannot be compiled, or uses something unsupported."""


class DeadEndError(FilterError):
    """Filters, bans and exclusions together leave no token to draw at a position."""

    status = 500


class RewindError(MlxgenError, ValueError):
    """A rewind goes further back than is possible.

    ``possible`` is how many tokens can be taken back.
    """

    status = 400

    def __init__(self, message: str, possible: int) -> None:
        super().__init__(message)
        self.possible = possible


class ModelError(MlxgenError):
    """A forward pass raised, or gave logits that cannot be sampled: NaN, infinity or none.

    The exception of the pass is the ``__cause__``.
    """


class QueueFullError(MlxgenError):
    """The queue of waiting requests is full; try again once some of them are done."""

    status = 429


class CapacityError(MlxgenError):
    """A sequence needs more memory for its KV cache than all sequences together may use."""

    status = 413


class HookError(MlxgenError):
    """A hook raised an exception or asked for something invalid."""


class MachineError(MlxgenError):
    """One of the machines that run a model together is lost, or they do not fit together."""

    status = 503


class StateError(MlxgenError, RuntimeError):
    """A call on an object that is closed, finished or in use by another thread."""


def _again(kind: type[MlxgenError], *args: Any) -> MlxgenError:
    """Make an error with its message; pickle restores its fields afterwards."""
    return kind.__new__(kind, *args)


@contextlib.contextmanager
def failing(kind: type[MlxgenError], what: str) -> Iterator[None]:
    """A context that turns any error of another library into ``kind``, with one line.

    mlx-lm, transformers, tokenizers, sentencepiece and tiktoken may raise anything.
    """
    try:
        yield
    except MlxgenError:
        raise
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            words = f"{words} is missing"
        shown = words if len(words) <= 200 else f"{words[:200]}..."
        raise kind(f"{what}: {shown}") from error
