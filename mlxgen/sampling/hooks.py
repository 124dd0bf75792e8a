"""What a post-sampling hook sees and may ask for.

Owns ``PostSamplingResult``, the one argument of every hook. Must never know how a
request is carried out: the engine reads the fields after the hook returned.
Invariant: probabilities are those of the final distribution, the one that the token
was drawn from; they are read from the device only when a hook looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

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
        """What somebody looked at; ``None``: nothing that a draw could report."""

    @property
    def candidates(self) -> tuple[Ids, Floats]: ...

    @property
    def logits(self) -> Floats | None: ...

    def probability(self, token: Token) -> float: ...

    def best(self, count: int) -> tuple[Ids, Floats]:
        """The first ``count`` candidates at most, for which the draw was asked beforehand."""

    def report(self, token: Token, top: int) -> Report:
        """The token's log-probability and the ``top`` likeliest tokens, if asked for."""


class ForcedView:
    """The view of a token that was not drawn: the only one possible, so certain."""

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
      which costs no forward pass of its own.
    - ``position``: index of the token among the generated ones; ``attempt``: how often
      this position was drawn before; ``text``: the text before this token, and
      ``text_after`` with it, as far as characters are complete.
    - ``can_rewind``: the most that ``rewind`` may be: the tokens, this one included, that were
      not delivered yet; with ``allow_retract`` all that were generated.

    Read texts and ``can_rewind`` before the hook returns.

    To write:

    - ``sampled_token``: put another token here; ``sampled_prob`` follows.
    - ``feed_filters = False``: the filters do not see this token, now or in a replay.
    - ``resample = True``: draw again at this position.
    - ``rewind = n``: take back n tokens, this one included, and draw again there.
    - ``exclude``: tokens that the next draw (of ``resample`` or ``rewind``) may not give. Where
      filters and bans leave no other, the token stands and its chunk says ``exhausted``.
      ``temperature``: for that draw only.
    """

    __slots__ = (
        "_prob",
        "_reach",
        "_text",
        "_text_after",
        "_token",
        "_view",
        "attempt",
        "exclude",
        "feed_filters",
        "position",
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

    @property
    def sampled_token(self) -> Token:
        return self._token

    @sampled_token.setter
    def sampled_token(self, token: Token) -> None:
        self._token = token
        self._prob = None

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
        """Raise ``HookError`` for a wish that makes no sense; the engine calls it."""
        where = f"at position {self.position}"
        for name in ("sampled_token", "rewind"):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise HookError(f"a hook set {name}={value!r} {where}, which is not an integer")
        if not 0 <= self._token < vocab_size:
            raise HookError(
                f"a hook set sampled_token={self._token} {where}; give 0 to {vocab_size - 1}"
            )
        if self.rewind < 0:
            raise HookError(f"a hook set rewind={self.rewind} {where}; give 0 or more")
        self._check_exclude(where)
        if self.temperature is not None and not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise HookError(
                f"a hook set temperature={self.temperature} {where}; give 0 to {MAX_TEMPERATURE}"
            )

    def _check_exclude(self, where: str) -> None:
        ids = self.exclude
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Collection):
            raise HookError(f"a hook set exclude={ids!r} {where}, which is no list of token ids")
        for token in ids:
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise HookError(f"a hook set exclude {where} with {token!r}, which is no token id")


Hook: TypeAlias = Callable[[PostSamplingResult], object]


def run_hooks(hooks: Sequence[Hook], result: PostSamplingResult, vocab_size: int) -> None:
    """Ask hooks in order, until one takes the token back.

    Raises ``HookError`` for one that fails or asks for nonsense; mlxgen's own errors pass.
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
