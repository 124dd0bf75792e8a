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
from .alone import Alone
from .commands import (
    Copy,
    Device,
    Free,
    Keep,
    Move,
    Open,
    Run,
    Snapshot,
    Take,
    Trim,
    Wait,
)
from .held import Fed, Later
from .slots import Slot


class KV:
    """See the module. It has a place on the device from when it is aligned, run or taken.

    ``rewinds``: they are likely, so snapshots are worth a copy.
    """

    __slots__ = (
        "_closed",
        "_moment",
        "_rewinds",
        "_same",
        "device",
        "number",
        "slot",
        "store",
        "tokens",
    )

    def __init__(self, device: Device, *, rewinds: bool = False) -> None:
        self.device = device
        self.number = device.number()
        self.tokens: list[Fed] = []
        """Those that it holds, and whoever has run more of them adds these."""
        self._same = self._moment = 0  # leading tokens that were a history's at this moment
        self.store: Alone | Slot = NOWHERE
        """Where it is held, for queries only."""
        self._closed, self._rewinds = False, rewinds
        self.slot: Slot | None = None
        """Its place among others, if the device has such places."""

    # ---- what it holds ---------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The number of tokens held."""
        return self.store.length

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, or its share of the group's."""
        return self.store.nbytes

    def common(self, history: History) -> int:
        """How many leading tokens of the history it holds; compares only what has changed.

        The history must always be the same one, and for a fork of this a fork of it.
        """
        tokens = self.tokens
        if self.store.length < len(tokens):  # after a pass that failed, say
            self._cut(self.store.length)
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
        store = self.store
        if store is NOWHERE:
            store = self._opened(len(history) + 1)
        to = min(self.common(history), len(history) - 1 if most is None else most)
        if to < store.length:
            self.device.do(Trim(self.number, to))
            self._cut(store.length)
        return history[store.length :]

    # ---- passes ----------------------------------------------------------------------------

    def run(self, tokens: Sequence[Fed], wanted: int = 1) -> mx.array:
        """Run the next tokens in caches of its own: the logits [wanted, vocab] of the last ones,
        lazy; anything, if none are wanted: then what it holds is submitted."""
        self._opened(len(tokens) + 1)
        run = Run(((self.number, tuple(tokens)),), (wanted,))
        result: mx.array = self.device.do(run)
        self.tokens += tokens
        return result

    def wait(self) -> None:
        """Wait until what it holds is computed."""
        self.device.do(Wait(self.number))

    # ---- ways back -------------------------------------------------------------------------

    def snapshot(self, before: int) -> None:
        """Remember this place before a pass of that many tokens, if it could not be undone."""
        if self.store.needs_snapshots:
            self.device.do(Snapshot(self.number, before))

    # ---- where it is -----------------------------------------------------------------------

    def restart(self) -> None:
        """Hold nothing, and give up the place on the device."""
        if self.store is not NOWHERE:
            self.device.do(Free(self.number))
            self._put(NOWHERE)
        self._cut(0)

    def move(self, spare: int) -> None:
        """Go to a slot, where it runs beside others; there may be ``spare`` unused places."""
        self._opened(1)
        if self.slot is None:
            self._put(self.device.do(Move(self.number, spare)))

    def take(self, tokens: Sequence[Token]) -> bool:
        """Hold what the prefix cache has of these tokens; false if it has none of them.

        Only while nothing is held.
        """
        self._opened(len(tokens) + 1)
        found: bool = self.device.do(Take(self.number, tuple(tokens)))
        self.tokens, self._same = list(tokens[: self.store.length]), 0
        return found

    def keep(self, history: History, room: int | None = None, most: int | None = None) -> None:
        """Put what it holds of the history into the prefix cache, which may use ``room`` bytes.

        ``most``: so many tokens of it, if the prefix cache keeps any number of them.
        """
        self.align(history, len(history))
        count = self.length if most is None else min(self.length, most)
        self.device.do(Keep(self.number, tuple(history[:count]), room))

    def fork(self) -> KV:
        """An independent copy, in a place of its own."""
        twin = KV(self.device, rewinds=self._rewinds)
        if self.store is not NOWHERE:
            twin._put(self.device.do(Copy(self.number, twin.number)))
        twin.tokens = list(self.tokens)
        twin._same, twin._moment = self._same, self._moment
        return twin

    def close(self) -> None:
        """Free what it holds, for good."""
        self.restart()
        self._closed = True

    def _opened(self, room: int) -> Alone | Slot:
        """Its place on the device, for so many tokens if it had none."""
        if self._closed:
            raise StateError("this generation is closed; make a new one")
        if self.store is NOWHERE:
            self._put(self.device.do(Open(self.number, room, self._rewinds)))
        return self.store

    def _put(self, store: Alone | Slot) -> None:
        self.store = store
        self.slot = store if isinstance(store, Slot) else None


NOWHERE = Alone(list)
"""Where a cache is that has no place on the device."""
