"""Where a text must end: stop strings and stop tokens, found as the text grows.

A stop string is matched on characters, whichever tokens bring them; case counts and nothing
is normalised. A stop of tokens is matched on token ids. The winner is the stop that
completes first; if several complete at the same character, the one that starts first; if a
string and tokens start there too, the string. Neither the order of the stops nor how the
text was cut into tokens matters. The matcher does not decode: each step brings a token and
the text that became complete with it.

Invariant: no later stop can start before the last ``held`` characters, so what lies before
them may be delivered for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from ..errors import OptionError, RewindError, StateError
from ..tokens import Token
from .automaton import Automaton, State


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop, and its place in the whole text. Nothing from ``start`` on is delivered.

    The characters of a stop of tokens are those that its tokens completed.
    """

    stop: str | tuple[Token, ...]
    start: int
    end: int


class StopMatcher:
    """Looks for stop strings and stop tokens, in constant time per character.

    ``tokens`` holds ids and sequences of ids. OptionError if a stop is empty.
    """

    __slots__ = (
        "_ends",
        "_match",
        "_steps",
        "_strings",
        "_text_states",
        "_token_states",
        "_tokens",
    )

    def __init__(
        self,
        strings: Iterable[str] = (),
        tokens: Iterable[SupportsIndex | Sequence[SupportsIndex]] = (),
    ) -> None:
        texts = [_text(string) for string in ([strings] if isinstance(strings, str) else strings)]
        runs = [_run(run) for run in tokens]
        self._strings: Automaton[str] | None = Automaton(texts) if texts else None
        self._tokens: Automaton[Token | None] | None = Automaton(runs) if runs else None
        self._match: StopMatch | None = None
        self._steps = 0
        # One entry for each step, if there is anything to look for:
        self._ends: list[int] = []  # characters of the text
        self._text_states: list[State[str]] = []
        self._token_states: list[State[Token | None]] = []

    def advance(self, token: Token | None, text: str) -> StopMatch | None:
        """Takes one step: a token, and the text that became complete with it.

        ``token`` is None if the text comes from no token. StateError after a match, until
        rewound.
        """
        if self._strings is None and self._tokens is None:
            self._steps += 1
            return None
        if self._match is not None:
            raise StateError("a stop has matched; rewind the matcher before the next step")
        start = self._ends[-1] if self._steps else 0
        self._ends.append(start + len(text))
        match = None
        if self._strings is not None:
            match = self._advance_text(self._strings, text, start)
        if self._tokens is not None:
            other = self._advance_token(self._tokens, token)
            if match is None or (other and (other.end, other.start) < (match.end, match.start)):
                match = other
        self._steps += 1
        self._match = match
        return match

    def _advance_text(self, strings: Automaton[str], text: str, start: int) -> StopMatch | None:
        state = self._text_states[-1] if self._steps else strings.root
        state, count, stop = strings.walk(state, text)
        self._text_states.append(state)
        if stop is None:
            return None
        return StopMatch(str(stop), start + count - len(stop), start + count)

    def _advance_token(
        self, tokens: Automaton[Token | None], token: Token | None
    ) -> StopMatch | None:
        state = self._token_states[-1] if self._steps else tokens.root
        state = tokens.step(state, token)
        self._token_states.append(state)
        if state.longest is None:
            return None
        stop = tuple(id for id in tokens.patterns[state.longest] if id is not None)
        return StopMatch(stop, self._end_before(len(stop)), self._ends[-1])

    def _end_before(self, steps: int) -> int:
        """Characters of the text without the last ``steps`` steps."""
        return self._ends[-steps - 1] if steps < len(self._ends) else 0

    @property
    def held(self) -> int:
        """Characters at the end of the text that a stop may still claim."""
        if self._steps == 0:
            return 0
        held = 0
        if self._text_states:
            held = self._text_states[-1].depth
        if self._token_states:
            run = self._token_states[-1].depth
            if run:
                held = max(held, self._ends[-1] - self._end_before(run))
        return held

    def rewind(self, to: int) -> None:
        """Goes back to ``to`` steps; does nothing if there are no more than that."""
        if to < 0:
            raise RewindError(f"cannot rewind to {to} steps", possible=self._steps)
        if to >= self._steps:
            return
        del self._ends[to:], self._text_states[to:], self._token_states[to:]
        self._steps = to
        self._match = None

    def fork(self) -> StopMatcher:
        """An independent copy."""
        copy = StopMatcher()
        copy._strings = self._strings
        copy._tokens = self._tokens
        copy._match = self._match
        copy._steps = self._steps
        copy._ends = self._ends.copy()
        copy._text_states = self._text_states.copy()
        copy._token_states = self._token_states.copy()
        return copy

    def __len__(self) -> int:
        """Steps so far."""
        return self._steps


def _text(string: object) -> str:
    if not isinstance(string, str):
        raise OptionError("stop", f"expected strings, got {type(string).__name__}")
    if not string:
        raise OptionError("stop", "an empty string stops nothing; leave it out")
    return string


def _run(run: object) -> tuple[Token, ...]:
    if isinstance(run, Sequence) and not isinstance(run, str | bytes):
        if not run:
            raise OptionError("stop_tokens", "an empty list stops nothing; leave it out")
        return tuple(map(_id, run))
    return (_id(run),)


def _id(token: object) -> Token:
    if isinstance(token, SupportsIndex) and not isinstance(token, bool):
        id = index(token)
        if id >= 0:
            return id
    raise OptionError("stop_tokens", f"expected token ids or lists of them, got {token!r}")
