"""A token history and the parts that were built from it.

Owns the history of one sequence and moves its parts in step: the filters, the text, the
healing and the token counts. Must never know why a token was chosen or taken back. Invariant:
every part stands at the same length of the history.

Nothing else in mlxgen undoes a token. The KV cache is no part: it is aligned to the history
before a pass.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from ...errors import FilterError, OptionError
from ...filters import Constraint
from ...sampling import TokenCounts
from ...text import BanMatch, Healer, StopMatch, Transcript
from ...tokens import Token
from ..history import History


class Sequence:
    """The history (prompt, then generated tokens) and its parts.

    ``base`` is the length of the prompt. Filters, text and healing have taken in the
    tokens after it; the counts cover all of them.
    """

    __slots__ = (
        "_seen",
        "_stood",
        "base",
        "constraint",
        "counts",
        "healer",
        "history",
        "transcript",
    )

    def __init__(
        self,
        prompt: Tokens[Token],
        transcript: Transcript,
        *,
        constraint: Constraint | None = None,
        healer: Healer | None = None,
        counts: TokenCounts | None = None,
    ) -> None:
        self.history = History(prompt)
        self.base = self._seen = self._stood = len(self.history)
        self.transcript = transcript
        self.constraint = constraint
        self.healer = healer
        self.counts = counts

    def __len__(self) -> int:
        return len(self.history)

    @property
    def generated(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.history) - self.base

    def advance(
        self, token: Token, fed: Tokens[Token] | None = None
    ) -> BanMatch | StopMatch | None:
        """Append one token; returns the ban or the stop that its text completed.

        ``fed`` are the tokens that the filters take instead of this one: none for a token
        that is withheld from them. Raises ``FilterError`` for what they do not allow, and
        ``OptionError`` where a banned expression takes too long; then nothing has changed.
        """
        if self.healer is not None:
            self.healer.advance(token)
        if self.constraint is not None:
            try:
                if fed is None:
                    self.constraint.advance(token)
                else:
                    self.constraint.advance_as(fed)
            except FilterError:
                if self.healer is not None:
                    self.healer.rewind(self.generated)
                raise
        if self.counts is not None:
            self.counts.advance(token)
        self.history.append(token)
        try:
            return self.transcript.advance(token)
        except OptionError:
            self.rewind(len(self.history) - 1)
            raise

    def rewind(self, to: int) -> None:
        """Keep the first ``to`` tokens of the history, in every part or in none.

        The filters go first, since only they can fail: they raise ``FilterError`` as they
        were, and the other parts have not moved.
        """
        count = max(0, to - self.base)
        if self.constraint is not None:
            self.constraint.rewind(count)
        self.transcript.rewind(count)
        if self.healer is not None:
            self.healer.rewind(count)
        if self.counts is not None:
            self.counts.rewind(to)
        self.history.cut(to)
        self.base = min(self.base, to)
        self._stood = min(self._stood, to)

    def changed(self) -> tuple[int, list[Token]]:
        """How many tokens were taken back since the last call, and which came instead."""
        back, new = self._seen - self._stood, self.history[self._stood :]
        self._seen = self._stood = len(self.history)
        return back, new

    def fork(self) -> Sequence:
        """An independent copy."""
        twin = Sequence.__new__(Sequence)
        twin.constraint = self.constraint.fork() if self.constraint is not None else None
        twin.transcript = self.transcript.fork()
        twin.healer = self.healer.fork() if self.healer is not None else None
        twin.counts = self.counts.fork() if self.counts is not None else None
        twin.history = self.history.fork()
        twin.base, twin._seen, twin._stood = self.base, self._seen, self._stood
        return twin

    def check_integrity(self) -> None:
        """Assert that the parts on the host stand together; for tests."""
        assert len(self.transcript) == self.generated
        assert self.constraint is None or len(self.constraint) == self.generated
