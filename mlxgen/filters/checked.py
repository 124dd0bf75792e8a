"""Checked: a text that is checked piece by piece, as it is written.

The filter allows everything, but objects to a piece that its check complains about: the piece is
taken back and drawn again, at rising temperatures. If no try passes, the best one is written once
more, and stands. Invariant: a piece is delivered only after it has passed its check, or stands.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ..errors import FilterError, MlxgenError, OptionError
from ..forks import forked
from ..tokens import AnyTokenizer, Token, Vocabulary
from ..workers import Work, workers
from .protocol import Int32Words, Objection, Running, words_of

Complaint: TypeAlias = "str | tuple[str, float] | None"
CheckFunction: TypeAlias = Callable[[str, str], Complaint]
MOST_TRIES = 9


@dataclass(frozen=True, slots=True)
class Checked:
    """Calls ``check(piece, before)`` for each finished piece, with the text before it.

    check  returns what is wrong with the piece: a string, or a string and how bad it is (1.0 if
           not given); None or an empty string if it is fine. It is called in a thread of its own,
           so it may take its time: this text waits for it, and others do not
    at     what ends a piece: a string or a compiled expression; None: only the end of the text
    tries  how often a piece is written before the best one stands; its last chunk is ``exhausted``
           then, and ``Usage.violates`` has the complaint. At most 9
    """

    check: CheckFunction
    at: str | re.Pattern[str] | None = "\n"
    tries: int = 4

    by_bytes: ClassVar[bool] = True

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

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> CheckedFilter:
        """As ``Specification.bind``."""
        return CheckedFilter(self, Vocabulary.of(tokenizer), vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> CheckedFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        return CheckedFilter(self, Vocabulary.of(tokenizer), vocab_size, opens=True)


class Try(NamedTuple):
    """A piece that was complained about: how bad it was, its tokens, and the complaint."""

    badness: float
    tokens: tuple[Token, ...]
    complaint: str


class _Place(NamedTuple):
    """Where a text is after a token: its complete characters and the bytes of the next one, and
    the tokens and characters before the piece; ``ended``: these after a token that ends a piece;
    ``opens``: the next token with bytes loses its leading space."""

    size: int = 0
    left: bytes = b""
    start: int = 0
    cut: int = 0
    ended: tuple[int, int] | None = None
    opens: bool = False


class CheckedFilter(Running):
    """The running filter of ``Checked``."""

    checks = True

    def __init__(
        self, asked: Checked, vocabulary: Vocabulary, vocab_size: int, *, opens: bool = False
    ) -> None:
        self._asked = asked
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._tries: dict[int, tuple[Try, ...]] = {}  # by the number of tokens before the piece
        self._call: tuple[tuple[str, str], Work, list[Any]] | None = None  # the last one
        self._fed: list[Token] = []
        self._text = ""
        self._places = [_Place(opens=opens)]  # at first, and after each token

    def advance(self, token: Token, /) -> None:
        must = self.forced()
        if must and token != must[0]:
            raise FilterError(f"token {token} is not of the piece that stands")
        last, at, end = self._places[-1], self._asked.at, -1
        start, cut = last.ended or (last.start, last.cut)
        piece = self._vocabulary.piece(token)
        opens = last.opens and not piece
        data = last.left + (self._vocabulary.opening(token) if last.opens else piece)
        text, used = utf_8_decode(data, "replace", False)
        self._fed.append(token)
        self._text += text
        if isinstance(at, str):
            place = self._text.rfind(at, cut)
            end = place + len(at) if place >= 0 else -1
        elif at is not None:
            end = max((match.end() for match in at.finditer(self._text, cut)), default=-1)
        ended = (len(self._fed), end) if end > cut else None
        self._places.append(_Place(len(self._text), data[used:], start, cut, ended, opens))

    def rewind(self, to: int) -> None:
        if to < len(self._fed):
            self._tries = {start: tried for start, tried in self._tries.items() if start <= to}
            del self._fed[to:], self._places[to + 1 :]
            self._text = self._text[: self._places[-1].size]

    def fork(self) -> CheckedFilter:
        return forked(self, shared=("_asked", "_vocabulary"), _call=None)

    # ---- the piece -------------------------------------------------------------------------

    def unchecked(self) -> tuple[int, bool]:
        """How many tokens the piece has, and whether the newest one ends it."""
        place = self._places[-1]
        return len(self._fed) - place.start, place.ended is not None

    def objection(self, *, ends: bool = False) -> Objection | Work | None:
        """What is wrong with the piece; an objection to no tokens, if it stands nevertheless."""
        _, _, start, cut, ended, _ = self._places[-1]
        tried = self._tries.get(start, ())
        if len(tried) >= self._asked.tries:  # the best of them, once more
            return Objection(_best(tried).complaint, 0, False)
        piece = self._text[cut : None if ends or ended is None else ended[1]]
        if not piece:
            return None
        given = piece, self._text[:cut]
        if self._call is None or self._call[0] != given:
            found: list[Any] = []
            work = workers().start(partial(_called, self._asked.check, given, found), "check")
            self._call = given, work, found
        if not self._call[1].is_over:
            return self._call[1]
        complaint, badness = self._complaint(self._call[2][0])
        if not complaint:
            return None
        tokens = tuple(self._fed[start:])
        tried = self._tries[start] = (*tried, Try(badness, tokens, complaint))
        stands = len(tried) >= self._asked.tries and _best(tried).tokens == tokens
        return Objection(complaint, 0 if stands else len(tokens), False)

    def _complaint(self, found: Any) -> tuple[str, float]:
        """The check's complaint, empty if there is none, and how bad the piece is."""
        name = getattr(self._asked.check, "__name__", "check")
        if isinstance(found, MlxgenError):
            raise found
        if isinstance(found, BaseException):
            raise FilterError(f"{name} failed: {type(found).__name__}: {found}") from found
        if found is None or isinstance(found, str):
            return found or "", 1.0
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str):
            return found[0], float(found[1])
        raise FilterError(f"{name} returned {found!r}; expected a string, (string, number) or None")

    # ---- what may come next ----------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        must = self.forced()
        if must:
            row[:] = words_of(must[:1], self._vocab_size)
        return bool(must)

    def forced(self) -> Sequence[Token]:
        place = self._places[-1]
        start = len(self._fed) if place.ended is not None else place.start
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


def _called(check: CheckFunction, given: tuple[str, str], found: list[Any]) -> None:
    """Appends to ``found`` what the check returns or raises."""
    try:
        found.append(check(*given))
    except BaseException as error:
        found.append(error)


def _best(tried: Sequence[Try]) -> Try:
    """The least bad one; the first, if several are equal."""
    return min(tried, key=lambda one: one.badness)
