"""The tokens of a forward pass, known to the host or not, and the device that reads them.

A token may go through the model before the host has read it: then it is a ``Later``, which is read
when it has to be compared. Only ``Here`` waits for drawn tokens or reads the clock that times
steps; a simulated device, which only counts what its work would take, replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, cast

import mlx.core as mx

from ...tokens import Token


class Here:
    """The device of this process. It has no state."""

    @property
    def queues(self) -> bool:
        """Whether a submission returns long before its work is done.

        MLX's CPU back end queues few tasks, so most of a pass is done by then on a CPU.
        """
        return mx.default_device() != mx.Device(mx.cpu)

    def submit(self, arrays: Iterable[mx.array | None]) -> None:
        """Start computing the arrays of a draw; they become ready together."""
        mx.async_eval(arrays)

    def read(self, array: mx.array) -> list[int]:
        """The integers of an array [n]; waits for the device."""
        return cast(list[int], array.tolist())

    def now(self) -> float:
        """Seconds on the clock that times steps."""
        return time.perf_counter()


HERE = Here()


class Unread:
    """Tokens [n] on the device."""

    __slots__ = ("_here", "array", "known")

    def __init__(self, array: mx.array, here: Here = HERE) -> None:
        self.array = array
        self._here = here
        self.known: list[Token] | None = None
        """The tokens, once they have been read."""

    def read(self) -> list[Token]:
        """The tokens; the first call waits for the device."""
        if self.known is None:
            self.known = self._here.read(self.array)
        return self.known


class Later(NamedTuple):
    """One of the tokens of an ``Unread``."""

    of: Unread
    at: int

    def read(self) -> Token:
        """The token; waits for the device."""
        return self.of.read()[self.at]


Fed: TypeAlias = Token | Later


def gathered(tokens: Sequence[Fed]) -> mx.array:
    """Tokens, known or not, as an array [n]; no copy if they are exactly one unread array."""
    first, at = tokens[0], 0
    if isinstance(first, Later):  # the case in nearly every step
        for token in tokens:
            if not isinstance(token, Later) or token.of is not first.of or token.at != at:
                break
            at += 1
        if at == len(tokens) == first.of.array.shape[0]:
            return first.of.array
    runs: list[tuple[Unread | None, list[int]]] = []  # known tokens, or places in an ``Unread``
    for token in tokens:
        of, number = (token.of, token.at) if isinstance(token, Later) else (None, token)
        if not runs or runs[-1][0] is not of:
            runs.append((of, []))
        runs[-1][1].append(number)
    parts: list[mx.array] = []
    for of, numbers in runs:
        array = mx.array(numbers, mx.int32)
        parts.append(array if of is None else of.array[array].astype(mx.int32))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def stacked(runs: Sequence[Sequence[Fed]]) -> mx.array:
    """Runs of tokens as an array [runs, longest], each padded by repeating the token before.

    The first run must not be empty.
    """
    if len(runs) == 1:
        return gathered(runs[0])[None]
    longest = max(map(len, runs))
    flat: list[Fed] = []
    for run in runs:
        flat += run
        flat += flat[-1:] * (longest - len(run))  # from the same array, if it is not known yet
    return gathered(flat).reshape(len(runs), longest)


def known(tokens: Iterable[Fed]) -> list[Token]:
    """The tokens; waits for those that are not known yet."""
    return [token.read() if isinstance(token, Later) else token for token in tokens]
