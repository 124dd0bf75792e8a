"""The device's side of the engine: it carries out commands, and knows nothing else.

Owns the model, the caches by number, and the slots. Must never know requests, text, or why a
command was given. Invariant: what a command leaves depends on the commands before it alone, so
that another runner of the same model that is given the same ones holds the same.

Nothing is evaluated unless a command waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary, ref

import mlx.core as mx

from ..kv.alone import Alone
from ..kv.commands import (
    Clear,
    Command,
    Copy,
    Device,
    Expect,
    Free,
    Join,
    Keep,
    Leave,
    Restore,
    Run,
    Settle,
    Shrink,
    Snapshot,
    Submit,
    Take,
    Trim,
    Wait,
)
from ..kv.feed import Feed
from ..kv.held import gathered, stacked
from ..kv.layers import PREFILL_STEP, CacheFactory, Model
from ..kv.padded import run_padded
from ..kv.slots import Slot, Slots
from ..prefix.cache import PrefixCache
from ..prefix.tree import Node


class Runner(Device):
    """See the module.

    ``slots`` are the places in which several go together, and ``cache`` gives the prefix cache when
    it is needed. ``piece`` says how many tokens of a prompt it has the memory to run at once, after
    so many others; ``head`` is the share of a pass that only its logits need. ``feed`` is what a
    pass does with patches of images, if there can be any. A cache lives as long as somebody holds
    it: ``do`` gives those that it made.
    """

    def __init__(
        self,
        model: Model,
        make: CacheFactory,
        slots: Slots | None = None,
        cache: Callable[[], PrefixCache] | None = None,
        piece: Callable[[int], int] = lambda held: PREFILL_STEP,
        head: float = 0.0,
        feed: Feed | None = None,
    ) -> None:
        self.model = model
        self.make = make
        self.slots = slots
        self.cache = cache
        self.piece = piece
        self.head = head
        self.feed = feed
        self._stores: WeakValueDictionary[int, Alone | Slot] = WeakValueDictionary()
        self._numbers = count()
        # Nodes of the prefix cache that wait for copies, each with how many draws came before it
        self._unproven: deque[tuple[int, ref[Node]]] = deque()
        # Submitted and not read, while there are such nodes
        self._draws: deque[tuple[int, mx.array]] = deque()
        self._drawn = 0

    def number(self) -> int:
        """A number for a new cache."""
        return next(self._numbers)

    def submit(self, arrays: Iterable[mx.array | None]) -> None:
        mx.async_eval(arrays := tuple(arrays))
        if self._unproven:
            self._drawn += 1
            self._draws += [(self._drawn, array) for array in arrays[:1] if array is not None]

    def read(self, array: mx.array) -> list[int]:
        tokens = super().read(array)
        # If nodes wait for this draw, all before it is computed as well
        if self._draws and any(array is draw for _, draw in self._draws):
            number, draw = self._draws.popleft()
            while draw is not array:
                number, draw = self._draws.popleft()
            proven = []
            while self._unproven and self._unproven[0][0] < number:
                proven.append(self._unproven.popleft()[1])
            self._prove(proven)
            if not self._unproven:
                self._draws.clear()
        return tokens

    def do(self, command: Command) -> Any:
        """Carry out a command: the logits of a pass, the new place of a cache that moves or is made
        or taken, nothing of the others."""
        match command:
            case Run():
                return self._run(command)
            case Trim(kv, to):
                self._stores[kv].go_back(to)
            case Snapshot(kv, before):
                self._stores[kv].checkpoint(before)
            case Expect(kv):
                self._alone(kv).expect_rewinds()
            case Submit(kv):
                mx.async_eval(self._alone(kv).arrays())
            case Wait(kv):
                mx.eval(self._alone(kv).arrays())
            case Copy(kv, twin):
                store = self._stores[kv]
                copy = store.fork() if isinstance(store, Alone) else store.slots.copy_of(store)
                return self._put(twin, copy)
            case Join(kv):
                assert self.slots is not None
                return self._put(kv, self.slots.join(self._alone(kv)))
            case Leave(kv):
                slot = self._slot(kv)
                copy = slot.slots.copy_of(slot)
                slot.slots.leave(slot)
                return self._put(kv, copy)
            case Free(kv):
                held = self._stores.get(kv)
                if isinstance(held, Slot):
                    held.slots.leave(held)
                return self._put(kv, Alone(self.make))
            case Take(kv, tokens):
                assert self.cache is not None
                found = self.cache().take(tokens)
                return None if found is None else self._put(kv, found)
            case Keep(kv, tokens, room):
                assert self.cache is not None
                store = self._stores[kv]
                alone = store if isinstance(store, Alone) else store.slots.copy_of(store)
                nodes = self.cache().insert(tokens, alone, room=room)
                self._unproven += [(self._drawn, ref(node)) for node in nodes]
            case Shrink(to):
                assert self.cache is not None
                self.cache().shrink(to)
            case Restore(tokens, room):
                assert self.cache is not None
                nodes = self.cache().restore(tokens, room=room)
                self._unproven += [(self._drawn, ref(node)) for node in nodes]
            case Settle():
                self._settle()
            case Clear():
                if self.slots is not None:
                    self.slots.clear()
                self._forget()
                if self.feed is not None:
                    self.feed.forget()
        return None

    def _settle(self) -> None:
        unproven = [held for _, held in self._unproven]
        try:
            mx.eval([part for node in _there(unproven) for part in node.arrays()])
        except Exception:  # of the model's last pass, which nobody waits for
            self._forget()
            return
        self._unproven.clear()
        self._draws.clear()
        self._prove(unproven)

    def _prove(self, nodes: Iterable[ref[Node]]) -> None:
        if (there := _there(nodes)) and self.cache is not None:
            self.cache().prove(there)

    def _forget(self) -> None:
        """Drop what may not have been computed from the prefix cache."""
        if self._unproven and self.cache is not None:
            self.cache().drop(_there([held for _, held in self._unproven]))
        self._unproven.clear()
        self._draws.clear()

    def _put(self, kv: int, store: Alone | Slot) -> Alone | Slot:
        self._stores[kv] = store
        return store

    def _alone(self, kv: int) -> Alone:
        store = self._stores[kv]
        assert isinstance(store, Alone)
        return store

    def _slot(self, kv: int) -> Slot:
        store = self._stores[kv]
        assert isinstance(store, Slot)
        return store

    def _run(self, run: Run) -> mx.array | None:
        model = self.model
        if self.feed is not None:
            rows, model = self.feed.prepared([tokens for _, tokens in run.rows], model)
            run = Run(
                tuple([(kv, tuple(row)) for (kv, _), row in zip(run.rows, rows, strict=True)])
            )
        kv, tokens = run.rows[0]
        store = self._stores[kv]
        if isinstance(store, Slot):
            return self._run_in_slots(run, model)
        if len(run.rows) == 1:
            return store.forward(model, gathered(tokens)[None])
        rows = [tokens for _, tokens in run.rows]
        alone = [self._alone(kv) for kv, _ in run.rows]
        run_padded(model, self.make, stacked(rows), [len(row) for row in rows], alone)
        return None

    def _run_in_slots(self, run: Run, model: Model) -> mx.array:
        runs = {self._slot(kv).index: tokens for kv, tokens in run.rows}
        first = min(runs)
        rows = [runs.get(index, ()) for index in range(first, max(runs) + 1)]
        assert self.slots is not None
        return self.slots.run(model, stacked(rows), [len(row) for row in rows], first)


def _there(nodes: Iterable[ref[Node]]) -> list[Node]:
    """Those of the nodes that are still held."""
    return [node for held in nodes if (node := held()) is not None]
