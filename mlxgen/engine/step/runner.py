"""The device's side of the engine: it carries out commands, and knows nothing else.

Owns the model, the caches by number, and the slots. Must never know requests, text, or why a
command was given. Invariant: what a command leaves depends on the commands before it alone, so
that another runner of the same model that is given the same ones holds the same.

Nothing is evaluated unless a command waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary, ref

import mlx.core as mx

from ...tokens import Token
from ..kv.alone import Alone
from ..kv.commands import (
    Aim,
    Cancel,
    Clear,
    Command,
    Copy,
    Device,
    Empty,
    Expect,
    Flush,
    Forget,
    Free,
    Join,
    Keep,
    Kept,
    Leave,
    Limit,
    Load,
    Prove,
    Restore,
    Run,
    Save,
    Seek,
    Shrink,
    Snapshot,
    Spoil,
    Submit,
    Take,
    Trim,
    Wait,
)
from ..kv.feed import Feed
from ..kv.held import Fed, stacked
from ..kv.layers import PREFILL_STEP, CacheFactory, Model
from ..kv.padded import run_padded
from ..kv.seam import Seam, Wanted
from ..kv.slots import Slot, Slots
from ..prefix.cache import PrefixCache
from ..prefix.fetch import Fetch, Fetching, Report, Worth
from ..prefix.tree import Node


class Runner(Device):
    """See the module.

    ``slots`` are the places in which several go together, and ``cache`` gives the prefix cache when
    it is needed. ``piece`` says how many tokens of a prompt it has the memory to run at once, after
    so many others; ``seam`` is that of the model. ``feed`` is what a pass does with patches of
    images, if there can be any. A cache lives as long as somebody holds it: ``do`` gives those that
    it made.
    """

    def __init__(
        self,
        model: Model,
        make: CacheFactory,
        slots: Slots | None = None,
        cache: Callable[[], PrefixCache] | None = None,
        piece: Callable[[int], int] = lambda held: PREFILL_STEP,
        seam: Seam | None = None,
        feed: Feed | None = None,
    ) -> None:
        self.model = model
        self.make = make
        self.slots = slots
        self.cache = cache
        self.piece = piece
        self.seam = seam or Seam()
        self.states: list[mx.array] | None = None
        """If there is a list, the states [rows, n, width] of a pass are added."""
        self.feed = feed
        self._stores: WeakValueDictionary[int, Alone | Slot] = WeakValueDictionary()
        self._numbers = count()
        # Nodes of the prefix cache that wait for copies, in order, and how many there ever were
        self._unproven: deque[ref[Node]] = deque()
        self._kept = 0
        # Submitted and not read, each with how many such nodes there ever were before it
        self._draws: deque[tuple[int, mx.array]] = deque()
        self._fetches: dict[int, Fetch] = {}
        self._worths: dict[int, Worth] = {}  # of fetches that are about to begin here

    def number(self) -> int:
        """A number for a new cache, or a new fetch."""
        return next(self._numbers)

    def submit(self, arrays: Iterable[mx.array | None]) -> None:
        mx.async_eval(arrays := tuple(arrays))
        if self._unproven:
            self._draws += [(self._kept, array) for array in arrays[:1] if array is not None]

    def read(self, array: mx.array) -> list[int]:
        tokens = super().read(array)
        # If nodes wait for this draw, all before it is computed as well
        if self._draws and any(array is draw for _, draw in self._draws):
            kept, draw = self._draws.popleft()
            while draw is not array:
                kept, draw = self._draws.popleft()
            if (count := kept - (self._kept - len(self._unproven))) > 0:
                self.do(Prove(count))
        return tokens

    def fetch(self, number: int, tokens: tuple[Token, ...], worth: Worth) -> Fetching | None:
        """Begin to read what the prefix cache's folder has of these tokens and memory has not, as
        far as that is ``worth`` it; ``None`` if there is no folder.

        ``Restore`` takes what was read, and ``Cancel`` ends it.
        """
        self._worths[number] = worth
        self.do(Seek(number, tuple(map(int, tokens))))  # of patches only what they are called
        return self._fetches.get(number)

    def moved(self, fetch: int, report: Report) -> None:
        """How a fetch goes on that another runner began, in the thread that reads."""

    def settle(self) -> None:
        """Wait until all that was put into the prefix cache is computed; if that fails, in the
        model's last pass, which nobody waits for, drop it."""
        if not self._unproven:
            return
        try:
            mx.eval([part for node in _there(self._unproven) for part in node.arrays()])
        except Exception:
            self.do(Forget())
        else:
            self.do(Prove(len(self._unproven)))

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
            case Spoil(kv):
                self._stores[kv].spoil()
            case Clear():
                if self.slots is not None:
                    self.slots.clear()
                self._forget()
                if self.feed is not None:
                    self.feed.forget()
            case Empty():
                assert self.cache is not None
                self._unproven.clear()
                self._draws.clear()
                self.cache().do(command)
            case Shrink() | Limit() | Flush() | Save() | Load():
                assert self.cache is not None
                return self.cache().do(command)
            case _:
                assert self.cache is not None
                return self._do_with_prefixes(command, self.cache())
        return None

    def _do_with_prefixes(self, command: Take | Kept, cache: PrefixCache) -> Any:
        try:
            match command:
                case Take(kv, tokens):
                    found = cache.take(tokens)
                    return None if found is None else self._put(kv, found)
                case Keep(kv, tokens, room):
                    store = self._stores[kv]
                    alone = store if isinstance(store, Alone) else store.slots.copy_of(store)
                    self._wait_for(cache.insert(tokens, alone, room=room))
                case Seek(number, tokens):
                    self._seek(number, tokens, cache)
                case Aim(number, stop):
                    self._fetches[number].aim(stop)
                case Restore(number, stop, room):
                    fetch = self._fetches[number]
                    self._wait_for(cache.restore(fetch.ids[:stop], fetch=fetch, room=room))
                case Cancel(number):
                    if (ended := self._fetches.pop(number, None)) is not None:
                        ended.cancel()
                case Prove(count):
                    cache.prove(_there([self._unproven.popleft() for _ in range(count)]))
                    if not self._unproven:
                        self._draws.clear()
                case Forget():
                    self._forget()
        except BaseException:
            self.do(Empty())  # how far it came is not known, nor how far another runner did
            raise
        return None

    def _seek(self, number: int, tokens: tuple[Token, ...], cache: PrefixCache) -> None:
        worth = self._worths.pop(number, None)
        fetch = cache.fetch(tokens, worth, self.now, partial(self.moved, number))
        if fetch is not None:
            self._fetches[number] = fetch
        elif worth is None:
            self.moved(number, Report((), is_over=True))

    def _wait_for(self, nodes: list[Node]) -> None:
        """Note that nodes of the prefix cache are not known to be computed."""
        self._unproven += map(ref, nodes)
        self._kept += len(nodes)

    def _forget(self) -> None:
        if self._unproven and self.cache is not None:
            self.cache().drop(_there(self._unproven))
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

    def _run(self, run: Run) -> mx.array:
        model = self.model
        if self.feed is not None:
            rows, model = self.feed.prepared([tokens for _, tokens in run.rows], model)
            numbered = [(kv, tuple(row)) for (kv, _), row in zip(run.rows, rows, strict=True)]
            run = run._replace(rows=tuple(numbered))
        store = self._stores[run.rows[0][0]]
        if isinstance(store, Slot):
            return self._run_in_slots(run, model)
        rows = [tokens for _, tokens in run.rows]
        inputs, wanted = self._inputs(rows), Wanted([len(row) for row in rows], run.wanted)
        if len(rows) == 1:
            return self.seam.run(lambda: store.forward(model, inputs), wanted, self.states)
        alone = [self._alone(kv) for kv, _ in run.rows]
        return self.seam.run(
            lambda: run_padded(model, self.make, inputs, wanted.lengths, alone),
            wanted,
            self.states,
        )

    def _run_in_slots(self, run: Run, model: Model) -> mx.array:
        slots = self.slots
        assert slots is not None
        runs = {
            self._slot(kv).index: (tokens, count)
            for (kv, tokens), count in zip(run.rows, run.wanted, strict=True)
        }
        first = min(runs)
        every = [runs.get(index, ((), 0)) for index in range(first, max(runs) + 1)]
        lengths = [len(tokens) for tokens, _ in every]
        inputs = self._inputs([tokens for tokens, _ in every])
        return self.seam.run(
            lambda: slots.run(model, inputs, lengths, first),
            Wanted(lengths, [count for _, count in every]),
            self.states,
        )

    def _inputs(self, rows: Sequence[Sequence[Fed]]) -> mx.array:
        """The tokens of a pass [rows, longest]."""
        return stacked(rows)


def _there(nodes: Iterable[ref[Node]]) -> list[Node]:
    """Those of the nodes that are still held."""
    return [node for held in nodes if (node := held()) is not None]
