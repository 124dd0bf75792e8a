"""What a post-sampling hook sees and may ask for.

``PostSamplingResult`` is the one argument of every hook. The engine reads its fields after
the hook returns and carries out what it asks for. Invariant: probabilities are those of
the final distribution, from which the token was drawn; they are read from the device only
if a hook looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import HookError, MlxgenError
from ..tokens import Token
from .rows import Want
from .settings import MAX_TEMPERATURE

Floats: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int32]
Report: TypeAlias = tuple[float | None, Sequence[tuple[Token, float]]]


class DrawView(Protocol):
    """One row of a draw, read on demand."""

    @property
    def looked_for(self) -> Want | None:
        """What hooks looked at; ``None``: nothing that a draw could report."""

    @property
    def candidates(self) -> tuple[Ids, Floats]: ...

    @property
    def logits(self) -> Floats | None: ...

    def probability(self, token: Token) -> float: ...

    def share(self, token: Token) -> float | None:
        """For settings that aim: the probability of the token, if it was drawn, before tokens near
        the target were preferred."""

    def best(self, count: int) -> tuple[Ids, Floats]:
        """At most the first ``count`` candidates, for which the draw was asked beforehand."""

    def report(self, token: Token, top: int) -> Report:
        """The token's log-probability and the ``top`` most likely tokens, if asked for."""


class ForcedView:
    """The view of a token that was not drawn because it was the only one possible."""

    __slots__ = ("_token",)

    logits: Floats | None = None
    looked_for: Want | None = None

    def __init__(self, token: Token) -> None:
        self._token = token

    @property
    def candidates(self) -> tuple[Ids, Floats]:
        return np.array([self._token], dtype=np.int32), np.ones(1, dtype=np.float32)

    def probability(self, token: Token) -> float:
        return 1.0 if token == self._token else 0.0

    def share(self, token: Token) -> float | None:
        return None

    def best(self, count: int) -> tuple[Ids, Floats]:
        return self.candidates

    def report(self, token: Token, top: int) -> Report:
        return None, ()


