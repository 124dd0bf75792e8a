"""Allow: a filter made from a Python function of the tokens so far.

The function must be pure. It is called once for a position, and perhaps again after a rewind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ..errors import FilterError, MlxgenError, OptionError
from ..forks import forked
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .protocol import Int32Words, words_of

AllowFunction: TypeAlias = Callable[[Sequence[Token]], Collection[Token] | None]
EndFunction: TypeAlias = Callable[[Sequence[Token]], bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Allow:
    """Allows what ``function(tokens)`` returns: a collection of ids, or None for everything.

    ``tokens`` are the generated tokens, without those that hooks withheld from filters. The
    text may end if ``can_end(tokens)`` is true; without that function, if everything is
    allowed or an end token is among the returned ones.
    """

    function: AllowFunction
    can_end: EndFunction | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError(
                "filters", f"Allow: expected a function of the tokens, got {self.function!r}"
            )
        if self.can_end is not None and not callable(self.can_end):
            raise OptionError(
                "filters", f"Allow: can_end: expected a function or None, got {self.can_end!r}"
            )

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AllowFilter:
        """As ``Specification.bind``."""
        return AllowFilter(self, Vocabulary.of(tokenizer).eos, vocab_size)


class AllowFilter:
    """The running filter of ``Allow``: rewinds by dropping tokens."""

    def __init__(self, spec: Allow, eos: frozenset[Token], vocab_size: int) -> None:
        self._spec = spec
        self._eos = eos
        self._vocab_size = vocab_size
        self._tokens: list[Token] = []
        self._answer: frozenset[Token] | None = None
        self._asked = False

    def _allowed(self) -> frozenset[Token] | None:
        if self._asked:
            return self._answer
        answer = self._called(self._spec.function)
        self._answer = None if answer is None else frozenset(map(int, answer))
        for token in self._answer or ():
            if not 0 <= token < self._vocab_size:
                raise FilterError(
                    f"{self._spec.function!r} allowed token {token}; expected ids from 0 to "
                    f"{self._vocab_size - 1}"
                )
        self._asked = True
        return self._answer

    def _called(self, function: Callable[[Sequence[Token]], T]) -> T:
        try:
            return function(tuple(self._tokens))
        except MlxgenError:
            raise
        except Exception as error:
            name = getattr(function, "__name__", repr(function))
            raise FilterError(f"{name} failed: {type(error).__name__}: {error}") from error

    def fill(self, row: Int32Words) -> bool:
        allowed = self._allowed()
        if allowed is None:
            return False
        row[:] = words_of(allowed - self._eos, self._vocab_size)
        return True

    def advance(self, token: Token) -> None:
        allowed = self._allowed()
        if allowed is not None and token not in allowed:
            raise FilterError(f"the function does not allow token {token} here")
        self._tokens.append(token)
        self._asked = False

    def can_end(self) -> bool:
        if self._spec.can_end is not None:
            return bool(self._called(self._spec.can_end))
        allowed = self._allowed()
        return allowed is None or not allowed.isdisjoint(self._eos)

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        if to < len(self._tokens):
            del self._tokens[to:]
            self._asked = False

    def fork(self) -> AllowFilter:
        return forked(self)
