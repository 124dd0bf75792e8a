"""Where a text must end: stop strings and stop tokens, found as the text grows.

A stop string is matched on characters, whichever tokens they come from; case counts and nothing is
normalised. A stop of tokens is matched on token ids. The stop that completes first wins; if several
complete at the same character, the one that starts first; if a string and tokens start there too,
the string. Neither the order of the stops nor the tokenisation of the text matters. The matcher
does not decode: each step brings a token and the text that became complete with it.

Invariant: no later stop can start before the last ``held`` characters, so the text before them may
be delivered for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex, TypeAlias

from ..errors import OptionError, StateError
from ..forks import Steps
from ..search import Patterns
from ..tokens import Token


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop, and its place in the whole text. Nothing from ``start`` on is delivered.

    A stop of tokens covers the characters that its tokens completed.
    """

    stop: str | tuple[Token, ...]
    start: int
    end: int


_Step: TypeAlias = tuple[int, str, tuple[Token, ...], StopMatch | None]
"""The length of the text, the ends of it and of its tokens that may begin a stop, and the match."""


class StopMatcher(Steps[_Step]):
    """Looks for stop strings and stop tokens.

    ``tokens`` holds ids and sequences of ids. OptionError if a stop is empty.
    """

    __slots__ = ("_strings", "_tokens")

    _TABLES = ("_strings", "_tokens")

    def __init__(
        self,
        strings: Iterable[str] = (),
        tokens: Iterable[SupportsIndex | Sequence[SupportsIndex]] = (),
    ) -> None:
        texts = [strings] if isinstance(strings, str) else strings
        self._strings: Patterns[str] = Patterns(map(_text, texts))
        self._tokens: Patterns[tuple[Token, ...]] = Patterns(map(_run, tokens))
        super().__init__((0, "", (), None))

    def advance(
        self, token: Token | None, text: str, sought: str | None = None
    ) -> StopMatch | None:
        """Takes one step: a token, and the text that became complete with it.

        ``token`` is None for text that comes from no token. ``sought``: the text at the end of the
        whole to search for strings now, if it is not ``text``. StateError after a match, until
        rewound.
        """
        start, text_state, token_state, match = self._steps[-1]
        if match is not None:
            raise StateError("a stop has matched; rewind the matcher before the next step")
        end = start + len(text)
        sought = text if sought is None else sought
        text_state, count, string = self._strings.walk(text_state, sought)
        if string is not None:
            last = end - len(sought) + count
            match = StopMatch(string, last - len(string), last)
        token_state = () if token is None else self._tokens.step(token_state, (token,))
        run = self._tokens.completed(token_state) if token_state else None
        if run is not None:
            begin = self._steps[-len(run)][0]
            if match is None or (end, begin) < (match.end, match.start):
                match = StopMatch(run, begin, end)
        self._steps.append((end, text_state, token_state, match))
        return match

    @property
    def held(self) -> int:
        """Characters at the end of the text that a stop may still claim."""
        end, text, tokens, _ = self._steps[-1]
        return max(len(text), end - self._steps[-1 - len(tokens)][0])


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
