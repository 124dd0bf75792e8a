"""Checked: a text that is checked piece by piece, as it is written.

A filter that allows everything, and objects to a piece that its check complains about: the piece is
taken back and drawn again, ever warmer. If no other one is better, the best of them is written once
more, and stands. Invariant: a piece is not delivered before its check has said yes, or it stands.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..errors import FilterError, MlxgenError, OptionError
from ..forks import forked
from ..tokens import AnyTokenizer, Token, Vocabulary
from ..workers import workers
from .protocol import Int32Words, Objection, words_of

Complaint: TypeAlias = "str | tuple[str, float] | None"
CheckFunction: TypeAlias = Callable[[str, str], Complaint]
MOST_TRIES = 9


@dataclass(frozen=True, slots=True)
class Checked:
    """Has ``check(piece, before)`` look at each finished piece, and at the text before it.

    check  returns what is wrong with the piece: a string, or one and how bad that is (1.0 if it is
           not said); None or an empty string if it is fine. It is called in a thread of its own,
           so it may take its time: this text waits for it, and others do not
    at     what ends a piece: a string or a compiled expression; None: only the end of the text
    tries  how often a piece is written before the best one stands; its last chunk is ``exhausted``
           then, and ``Usage.violates`` has the complaint. At most 9
    """

    check: CheckFunction
    at: str | re.Pattern[str] | None = "\n"
    tries: int = 4

    def __post_init__(self) -> None:
        if not callable(self.check):
            raise OptionError("filters", f"Checked: check: expected a function, got {self.check!r}")
        if self.at is not None and (not isinstance(self.at, (str, re.Pattern)) or not self.at):
            raise OptionError(
                "filters", f"Checked: at: expected a string, an expression or None, got {self.at!r}"
            )
        if type(self.tries) is not int or not 1 <= self.tries <= MOST_TRIES:
            raise OptionError(
                "filters",
                f"Checked: tries: expected an integer from 1 to {MOST_TRIES}, got {self.tries!r}",
            )

    @property
    def by_bytes(self) -> bool:
        """As in ``Specification``."""
        return True

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> CheckedFilter:
        """As ``Specification.bind``."""
        return CheckedFilter(self, Vocabulary.of(tokenizer), vocab_size)


class Try(NamedTuple):
    """A piece that was complained about: how bad that was, its tokens, and the complaint."""

    badness: float
    tokens: tuple[Token, ...]
    complaint: str


class Checking:
    """A call of a check in its thread: ``given`` is the piece, and the text before it."""

    def __init__(self, check: CheckFunction, given: tuple[str, str]) -> None:
        self.given = given
        self._check = check
        self._found: Any = None
        self._error: Exception | None = None
        self._work = workers().start(self._run, "check")

    def _run(self) -> None:
        try:
            self._found = self._check(*self.given)
        except Exception as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        """Whether it has returned."""
        return self._work.is_over

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it; returns whether it has returned."""
        return self._work.wait(timeout)

    def complaint(self) -> tuple[str, float]:
        """What it complains about, if anything, and how bad that is."""
        self.wait()
        name, found, error = getattr(self._check, "__name__", "check"), self._found, self._error
        if isinstance(error, MlxgenError):
            raise error
        if error is not None:
            raise FilterError(f"{name} failed: {type(error).__name__}: {error}") from error
        if found is None or isinstance(found, str):
            return found or "", 1.0
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str):
            return found[0], float(found[1])
        raise FilterError(f"{name} returned {found!r}; expected a string, (string, number) or None")


class CheckedFilter:
    """The running filter of ``Checked``."""

    checks = True

    def __init__(self, asked: Checked, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._asked = asked
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._tries: dict[int, tuple[Try, ...]] = {}  # by the number of tokens before the piece
        self._checking: Checking | None = None  # the last call
        self.reset()

    def reset(self) -> None:
        self._fed: list[Token] = []
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._cut = self._start = 0  # the characters and tokens before the piece
        self._ended: tuple[int, int] | None = None  # the same of a piece that ends with this token

    def advance(self, token: Token) -> None:
        must = self.forced()
        if must and token != must[0]:
            raise FilterError(f"token {token} is not of the piece that stands")
        if self._ended is not None:
            self._start, self._cut = self._ended
            self._ended = None
        self._fed.append(token)
        self._text += self._decoder.decode(self._vocabulary.piece(token))
        at, end = self._asked.at, -1
        if isinstance(at, str):
            place = self._text.rfind(at, self._cut)
            end = place + len(at) if place >= 0 else -1
        elif at is not None:
            end = max((match.end() for match in at.finditer(self._text, self._cut)), default=-1)
        if end > self._cut:
            self._ended = len(self._fed), end

    # ---- the piece -------------------------------------------------------------------------

    def unchecked(self) -> tuple[int, bool]:
        """How many tokens the piece has, and whether the newest one ends it."""
        return len(self._fed) - self._start, self._ended is not None

    def checking(self) -> Checking | None:
        """The check of the piece, which may take its time; ``None``: there is nothing to check."""
        piece = self._piece()
        if piece is None or self._stands:
            return None
        if self._checking is None or self._checking.given != piece:
            self._checking = Checking(self._asked.check, piece)
        return self._checking

    def objection(self) -> Objection | None:
        """What is wrong with the piece; of no tokens, if it stands nevertheless."""
        tried = self._tries.get(self._start, ())
        if self._stands:
            return Objection(_best(tried).complaint, 0, False)
        checking = self.checking()
        complaint, badness = ("", 0.0) if checking is None else checking.complaint()
        if not complaint:
            return None
        tokens = tuple(self._fed[self._start :])
        tried = self._tries[self._start] = (*tried, Try(badness, tokens, complaint))
        stands = len(tried) >= self._asked.tries and _best(tried).tokens == tokens
        return Objection(complaint, 0 if stands else len(tokens), False)

    def _piece(self) -> tuple[str, str] | None:
        end = len(self._text) if self._ended is None else self._ended[1]
        piece = self._text[self._cut : end]
        return (piece, self._text[: self._cut]) if piece else None

    @property
    def _stands(self) -> bool:
        """Whether the best of the tries is written once more."""
        return len(self._tries.get(self._start, ())) >= self._asked.tries

    # ---- the rest of a filter --------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        must = self.forced()
        if must:
            row[:] = words_of(must[:1], self._vocab_size)
        return bool(must)

    def forced(self) -> Sequence[Token]:
        start = len(self._fed) if self._ended is not None else self._start
        tried = self._tries.get(start, ())
        if len(tried) < self._asked.tries:
            return ()
        return _best(tried).tokens[len(self._fed) - start :]

    def can_end(self) -> bool:
        return not self.forced()

    def validate(self, tokens: Sequence[Token]) -> int:
        must = self.forced()
        same = [one == other for one, other in zip(tokens, must, strict=False)]
        return same.index(False) if False in same else len(tokens)

    def rewind(self, to: int) -> None:
        if to < len(self._fed):
            kept = self._fed[:to]
            self._tries = {start: tried for start, tried in self._tries.items() if start <= to}
            self.reset()
            for token in kept:
                self.advance(token)

    def fork(self) -> CheckedFilter:
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.setstate(self._decoder.getstate())
        shared = ("_asked", "_vocabulary")
        return forked(self, shared=shared, _decoder=decoder, _checking=None)


def _best(tried: Sequence[Try]) -> Try:
    """The least bad one, and of several the first."""
    return min(tried, key=lambda one: one.badness)
