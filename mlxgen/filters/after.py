"""After: free text up to a trigger, and then what another specification allows.

A token may complete a text trigger in its middle. What follows the trigger in the token is
then the beginning of the constrained text: the token is allowed exactly if the other filter
takes these bytes, spelled in tokens of their own.

Invariant: the other filter has seen every byte after the first trigger, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FilterError, OptionError, PromptError
from ..forks import forked
from ..recent import Recent
from ..search import Patterns
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .compose import hint, objection
from .protocol import (
    Filter,
    Int32Words,
    Objection,
    Specification,
    is_by_bytes,
    is_specification,
    left_out,
    words_of,
)
from .replay import WholeFilter, whole

_TRIGGERS = 32  # text triggers whose tables a vocabulary keeps


@dataclass(frozen=True, slots=True, init=False)
class After:
    """Starts ``then`` when the trigger appears for the first time.

    A string is searched for in the generated text, including the text of special tokens and
    however it is cut into tokens; a token or a sequence of tokens in the tokens. Before the
    trigger everything is allowed, and the text may end unless the trigger is ``required``.
    """

    trigger: str | tuple[Token, ...]
    then: Specification
    required: bool

    def __init__(
        self,
        trigger: str | Token | Sequence[Token],
        then: Specification,
        *,
        required: bool = False,
    ) -> None:
        object.__setattr__(self, "trigger", _trigger(trigger))
        if not is_specification(then):
            raise OptionError("filters", f"After: expected a specification, got {then!r}")
        object.__setattr__(self, "then", then)
        object.__setattr__(self, "required", bool(required))

    @property
    def by_bytes(self) -> bool:
        """As in ``Specification``."""
        return is_by_bytes(self.then)

    @property
    def left_out(self) -> Sequence[str]:
        """As in ``JsonSchema``."""
        return left_out(self.then)

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AfterFilter:
        """As ``Specification.bind``."""
        vocabulary = Vocabulary.of(tokenizer)
        trigger = self.trigger
        if isinstance(trigger, str):
            trigger = trigger.encode().decode("latin-1")
        else:
            for token in trigger:
                if not 0 <= token < vocab_size or token in vocabulary.eos:
                    raise OptionError(
                        "filters",
                        f"After: expected trigger tokens from 0 to {vocab_size - 1} that do not "
                        f"end the text, got {token}",
                    )
        search = _Search.of(vocabulary, trigger)
        then = whole(self.then.bind(vocabulary, vocab_size))
        return AfterFilter(search, then, vocabulary, vocab_size, self.required)


def _trigger(trigger: str | Token | Sequence[Token]) -> str | tuple[Token, ...]:
    given = trigger if isinstance(trigger, Sequence) else (trigger,)
    if not given:
        raise OptionError(
            "filters", "After: the trigger is empty; pass the specification that follows it alone"
        )
    if isinstance(given, str):
        try:
            given.encode()
        except UnicodeEncodeError as error:
            raise OptionError("filters", f"After: {given!r} is not valid text") from error
        return given
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in given):
        raise OptionError(
            "filters", f"After: expected a trigger that is a string or tokens, got {trigger!r}"
        )
    return tuple(given)


class AfterFilter:
    """The running filter of ``After``; rewinds and forks as well as the other filter does."""

    def __init__(
        self,
        search: _Search,
        then: WholeFilter,
        vocabulary: Vocabulary,
        vocab_size: int,
        required: bool,
    ) -> None:
        self._search = search
        self._then = then
        self.parts = (then,)
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._required = required
        self._states = [0]  # how much of the trigger was found after each token
        self._started = False
        self._first = 0  # tokens that the other filter was fed of the one that completed it
        self._rows: dict[int, Int32Words | None] = {}  # by state, shared by all forks

    def fill(self, row: Int32Words) -> bool:
        if self._started:
            return self._then.fill(row)
        state = self._states[-1]
        if state not in self._rows:
            over = self._search.overshooting(state)
            refused = [token for token, rest in over if not self._takes(rest)]
            self._rows[state] = ~words_of(refused, self._vocab_size) if refused else None
        allowed = self._rows[state]
        if allowed is None:
            return False
        row[:] = allowed
        return True

    def asked(self) -> Sequence[Filter]:
        return (self._then,) if self._started else ()

    def _takes(self, rest: bytes) -> bool:
        tokens = self._spelled(rest)
        return tokens is not None and self._then.validate(tokens) == len(tokens)

    def _spelled(self, rest: bytes) -> list[Token] | None:
        try:
            return self._vocabulary.continue_with(rest)
        except PromptError:
            return None

    def advance(self, token: Token) -> None:
        if self._started:
            self._then.advance(token)
            return
        state, rest = self._search.step(self._states[-1], token)
        if rest is not None:
            tokens = self._spelled(rest)
            if tokens is None:
                raise FilterError(
                    f"token {token} has {rest!r} after the trigger, which no tokens spell"
                )
            try:
                for each in tokens:
                    self._then.advance(each)
            except BaseException:
                self._then.rewind(0)
                raise
            self._first, self._started = len(tokens), True
        self._states.append(state)

    def can_end(self) -> bool:
        return self._then.can_end() if self._started else not self._required

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        waited = len(self._states) - 1
        if to >= waited:
            self._then.rewind(to - waited + self._first)
            return
        self._then.rewind(0)
        self._started = False
        del self._states[to + 1 :]

    def fork(self) -> AfterFilter:
        then = self._then.fork()
        return forked(self, shared=("_search", "_vocabulary", "_rows"), _then=then, parts=(then,))

    def forced(self) -> Sequence[Token]:
        """What the other filter forces, once it has started."""
        return self._then.forced() if self._started else ()

    def hint(self) -> Sequence[Token]:
        """What is missing of a required trigger."""
        if self._started:
            return hint(self._then)
        return self._search.missing(self._states[-1]) if self._required else ()

    def objection(self) -> Objection | None:
        """That of the other filter, once it has started; the trigger is not taken back for it."""
        found = objection(self._then) if self._started else None
        if found is None or not found.tokens:
            return found
        return found._replace(tokens=max(1, found.tokens - self._first))

    def validate(self, tokens: Sequence[Token]) -> int:
        if self._started:
            return self._then.validate(tokens)
        state = self._states[-1]
        for count, token in enumerate(tokens):
            state, rest = self._search.step(state, token)
            if rest is not None:
                after = self._spelled(rest)
                if after is None:
                    return count
                taken = self._then.validate([*after, *tokens[count + 1 :]]) - len(after)
                return count if taken < 0 else count + 1 + taken
        return len(tokens)


# ---- the search for the trigger ------------------------------------------------------------


class _Search:
    """Where a trigger completes: text in the bytes of tokens (written as Latin-1), or tokens.

    A state is how much of it was found at the end of the tokens so far.
    """

    def __init__(self, vocabulary: Vocabulary, trigger: str | tuple[Token, ...]) -> None:
        self._vocabulary = vocabulary
        self._trigger = trigger
        self._patterns: Patterns[Any] = Patterns([trigger])
        self._holding: list[Token] = []  # tokens that hold all of the text
        if isinstance(trigger, str):
            data = trigger.encode("latin-1")
            self._holding = [
                token for token, piece in enumerate(vocabulary.pieces) if data in piece
            ]
        self._overshooting: dict[int, list[tuple[Token, bytes]]] = {}

    @classmethod
    def of(cls, vocabulary: Vocabulary, trigger: str | tuple[Token, ...]) -> _Search:
        """The search for a trigger; its tables are kept with the vocabulary for a while."""
        kept: Recent[str | tuple[Token, ...], _Search]
        kept = vocabulary.derived("triggers", lambda: Recent(_TRIGGERS))
        return kept.get(trigger, lambda: cls(vocabulary, trigger))

    def step(self, state: int, token: Token) -> tuple[int, bytes | None]:
        """The next state, and what follows the trigger in a token that completes it."""
        in_text = isinstance(self._trigger, str)
        symbols: Any = self._vocabulary.piece(token).decode("latin-1") if in_text else (token,)
        seen, count, found = self._patterns.walk(self._trigger[:state], symbols)
        if found is None:
            return len(seen), None
        return len(seen), symbols[count:].encode("latin-1") if in_text else b""

    def missing(self, state: int) -> Sequence[Token]:
        """Tokens that complete the trigger: a single one, if there is one with that text."""
        rest = self._trigger[state:]
        if not isinstance(rest, str):
            return rest
        data = rest.encode("latin-1")
        for token in self._holding:
            if self._vocabulary.piece(token) == data and token not in self._vocabulary.eos:
                return (token,)
        try:
            return self._vocabulary.continue_with(data)
        except PromptError:
            return ()

    def overshooting(self, state: int) -> Sequence[tuple[Token, bytes]]:
        """The tokens that complete a text in their middle, and what follows it there."""
        trigger, vocabulary = self._trigger, self._vocabulary
        if not isinstance(trigger, str):
            return ()
        if state not in self._overshooting:
            candidates = {*self._holding, *vocabulary.special} - vocabulary.eos
            for length in range(1, state + 1):
                if trigger[:state].endswith(trigger[:length]):
                    rest = trigger[length:].encode("latin-1")
                    candidates.update(vocabulary.starting_with(rest).tolist())
            stepped = ((token, self.step(state, token)[1]) for token in sorted(candidates))
            self._overshooting[state] = [(token, rest) for token, rest in stepped if rest]
        return self._overshooting[state]
