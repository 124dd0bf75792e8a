"""How a controller wants the next token drawn, and what it puts in its place.

Invariant: what replaces a sampled token is known before any part of the request has seen the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ...filters import Int32Words
from ...tokens import Token


class Replacement(NamedTuple):
    """A checked ``Splice``; ``when`` is ``None`` for any token."""

    when: frozenset[Token] | None
    backtrack: int
    tokens: tuple[Token, ...]


class Steering(NamedTuple):
    """How one position is drawn, and what follows from the token.

    - ``words``: the tokens that may be drawn; ``None`` for all.
    - ``runs``: by their first token, the runs that are appended whole.
    - ``splices``: the first that matches is applied after that.
    """

    words: Int32Words | None = None
    temperature: float | None = None
    runs: Mapping[Token, tuple[Token, ...]] = MappingProxyType({})
    splices: tuple[Replacement, ...] = ()

    @property
    def expects_run(self) -> bool:
        """Whether more than the sampled token may have to go through the model."""
        return bool(self.runs) or any(splice.tokens for splice in self.splices)

    def outcome(self, token: Token) -> tuple[int, tuple[Token, ...]]:
        """How many tokens before a sampled one to take back, and what to append then."""
        run = self.runs.get(token) or (token,)
        for splice in self.splices:
            if splice.when is None or token in splice.when:
                back = splice.backtrack
                return max(0, back - len(run)), run[: max(0, len(run) - back)] + splice.tokens
        return 0, run
