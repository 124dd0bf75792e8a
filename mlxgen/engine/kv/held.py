"""Which tokens a KV cache holds, as far as they are known.

Owns the list of them, and how much of it was last found equal to a history. Must never know
arrays of keys and values. A token may go through the model before the host has read it: then it is
a ``Later``, which is read when it has to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from ...tokens import Token
from ..history import History
from .here import HERE, Here


class Unread:
    """Tokens [n] on the device."""

    __slots__ = ("_here", "_known", "array")

    def __init__(self, array: mx.array, here: Here = HERE) -> None:
        self.array = array
        self._here = here
        self._known: list[Token] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the tokens are known."""
        return self._known is not None

    def read(self) -> list[Token]:
        """The tokens; this waits for the device, once."""
        if self._known is None:
            self._known = self._here.read(self.array)
        return self._known


class Later(NamedTuple):
    """One of some unread tokens."""

    of: Unread
    at: int

    def read(self) -> Token:
        """The token; this waits for the device."""
        return self.of.read()[self.at]


Fed: TypeAlias = Token | Later


class Held:
    """The tokens of a cache, in order."""

    __slots__ = ("_moment", "_same", "_tokens")

    def __init__(self, tokens: Sequence[Fed] = ()) -> None:
        self._tokens: list[Fed] = list(tokens)
        self._same = 0  # leading tokens that were equal to the history's at this moment
        self._moment = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tokens: Iterable[Fed]) -> None:
        """Note that these have run."""
        self._tokens += tokens

    def cut(self, to: int) -> None:
        """Keep the first ``to`` tokens."""
        if to < len(self._tokens):
            del self._tokens[to:]
            self._same = min(self._same, to)

    def common(self, history: History, length: int) -> int:
        """How many leading tokens are equal to the history's; compares only what has changed.

        The cache holds ``length`` tokens; after a pass that failed these are fewer than were
        added. The history must always be the same one, and for a fork of this a fork of it.
        """
        tokens = self._tokens
        if length < len(tokens):
            self.cut(length)
        same = self._same
        if self._moment == history.moment:
            if same == len(tokens) or same == len(history):  # nothing has come since
                return same
        else:
            same = min(same, history.low_since(self._moment))
        for index in range(same, min(len(tokens), len(history))):
            token = tokens[index]
            if isinstance(token, Later):
                token = tokens[index] = token.read()
            if token != history[index]:
                break
            same += 1
        self._same, self._moment = same, history.moment
        return same

    def fork(self) -> Held:
        """An independent copy."""
        twin = Held(self._tokens)
        twin._same, twin._moment = self._same, self._moment
        return twin


def gathered(tokens: Sequence[Fed]) -> mx.array:
    """Tokens, known or not, as an array [n]; without a copy if they are all of one array."""
    if (all_of := _whole(tokens)) is not None:  # so it is in nearly every step
        return all_of
    parts: list[mx.array] = []
    for source, group in groupby(
        tokens, lambda token: token.of if isinstance(token, Later) else None
    ):
        run = list(group)
        if source is None:
            parts.append(mx.array(run, mx.int32))
        elif (all_of := _whole(run)) is not None:
            parts.append(all_of)
        else:
            places = [token.at for token in run if isinstance(token, Later)]
            parts.append(source.array[mx.array(places)])
    if len(parts) == 1:
        return parts[0]
    return mx.concatenate([part.astype(mx.int32) for part in parts])


def _whole(tokens: Sequence[Fed]) -> mx.array | None:
    """The array whose tokens these are, all of them and in order."""
    first = tokens[0]
    if not isinstance(first, Later) or len(tokens) != first.of.array.shape[0]:
        return None
    for i, token in enumerate(tokens):
        if not isinstance(token, Later) or token.of is not first.of or token.at != i:
            return None
    return first.of.array


def stacked(runs: Sequence[Sequence[Fed]]) -> mx.array:
    """Runs of tokens as an array [runs, longest], each padded with the token before.

    The first one must not be empty.
    """
    if len(runs) == 1:
        return gathered(runs[0])[None]
    longest = max(map(len, runs))
    flat: list[Fed] = []
    for run in runs:
        flat += run
        flat += flat[-1:] * (longest - len(run))  # of the same array, if that is not known yet
    return gathered(flat).reshape(len(runs), longest)


def known(tokens: Iterable[Fed]) -> list[Token]:
    """The tokens; this waits for those that are not known yet."""
    return [token.read() if isinstance(token, Later) else token for token in tokens]


def alike(tokens: Sequence[Token], others: Sequence[Token]) -> int:
    """How many of the first tokens are the same."""
    pairs = enumerate(zip(tokens, others, strict=False))
    differs = next((at for at, (token, other) in pairs if token != other), None)
    return min(len(tokens), len(others)) if differs is None else differs
