"""What proposes tokens that may come next.

Owns what every drafter is asked, and what one says that has nothing to say. Invariant: a drafter
looks at the history of the request that it is asked for, and notices by itself what was taken back
there since the last time. Whatever it proposes, the text stays the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import mlx.core as mx

from ...tokens import Token
from ..history import History
from ..kv import Fed
from ..prefix.store import BlockStore
from ..request.request import Request
from .acceptance import Acceptance, Price
from .guess import Guess


class Drafter(ABC):
    """Proposes tokens for one request.

    ``name`` is what usage and chunks call it, and ``most`` how many tokens it proposes at a time
    unless a request says otherwise. With ``wants_states``, it is told what runs (``ran``), and with
    ``goes_on``, what is about to be accepted (``go_on``).
    """

    name: ClassVar[str]
    most: int
    wants_states = goes_on = False

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()

    @abstractmethod
    def chances(self, request: Request, count: int) -> Sequence[float]:
        """How likely each of the next tokens that it could propose stands if those before it do, of
        ``count`` at most; empty if it has nothing. It takes microseconds."""

    def early(self, request: Request, count: int) -> Sequence[float]:
        """The same after the next token, which is not known yet."""
        now = self.chances(request, count + 1)
        return (now[0] * now[1], *now[2:]) if len(now) > 1 else ()

    @abstractmethod
    def propose(self, request: Request, count: int) -> Guess | None:
        """Up to ``count`` tokens after the request's history; ``None`` if it has none."""

    def go_on(self, request: Request, came: Sequence[Token]) -> None:
        """Begin with what follows on these tokens, which the request is about to accept."""

    def saw(self, position: int, proposed: int, accepted: int) -> None:
        """Note how many of the ``proposed`` tokens stood, and the position reached."""
        self.acceptance.saw(position, proposed, accepted)

    def price(self, plain: float) -> Price:
        """What drafting takes, where a pass of the main model takes ``plain`` seconds."""
        return Price()

    def took(self, count: int, seconds: float, plain: float) -> None:
        """Note what drafting ``count`` tokens took, where such a pass takes ``plain`` seconds."""

    def learn(self, history: History) -> None:
        """Remember what is worth it of a history that has ended."""

    def ran(self, history: History, start: int, tokens: Sequence[Fed], states: mx.array) -> None:
        """Note that these tokens have run, from this place in the history on, and gave the trunk's
        ``states`` [n, width]. The last ones may be drafted, or not known yet."""

    def missing(self, history: History) -> int:
        """How many tokens of a history a model has to run before it can propose any."""
        return 0

    def follow(self, history: History, count: int) -> None:
        """Run ``count`` of them at most, but not the last one; they are submitted."""

    cache: BlockStore | None = None
    """Where it keeps what it has run, beside the model's own."""

    def keep(self, history: History, room: int) -> None:
        """Put what it holds of a history into ``cache``, which may use ``room`` bytes."""

    def restart(self) -> None:
        """Drop the arrays that it holds: the history will run again."""

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that it holds."""
        return 0

    def nbytes_at(self, length: int) -> int:
        """The most bytes that it needs for a history of ``length`` tokens."""
        return 0

    @abstractmethod
    def fork(self) -> Drafter:
        """An independent copy."""
