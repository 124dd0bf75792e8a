"""The KV cache of one sequence: a cache of its history.

Owns which tokens are held. Must never know what they mean or how they were sampled; where and how
they are held is up to the device, which gets commands. It may hold tokens that the history does
not: tokens that were taken back, a look-ahead, a draft that missed. Invariant: after ``align`` it
holds only a prefix of the history; the result says what the model has to run.

Nothing else takes back what a cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mlx.core as mx

from ...errors import StateError
from ...tokens import Token
from ..history import History
from .alone import Alone
from .commands import (
    Copy,
    Device,
    Expect,
    Free,
    Join,
    Keep,
    Leave,
    Run,
    Snapshot,
    Submit,
    Take,
    Trim,
    Wait,
)
from .held import Fed, Held
from .slots import Slot


class KV:
    """See the module. A new one is empty, in caches of its own."""

    __slots__ = ("_held", "_store", "device", "number", "slot")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.number = device.number()
        self._held = Held()
        self._store: Alone | Slot | None
        self.slot: Slot | None
        """Its place in a batch, if it is in one."""
        self._put(device.do(Free(self.number)))

    # ---- what it holds ---------------------------------------------------------------------

    @property
    def store(self) -> Alone | Slot:
        """Where it is held, for queries only; raises ``StateError`` once it is closed."""
        if self._store is None:
            raise StateError("this generation is closed; make a new one")
        return self._store

    @property
    def length(self) -> int:
        """The number of tokens held."""
        return (self._store or self.store).length  # which raises

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, or its share of the batch's."""
        return 0 if self._store is None else self._store.nbytes

    def common(self, history: History) -> int:
        """How many leading tokens of the history it holds."""
        return self._held.common(history, (self._store or self.store).length)

    def align(self, history: History, most: int | None = None) -> list[Token]:
        """Go back to the longest common prefix with the history; returns the pending tokens.

        ``most``: how many tokens may be held; by default all but the last one, which has to run
        for its logits.
        """
        store = self.store
        to = min(self.common(history), len(history) - 1 if most is None else most)
        if to < store.length:
            self.device.do(Trim(self.number, to))
            self._held.cut(store.length)
        return history[store.length :]

    # ---- passes ----------------------------------------------------------------------------

    def run(self, tokens: Sequence[Fed], wanted: int = 1) -> mx.array:
        """Run the next tokens in caches of its own: the logits [wanted, vocab] of the last ones,
        lazy; anything, if none are wanted."""
        run = Run(((self.number, tuple(tokens)),), (wanted,))
        result: mx.array = self.device.do(run)
        self._held.add(tokens)
        return result

    def took(self, tokens: Iterable[Fed]) -> None:
        """Note that the next tokens have run, in one pass with those of other sequences."""
        self._held.add(tokens)

    def submit(self) -> None:
        """Start computing what it holds."""
        self.device.do(Submit(self.number))

    def wait(self) -> None:
        """Wait until what it holds is computed."""
        self.device.do(Wait(self.number))

    # ---- ways back -------------------------------------------------------------------------

    def expect_rewinds(self) -> None:
        """Say that rewinds are likely, so that snapshots are worth a copy from now on."""
        if self.slot is None:  # in a slot, nothing has to be prepared
            self.device.do(Expect(self.number))

    def snapshot(self, before: int = 0) -> None:
        """Remember this place ``before`` a pass of that many tokens; with 0, now and then."""
        if self.store.needs_snapshots:
            self.device.do(Snapshot(self.number, before))

    # ---- where it is -----------------------------------------------------------------------

    def join(self) -> None:
        """Move from caches of its own to a slot; it must hold at least one token."""
        self._put(self.device.do(Join(self.number)))

    def leave(self) -> None:
        """Move from a slot to caches of its own."""
        if self.slot is not None:
            self._put(self.device.do(Leave(self.number)))

    def restart(self) -> None:
        """Hold nothing, in caches of its own; frees its slot, if it has one."""
        self._put(self.device.do(Free(self.number)))
        self._held = Held()

    def take(self, tokens: Sequence[Token], *, in_slot: bool = False) -> bool:
        """Hold what the prefix cache has of these tokens; false if it has none of them.

        Only while nothing is held.
        """
        take = Take(self.number, tuple(tokens), in_slot)
        found: Alone | Slot | None = self.device.do(take)
        if found is not None:
            self._put(found)
            self._held = Held(tokens[: found.length])
        return found is not None

    def keep(self, history: History, room: int | None = None, most: int | None = None) -> None:
        """Put what it holds of the history into the prefix cache, which may use ``room`` bytes.

        ``most``: so many tokens of it, if the prefix cache keeps any number of them.
        """
        self.align(history, len(history))
        count = self.length if most is None else min(self.length, most)
        self.device.do(Keep(self.number, tuple(history[:count]), room))

    def fork(self) -> KV:
        """An independent copy outside of any batch; buffers are shared until one side writes."""
        twin = KV.__new__(KV)
        twin.device, twin.number = self.device, self.device.number()
        twin._put(self.device.do(Copy(self.number, twin.number)))
        twin._held = self._held.fork()
        return twin

    def close(self) -> None:
        """Free what it holds, for good."""
        if self._store is not None:
            self.restart()
            self._put(None)

    def _put(self, store: Alone | Slot | None) -> None:
        self._store = store
        self.slot = store if isinstance(store, Slot) else None
