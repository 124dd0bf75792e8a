"""After: free text up to a trigger, and then what another specification allows.

A text trigger may end in the middle of a token. The rest of the token is then the beginning of the
constrained text: the token is allowed if and only if the other filter takes these bytes, spelled in
tokens of their own.

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
from ..workers import Work
from .protocol import Int32Words, Objection, Running, Specification, is_specification, words_of
from .replay import whole

_TRIGGERS = 32  # text triggers whose tables a vocabulary keeps


@dataclass(frozen=True, slots=True, init=False)
class After:
    """Starts ``then`` when the trigger appears for the first time.

    A string is searched for in the generated text, including the text of special tokens and however
    it is split into tokens; a token or a sequence of tokens, in the tokens. Before the trigger
    everything is allowed, and the text may end unless the trigger is ``required``.
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
        object.__setattr__(self, "trigger", _checked(trigger))
        if not is_specification(then):
            raise OptionError("filters", f"After: expected a specification, got {then!r}")
        object.__setattr__(self, "then", then)
        object.__setattr__(self, "required", bool(required))

    @property
    def specifications(self) -> Sequence[Specification]:
        """As in ``Specification``."""
        return (self.then,)

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AfterFilter:
        """As ``Specification.bind``."""
        vocabulary = Vocabulary.of(tokenizer)
        if not isinstance(self.trigger, str):
            limit = min(vocab_size, vocabulary.size)
            for token in self.trigger:
                if not vocabulary.has(token) or token >= limit or token in vocabulary.eos:
                    raise OptionError(
                        "filters",
                        f"After: expected trigger tokens from 0 to {limit - 1} that do not end the "
                        f"text, got {token}",
                    )
        then = whole(self.then.bind(vocabulary, vocab_size))
        return AfterFilter(_Trigger.of(vocabulary, self.trigger), then, vocab_size, self.required)


def _checked(trigger: str | Token | Sequence[Token]) -> str | tuple[Token, ...]:
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


class _Trigger:
    """Finds where a trigger completes: text, in the bytes of tokens (as Latin-1), or tokens.

    The state of a search is the longest end of the tokens so far that begins the trigger.
    """

    def __init__(self, vocabulary: Vocabulary, trigger: str | tuple[Token, ...]) -> None:
        self._vocabulary = vocabulary
        self.is_text = isinstance(trigger, str)
        self._trigger: Any = (
            trigger.encode().decode("latin-1") if isinstance(trigger, str) else trigger
        )
        self.start = self._trigger[:0]
        self._patterns: Patterns[Any] = Patterns([self._trigger])
        self._holding: list[Token] = []  # tokens that contain the whole trigger
        if isinstance(trigger, str):
            pieces = enumerate(vocabulary.pieces)
            self._holding = [token for token, piece in pieces if trigger.encode() in piece]

    @classmethod
    def of(cls, vocabulary: Vocabulary, trigger: str | tuple[Token, ...]) -> _Trigger:
        """The search for a trigger; its tables are kept with the vocabulary for a while."""
        kept: Recent[str | tuple[Token, ...], _Trigger]
        kept = vocabulary.derived("triggers", lambda: Recent(_TRIGGERS))
        return kept.get(trigger, lambda: cls(vocabulary, trigger))

    def step(self, state: Any, token: Token) -> tuple[Any, list[Token] | None]:
        """The next state; and if the token completes the trigger, the tokens that spell the rest of
        it. FilterError if no tokens do."""
        symbols = self._vocabulary.piece(token).decode("latin-1") if self.is_text else (token,)
        state, count, found = self._patterns.walk(state, symbols)
        if found is None:
            return state, None
        rest = symbols[count:].encode("latin-1") if isinstance(symbols, str) else b""
        try:
            return state, self._vocabulary.continue_with(rest)
        except PromptError:
            raise FilterError(
                f"token {token} has {rest!r} after the trigger, which no tokens spell"
            ) from None

    def missing(self, state: Any) -> Sequence[Token]:
        """Tokens that complete the trigger: a single one, if one has exactly the missing text."""
        rest = self._trigger[len(state) :]
        if not isinstance(rest, str):
            return tuple(rest)
        data = rest.encode("latin-1")
        for token in self._holding:
            if self._vocabulary.piece(token) == data and token not in self._vocabulary.eos:
                return (token,)
        try:
            return self._vocabulary.continue_with(data)
        except PromptError:
            return ()

    def completing(self, state: Any) -> Sequence[Token]:
        """Tokens among which are all that may complete a text trigger."""
        found = {*self._holding, *self._vocabulary.special} - self._vocabulary.eos
        for length in range(1, len(state) + 1):
            if state.endswith(self._trigger[:length]):
                rest = self._trigger[length:].encode("latin-1")
                found.update(self._vocabulary.starting_with(rest).tolist())
        return sorted(found)


