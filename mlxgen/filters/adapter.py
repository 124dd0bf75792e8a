"""What adapters of other libraries share: the package, how a text may open, and a running filter.

The states of these libraries are values, so a rewind only drops the latest ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import FilterError, GrammarError, MlxgenError, OptionError
from ..forks import forked
from ..tokens import AnyTokenizer, Token, Vocabulary
from .any_of import AnyOfFilter, opening
from .protocol import Int32Words
from .reasons import shortened


class Adapter(ABC):
    """A specification in the words of another library; ``PACKAGE`` and ``EXTRA`` tell which."""

    __slots__ = ()

    PACKAGE: ClassVar[str]
    EXTRA: ClassVar[str]

    @abstractmethod
    def _states(self, vocabulary: Vocabulary, vocab_size: int) -> StatesFilter:
        """The running filter; any error of the library says why there is none."""

    @abstractmethod
    def _after_space(self) -> Adapter:
        """The same after one space."""

    @classmethod
    def _library(cls) -> Any:
        try:
            return __import__(cls.PACKAGE)
        except ImportError as error:
            raise OptionError(
                "filters", f"{cls.__name__} needs {cls.PACKAGE}: pip install 'mlxgen[{cls.EXTRA}]'"
            ) from error

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> StatesFilter:
        """As ``Specification.bind``."""
        try:
            return self._states(Vocabulary.of(tokenizer), vocab_size)
        except MlxgenError:
            raise
        except Exception as error:
            raise GrammarError(f"{shortened(repr(self))}: {error}") from error

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        """As ``bind``, for the start of a text that loses its leading space."""
        vocabulary = Vocabulary.of(tokenizer)
        plain = self.bind(vocabulary, vocab_size)
        after_space = self._after_space().bind(vocabulary, vocab_size)
        return opening(plain, after_space, vocabulary, vocab_size)


@dataclass(slots=True, eq=False)
class StatesFilter:
    """``states`` are the first one and that after each token fed; nothing changes a state.

    ``row`` gives the tokens that may follow a state, and ``after`` the next state, or a FilterError
    for a token that is not allowed.
    """

    states: list[Any]
    row: Callable[[Any], Int32Words]
    after: Callable[[Any, Token], Any]
    ends: Callable[[Any], bool]

    def fill(self, row: Int32Words) -> bool:
        row[:] = self.row(self.states[-1])
        return True

    def advance(self, token: Token) -> None:
        self.states.append(self.after(self.states[-1], token))

    def can_end(self) -> bool:
        return bool(self.ends(self.states[-1]))

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        del self.states[to + 1 :]

    def fork(self) -> StatesFilter:
        return forked(self, shared=("row", "after", "ends"))

    def forced(self) -> Sequence[Token]:
        return ()

    def validate(self, tokens: Sequence[Token]) -> int:
        state = self.states[-1]
        for count, token in enumerate(tokens):
            try:
                state = self.after(state, token)
            except FilterError:
                return count
        return len(tokens)
