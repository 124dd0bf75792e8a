"""The KV cache of one sequence: a cache of its history.

Owns which tokens are held. Must never know what they mean, nor how they were sampled; where and how
they are held is the device's, which is told by commands. It may hold others than the history does:
tokens that were taken back, a look-ahead, a draft that missed. Invariant: ``align`` leaves nothing
but a beginning of the history in it, and says what the model has to run.

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
    """See the module. It is empty at first, in caches of its own."""

    __slots__ = ("_device", "_held", "_store", "number")

    def __init__(self, device: Device) -> None:
        self._device = device
        self.number = device.number()
        self._held = Held()
        self._store: Alone | Slot | None = device.do(Free(self.number))

    # ---- what it holds ---------------------------------------------------------------------

    @property
    def store(self) -> Alone | Slot:
        """Where it is held, for questions; raises ``StateError`` for a closed sequence."""
        if self._store is None:
            raise StateError("this generation is closed; make a new one")
        return self._store

    @property
    def slot(self) -> Slot | None:
        """Its place in a batch, if it is in one."""
        return self._store if isinstance(self._store, Slot) else None

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.store.length

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers, or its share of the batch's."""
        return 0 if self._store is None else self._store.nbytes

    def common(self, history: History) -> int:
        """How many leading tokens of the history it holds."""
        return self._held.common(history, self.store.length)

    def align(self, history: History, most: int | None = None) -> list[Token]:
        """Go back to the longest common beginning with the history; returns what is pending.

        ``most``: how many of its tokens may be held. By default all but the last one, as it takes
        a pass to have logits.
        """
        to = min(self.common(history), len(history) - 1 if most is None else most)
        store = self.store
        if to < store.length:
            self._device.do(Trim(self.number, to))
            self._held.cut(store.length)
        return history[store.length :]

    # ---- passes ----------------------------------------------------------------------------

    def run(self, tokens: Sequence[Fed]) -> mx.array:
        """Run the next tokens in caches of its own: logits [1, n, vocab], nothing is evaluated."""
        logits: mx.array = self._device.do(Run(((self.number, tuple(tokens)),)))
        self._held.add(tokens)
        return logits

    def took(self, tokens: Iterable[Fed]) -> None:
        """Say that the next tokens have gone through the model with others'."""
        self._held.add(tokens)

    def submit(self) -> None:
        """Begin to compute what it holds."""
        self._device.do(Submit(self.number))

    def wait(self) -> None:
        """Wait until what it holds is computed."""
        self._device.do(Wait(self.number))

    # ---- ways back -------------------------------------------------------------------------

    def expect_rewinds(self) -> None:
        """Say that rewinds are likely: snapshots are worth a copy from now on."""
        self._device.do(Expect(self.number))

    def snapshot(self, before: int = 0) -> None:
        """Remember this place, ``before`` a pass of so many tokens, or where it is worth it."""
        if self.store.needs_snapshots:
            self._device.do(Snapshot(self.number, before))

    # ---- where it is -----------------------------------------------------------------------

    def join(self) -> None:
        """Go from caches of its own to a slot; it holds a token at least."""
        self._store = self._device.do(Join(self.number))

    def leave(self) -> None:
        """Go from a slot to caches of its own."""
        if self.slot is not None:
            self._store = self._device.do(Leave(self.number))

    def restart(self) -> None:
        """Hold nothing, in caches of its own; a place in the slots is freed."""
        self._store, self._held = self._device.do(Free(self.number)), Held()

    def take(self, tokens: Sequence[Token]) -> bool:
        """Hold what the prefix cache has of these, where it held nothing; whether it has any."""
        found: Alone | None = self._device.do(Take(self.number, tuple(tokens)))
        if found is not None:
            self._store, self._held = found, Held(tokens[: found.length])
        return found is not None

    def keep(self, history: History, room: int | None = None) -> None:
        """Give what it holds of the history to the prefix cache, which may have ``room`` bytes."""
        self.align(history, len(history))
        self._device.do(Keep(self.number, tuple(history[: self.length]), room))

    def fork(self) -> KV:
        """An independent copy outside of any batch; buffers are shared until one side writes."""
        twin = KV.__new__(KV)
        twin._device, twin.number = self._device, self._device.number()
        twin._store = self._device.do(Copy(self.number, twin.number))
        twin._held = self._held.fork()
        return twin

    def close(self) -> None:
        """Free what it holds, for good."""
        if self._store is not None:
            self.restart()
            self._store = None