class AfterFilter(Running):
    """The running filter of ``After``; rewinds and forks as well as the other filter does."""

    def __init__(self, trigger: _Trigger, then: Running, vocab_size: int, required: bool) -> None:
        self._trigger = trigger
        self._then = then
        self.rewinds, self.checks = then.rewinds, then.checks
        self._vocab_size = vocab_size
        self._required = required
        self._states = [trigger.start]  # of the search, after each token
        # After the trigger: how many tokens the other filter was fed for the rest of its token
        self._first: int | None = None
        self._rows: dict[Any, Int32Words | None] = {}  # by state, shared by all forks

    def fill(self, row: Int32Words) -> bool:
        if self._first is not None:
            return self._then.fill(row)
        state = self._states[-1]
        if state not in self._rows:
            some = self._trigger.completing(state) if self._trigger.is_text else ()
            refused = [token for token in some if not self.validate([token])]
            self._rows[state] = ~words_of(refused, self._vocab_size) if refused else None
        allowed = self._rows[state]
        if allowed is None:
            return False
        row[:] = allowed
        return True

    def advance(self, token: Token, /) -> None:
        if self._first is not None:
            self._then.advance(token)
            return
        state, rest = self._trigger.step(self._states[-1], token)
        if rest is not None:
            try:
                for each in rest:
                    self._then.advance(each)
            except BaseException:
                self._then.rewind(0)
                raise
            self._first = len(rest)
        self._states.append(state)

    def rewind(self, to: int) -> None:
        waited = len(self._states) - 1
        if to >= waited:
            self._then.rewind(to - waited + (self._first or 0))
            return
        self._then.rewind(0)
        self._first = None
        del self._states[to + 1 :]

    def fork(self) -> AfterFilter:
        return forked(self, shared=("_trigger", "_rows"))

    def can_end(self) -> bool:
        return self._then.can_end() if self._first is not None else not self._required

    def validate(self, tokens: Sequence[Token]) -> int:
        if self._first is not None:
            return self._then.validate(tokens)
        state = self._states[-1]
        for count, token in enumerate(tokens):
            try:
                state, rest = self._trigger.step(state, token)
            except FilterError:
                return count
            if rest is not None:
                taken = self._then.validate([*rest, *tokens[count + 1 :]]) - len(rest)
                return count if taken < 0 else count + 1 + taken
        return len(tokens)

    def forced(self) -> Sequence[Token]:
        """The other filter's forced tokens, once it has started."""
        return self._then.forced() if self._first is not None else ()

    def hint(self) -> Sequence[Token]:
        """The rest of a required trigger; after it, the other filter's hint."""
        if self._first is not None:
            return self._then.hint()
        return self._trigger.missing(self._states[-1]) if self._required else ()

    def unchecked(self) -> tuple[int, bool]:
        return self._then.unchecked() if self._first is not None else (0, False)

    def objection(self, *, ends: bool = False) -> Objection | Work | None:
        """The other filter's, once it has started; if tokens follow the trigger, that stays."""
        found = self._then.objection(ends=ends) if self._first is not None else None
        if not isinstance(found, Objection) or not found.tokens:
            return found
        return found._replace(tokens=max(1, found.tokens - (self._first or 0)))
