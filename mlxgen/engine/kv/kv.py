"""The KV cache of one sequence: a cache of its history.

Owns which tokens are held. Must never know what they mean or how they were sampled; where and how
they are held is up to the device, which gets commands. The cache may hold tokens that the history
does not: tokens that were taken back, a look-ahead, a draft that missed. Invariant: after ``align``
it holds only a prefix of the history, and ``align`` returns the tokens left to run.

Nothing else rewinds a KV cache.
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
    """See the module. It has a slot on the device from its first ``align``, ``run`` or ``take``."""

    __slots__ = ("_closed", "_moment", "_same", "device", "number", "slot", "tokens")

    def __init__(self, device: Runner) -> None:
        self.device = device
        self.number = device.number()
        self.tokens: list[Fed] = []
        """The tokens it holds; a caller that runs more of them appends these."""
        self._same = self._moment = 0  # leading tokens that agreed with the history at this moment
        self.slot = NOWHERE
        """Its place on the device, for queries only."""
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
        """How many leading tokens of the history it holds; compares only those that changed.

        Always pass the same history, and to a fork of this cache, a fork of that history.
        """
        tokens = self.tokens
        if self.slot.length < len(tokens):  # after a failed pass, for example
            self._cut(self.slot.length)
        same = self._same
        if self._moment == history.moment:
            if same == len(tokens) or same == len(history):  # nothing was appended since
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

        ``most``: how many tokens may stay held; by default all but the last, which has to run for
        its logits.
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
        """Run the next tokens by themselves; returns the lazy logits [wanted, vocab] of the last
        ones. With none wanted, the result means nothing, and the cache's contents are submitted."""
        self._opened(len(tokens) + 1)
        run = Run(((self.number, tuple(tokens)),), (wanted,))
        result: mx.array = self.device.do(run)
        self.tokens += tokens
        return result

    def wait(self) -> None:
        """Wait until its contents are computed."""
        self.device.do(Wait(self.number))

    # ---- where it is -----------------------------------------------------------------------

    def restart(self) -> None:
        """Empty it, and give up its place on the device."""
        if self.slot is not NOWHERE:
            self.device.do(Free(self.number))
            self.slot = NOWHERE
        self._cut(0)

    def take(self, tokens: Sequence[Token]) -> bool:
        """Take the longest prefix of these tokens from the prefix cache; False if it has none.

        Only while nothing is held.
        """
        self._opened(len(tokens) + 1)
        found = self.device.do(Take(self.number, tuple(tokens)))
        self.tokens, self._same = list(tokens[: self.slot.length]), 0
        return bool(found)

    def keep(self, history: History, room: int | None = None, most: int | None = None) -> None:
        """Put what it holds of the history into the prefix cache, which may use ``room`` bytes.

        ``most``: put in this many tokens at most; nothing, if the prefix cache cannot keep any
        length.
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
        """Free its place, for good."""
        self.restart()
        self._closed = True

    def _opened(self, room: int) -> Slot:
        """Its place on the device, opened for ``room`` tokens if it had none."""
        if self._closed:
            raise StateError("this generation is closed; make a new one")
        if self.slot is NOWHERE:
            self.slot = self.device.do(Open(self.number, room))
        return self.slot


NOWHERE = Slot(Group(list), 0, 0)
"""The slot of a cache that has no place on the device."""
