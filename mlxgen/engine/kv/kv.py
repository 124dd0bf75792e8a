"""The KV cache of one sequence: a cache of its history.

Owns which tokens are held. Must never know what they mean or how they were sampled; where and how
they are held is up to the device, which gets commands. It may hold tokens that the history does
not: tokens that were taken back, a look-ahead, a draft that missed. Invariant: after ``align`` it
holds only a prefix of the history; the result says what the model has to run.

Nothing else takes back what a cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ...errors import StateError
from ...tokens import Token
from ..history import History
from .commands import (
    Copy,
    Free,
    Keep,
    Open,
    Run,
    Take,
    Trim,
    Wait,
)
from .held import Fed, Later
from .runner import Runner
from .slots import Group, Slot


class KV:
    """See the module. It has a place on the device from when it is aligned, run or taken."""

    __slots__ = ("_closed", "_moment", "_same", "device", "number", "slot", "tokens")

    def __init__(self, device: Runner) -> None:
        self.device = device
        self.number = device.number()
        self.tokens: list[Fed] = []
        """Those that it holds, and whoever has run more of them adds these."""
        self._same = self._moment = 0  # leading tokens that were a history's at this moment
        self.slot = NOWHERE
        """Where it is held, for queries only."""
        self._closed = False

    # ---- what it holds ---------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The number of tokens held."""
        return self.slot.length

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, or its share of the group's."""
        return self.slot.nbytes

    def common(self, history: History) -> int:
        """How many leading tokens of the history it holds; compares only what has changed.

        The history must always be the same one, and for a fork of this a fork of it.
        """
        tokens = self.tokens
        if self.slot.length < len(tokens):  # after a pass that failed, say
            self._cut(self.slot.length)
        same = self._same
        if self._moment == history.moment:
            if same == len(tokens) or same == len(history):  # nothing has come since
                return same
        else:
            same = min(same, history.low_since(self._moment))
        for index in range(same, min(len(tokens), len(history))):
            token = tokens[index]
            if isinstance(token, Later):
                token = tokens[index] = (token.of.known or token.of.read())[token.at]
            if token != history[index]:
                break
            same += 1
        self._same, self._moment = same, history.moment
        return same

    def _cut(self, to: int) -> None:
        del self.tokens[to:]
        self._same = min(self._same, to)

    def align(self, history: History, most: int | None = None) -> list[Token]:
        """Go back to the longest common prefix with the history; returns the pending tokens.

        ``most``: how many tokens may be held; by default all but the last one, which has to run
        for its logits.
        """
        slot = self.slot
        if slot is NOWHERE:
            slot = self._opened(len(history) + 1)
        to = min(self.common(history), len(history) - 1 if most is None else most)
        if to < slot.length:
            self.device.do(Trim(self.number, to))
            self._cut(slot.length)
        return history[slot.length :]

    # ---- passes ----------------------------------------------------------------------------

    def run(self, tokens: Sequence[Fed], wanted: int = 1) -> mx.array:
        """Run the next tokens by itself: the logits [wanted, vocab] of the last ones,
        lazy; anything, if none are wanted: then what it holds is submitted."""
        self._opened(len(tokens) + 1)
        run = Run(((self.number, tuple(tokens)),), (wanted,))
        result: mx.array = self.device.do(run)
        self.tokens += tokens
        return result

    def wait(self) -> None:
        """Wait until what it holds is computed."""
        self.device.do(Wait(self.number))

    # ---- where it is -----------------------------------------------------------------------

    def restart(self) -> None:
        """Hold nothing, and give up the place on the device."""
        if self.slot is not NOWHERE:
            self.device.do(Free(self.number))
            self.slot = NOWHERE
        self._cut(0)

    def take(self, tokens: Sequence[Token]) -> bool:
        """Hold what the prefix cache has of these tokens; false if it has none of them.

        Only while nothing is held.
        """
        self._opened(len(tokens) + 1)
        found = self.device.do(Take(self.number, tuple(tokens)))
        self.tokens, self._same = list(tokens[: self.slot.length]), 0
        return bool(found)

    def keep(self, history: History, room: int | None = None, most: int | None = None) -> None:
        """Put what it holds of the history into the prefix cache, which may use ``room`` bytes.

        ``most``: so many tokens of it, if the prefix cache keeps any number of them.
        """
        self.align(history, len(history))
        count = self.length if most is None else min(self.length, most)
        self.device.do(Keep(self.number, tuple(history[:count]), room))

    def fork(self) -> KV:
        """An independent copy, in a place of its own."""
        twin = KV(self.device)
        if self.slot is not NOWHERE:
            twin.slot = self.device.do(Copy(self.number, twin.number))
        twin.tokens = list(self.tokens)
        twin._same, twin._moment = self._same, self._moment
        return twin

    def close(self) -> None:
        """Free what it holds, for good."""
        self.restart()
        self._closed = True

    def _opened(self, room: int) -> Slot:
        """Its place on the device, for so many tokens if it had none."""
        if self._closed:
            raise StateError("this generation is closed; make a new one")
        if self.slot is NOWHERE:
            self.slot = self.device.do(Open(self.number, room))
        return self.slot


NOWHERE = Slot(Group(list), 0, 0)
"""Where a cache is that has no place on the device."""
