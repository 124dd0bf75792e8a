"""The KV cache of one sequence: a cache of its history.

Owns which tokens are held, and where: in caches of its own (``Alone``) or in a batch (``Slot``).
Must never know what the tokens mean, nor how they were sampled. It may hold others than the
history does: tokens that were taken back, a look-ahead, a draft that missed. Invariant: ``align``
leaves nothing but a beginning of the history in it, and says what the model has to run.

Nothing else takes back what a cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mlx.core as mx

from ...errors import StateError
from ...tokens import Token
from ..history import History
from .alone import Alone
from .held import Fed, Held, gathered
from .layers import CacheFactory, LayerCache, Model
from .slots import Slot, Slots


class KV:
    """See the module. ``make`` builds the empty caches of the model, one for each layer."""

    __slots__ = ("_held", "_make", "_store")

    def __init__(self, make: CacheFactory) -> None:
        self._make = make
        self._store: Alone | Slot | None = Alone(make)
        self._held = Held()

    @classmethod
    def holding(cls, make: CacheFactory, caches: list[LayerCache], tokens: Sequence[Fed]) -> KV:
        """Caches that hold ``tokens`` already, one for each layer of ``make()``."""
        kv = cls(make)
        kv.hold(caches, tokens)
        return kv

    def hold(self, caches: list[LayerCache], tokens: Sequence[Fed]) -> None:
        """Hold these caches of ``tokens`` from now on, where it held nothing."""
        store = self.alone
        store.caches, store.length = caches, len(tokens)
        self._held = Held(tokens)

    def take(self, other: KV) -> None:
        """Hold what another one held, where it held nothing; the other is used up."""
        self._store, self._held = other._store, other._held
        other._store = None

    # ---- what it holds ---------------------------------------------------------------------

    @property
    def store(self) -> Alone | Slot:
        """Where it is held; raises ``StateError`` for a closed sequence."""
        if self._store is None:
            raise StateError("this generation is closed; make a new one")
        return self._store

    @property
    def slot(self) -> Slot | None:
        """Its place in a batch, if it is in one."""
        return self._store if isinstance(self._store, Slot) else None

    @property
    def alone(self) -> Alone:
        """Its caches of its own, in which it has to be."""
        store = self.store
        assert isinstance(store, Alone)
        return store

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.store.length

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers, or its share of the batch's."""
        return 0 if self._store is None else self._store.nbytes

    @property
    def caches(self) -> list[LayerCache]:
        """Its caches; a copy of what is in a batch."""
        store = self.store
        return (store if isinstance(store, Alone) else store.slots.copy_of(store)).caches

    def common(self, history: History) -> int:
        """How many leading tokens of the history it holds."""
        self._held.cut(self.store.length)  # after a pass that failed half-way
        return self._held.common(history)

    def align(self, history: History, most: int | None = None) -> list[Token]:
        """Go back to the longest common beginning with the history; returns what is pending.

        ``most``: how many of its tokens may be held. By default all but the last one, as it takes
        a pass to have logits.
        """
        to = min(self.common(history), len(history) - 1 if most is None else most)
        store = self.store
        if to < store.length:
            store.go_back(to)
            self._held.cut(store.length)
        return history[store.length :]

    # ---- passes ----------------------------------------------------------------------------

    def run(self, model: Model, tokens: Sequence[Fed]) -> mx.array:
        """Run the next tokens in caches of its own: logits [1, n, vocab], nothing is evaluated."""
        logits = self.alone.forward(model, gathered(tokens)[None])
        self._held.add(tokens)
        return logits

    def took(self, tokens: Iterable[Fed]) -> None:
        """Say that the next tokens have gone through the model, in its slot."""
        self._held.add(tokens)

    # ---- where it is -----------------------------------------------------------------------

    def join(self, slots: Slots) -> None:
        """Go from caches of its own to a slot; it holds a token at least."""
        self._store = slots.join(self.alone)

    def leave(self) -> None:
        """Go from a slot to caches of its own."""
        slot = self.slot
        if slot is not None:
            slots = slot.slots
            self._store = slots.copy_of(slot)
            slots.leave(slot)

    def restart(self) -> None:
        """Hold nothing, in caches of its own; a place in the slots is freed."""
        slot = self.slot
        self._store, self._held = Alone(self._make), Held()
        if slot is not None and slot.is_taken:
            slot.slots.leave(slot)

    def fork(self) -> KV:
        """An independent copy outside of any batch; buffers are shared until one side writes."""
        twin = KV.__new__(KV)
        store = self.store
        twin._make = self._make
        twin._store = store.fork() if isinstance(store, Alone) else store.slots.copy_of(store)
        twin._held = self._held.fork()
        return twin

    def close(self) -> None:
        """Free what it holds, for good."""
        if self._store is not None:
            self.restart()
            self._store = None