class PostSamplingResult:
    """A sampled token, its probabilities, and what a hook may do about it.

    To read:

    - ``sampled_token``, ``sampled_prob``: the token and its final probability (after
      penalties, biases, filters, truncation and temperature; 1.0 for a forced token).
    - ``candidate_tokens`` [k] int32, ``candidate_probs`` [k] float32: the most likely
      tokens of the final distribution, best first, at most 128.
    - ``logits`` [vocab] float32, as the model gave them; ``None`` for a forced token,
      which takes no forward pass of its own.
    - ``position``: the index of the token among the generated ones; ``attempt``: how often
      this position was drawn before.
    - ``text``: the text before this token; ``text_after``: the text with it. Both hold
      complete characters only.
    - ``is_forced``: whether the token was not drawn, as it was the only one possible.
    - ``can_rewind``: the most that ``rewind`` may be: the number of tokens not yet
      delivered, this one included; with ``allow_retract``, of all that were generated.

    Read texts and ``can_rewind`` before the hook returns.

    To write:

    - ``sampled_token``: put another token here; ``sampled_prob`` follows.
    - ``feed_filters = False``: filters do not see this token, now or in a replay.
    - ``resample = True``: draw again at this position.
    - ``rewind = n``: take back n tokens, this one included, and draw again there.
    - ``exclude``: tokens that the next draw (of ``resample`` or ``rewind``) must not give. If
      filters and bans leave no other, the token stands and its chunk says ``exhausted``.
    - ``temperature``: the temperature of that draw only.
    - ``hold = n``: do not deliver the newest n tokens yet, this one included, so that a later call
      can take them back; it holds until the next call. ``hold_tokens`` may hold more.
    - ``end = True``: end the text with this token. Its finish reason is ``"stop"``, or ``"length"``
      if the filters do not let it end there.
    - ``put = tokens``: append these after this token. Hooks are called for each of them, too, with
      ``is_forced``; the filters have to allow them.
    """

    __slots__ = (
        "_prob",
        "_reach",
        "_text",
        "_text_after",
        "_token",
        "_view",
        "attempt",
        "end",
        "exclude",
        "feed_filters",
        "hold",
        "position",
        "put",
        "resample",
        "rewind",
        "temperature",
    )

    def __init__(
        self,
        view: DrawView,
        token: Token,
        *,
        position: int,
        attempt: int,
        text: Callable[[], str],
        text_after: Callable[[Token], str],
        can_rewind: Callable[[], int],
    ) -> None:
        self._view = view
        self._token = token
        self._prob: float | None = None
        self._text = text
        self._text_after = text_after
        self._reach = can_rewind
        self.position = position
        self.attempt = attempt
        self.feed_filters = True
        self.resample = False
        self.exclude: Collection[Token] = ()
        self.temperature: float | None = None
        self.rewind = 0
        self.hold = 0
        self.end = False
        self.put: Sequence[Token] = ()

    @property
    def sampled_token(self) -> Token:
        return self._token

    @sampled_token.setter
    def sampled_token(self, token: Token) -> None:
        self._token = token
        self._prob = None

    @property
    def is_forced(self) -> bool:
        """Whether the token was not drawn because it was the only one possible."""
        return isinstance(self._view, ForcedView)

    @property
    def sampled_prob(self) -> float:
        if self._prob is None:
            self._prob = self._view.probability(self._token)
        return self._prob

    @property
    def candidate_tokens(self) -> Ids:
        return self._view.candidates[0]

    @property
    def candidate_probs(self) -> Floats:
        return self._view.candidates[1]

    @property
    def logits(self) -> Floats | None:
        return self._view.logits

    @property
    def text(self) -> str:
        return self._text()

    @property
    def text_after(self) -> str:
        return self._text_after(self._token)

    @property
    def can_rewind(self) -> int:
        return self._reach()

    def check(self, vocab_size: int) -> None:
        """Raise ``HookError`` if a hook asked for something impossible; the engine calls it."""
        if not _is_integer(self._token) or not 0 <= self._token < vocab_size:
            self._refuse("sampled_token", f"a token id from 0 to {vocab_size - 1}")
        if not _is_integer(self.rewind) or self.rewind < 0:
            self._refuse("rewind", "0 or a positive integer")
        if not _is_integer(self.hold) or self.hold < 0:
            self._refuse("hold", "0 or a positive integer")
        for name, ids in (("exclude", self.exclude), ("put", self.put)):
            if isinstance(ids, (str, bytes)) or not isinstance(ids, Collection):
                self._refuse(name, "a collection of token ids")
            if not all(map(_is_integer, ids)):
                self._refuse(name, "token ids only")
        if not all(0 <= token < vocab_size for token in self.put):
            self._refuse("put", f"token ids from 0 to {vocab_size - 1}")
        if self.temperature is not None and not 0 <= self.temperature <= MAX_TEMPERATURE:
            self._refuse("temperature", f"0 to {MAX_TEMPERATURE:g}, or None")

    def _refuse(self, name: str, expected: str) -> NoReturn:
        value = getattr(self, name)
        raise HookError(
            f"a hook set {name}={value!r} at position {self.position}; expected {expected}"
        )


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


Hook: TypeAlias = Callable[[PostSamplingResult], object]


def run_hooks(hooks: Sequence[Hook], result: PostSamplingResult, vocab_size: int) -> None:
    """Call the hooks in order, until one takes the token back.

    Raises ``HookError`` if one fails or asks for something impossible; mlxgen's own errors
    pass through.
    """
    for hook in hooks:
        try:
            hook(result)
            result.check(vocab_size)
        except MlxgenError:
            raise
        except Exception as error:
            name = getattr(hook, "__qualname__", type(hook).__name__)
            raise HookError(
                f"hook {name} failed at position {result.position}: {error!r}"
            ) from error
        if result.resample or result.rewind:
            break
