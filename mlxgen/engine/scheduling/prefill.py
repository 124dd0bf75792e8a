"""The prompts that are being run, a piece at a time, and the beginnings they share.

Owns the order of the pieces, and when a beginning is taken from the prefix cache or put into it.
Must never know limits or the requests that generate.

Prompts that have not begun are next, the shortest first; then the others, in turn. So a short
prompt waits for one piece of a long one, and for nothing that comes after itself.

Invariant: a handle in here has tokens to run before its first draw, and runs none that another one
is about to have run; a prefix cache that fails is emptied, as it is never worth a sequence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import mlx.core as mx

from ...tokens import Token, in_common
from ..kv.commands import Command, Drop
from ..kv.layers import PREFILL_STEP
from ..kv.slot_caches import SLACK
from ..prefix.blocks import LEAST, ahead
from ..prefix.store import BlockStore
from ..step.handle import PIECE, Handle
from ..step.passes import width_of
from ..step.step import Loop
from .memory import fit

COPIED_PER_RUN = 128  # tokens taken from the prefix cache that count as one token run
PADDING = 1.25  # times their own tokens that prompts in a common pass may take with padding
WORTH_WAITING = 32  # shared tokens from which on it pays to wait for another prompt to run them
READING = 0.02  # seconds between two steps for reading blocks from disk

T = TypeVar("T")


class Prefill:
    """Sequences whose prompts go through ``loop``.

    ``cache`` may be ``None``; ``caches`` are all that share its room, and ``places`` says where in
    a prompt a snapshot is worth keeping.
    """

    def __init__(
        self,
        loop: Loop,
        cache: BlockStore | None,
        caches: Collection[BlockStore],
        places: Callable[[Sequence[Token]], list[int]],
    ) -> None:
        self._loop = loop
        self._cache, self._caches = cache, caches
        self._places = places
        self.turns: deque[Handle] = deque()
        """The handles, the next one first."""
        # Handles that the prefix cache was asked for, with the places where it gets more of them
        self._begun: dict[Handle, list[int]] = {}
        self._reads = False  # something was read from disk in this step
        self._uncleared = 0  # tokens run since MLX's buffer cache was cleared
        self.hits = 0
        self.misses = 0

    def add(self, handle: Handle, *, begun: bool = False) -> None:
        """Run the pending tokens of a handle; ``begun``: after those that its KV holds."""
        self.turns.append(handle)
        if begun or handle.is_scored:  # a scored prompt runs whole
            self._begun[handle] = []

    def begin(self, handle: Handle, room: int) -> None:
        """Let a handle take its beginning from memory now, unless it waits for a longer one."""
        begins = handle not in self._begun and not self._waits(handle, room)
        if begins and self._look_up(handle):
            handle.kv.wait()  # both copies are held until then

    def remove(self, handle: Handle) -> None:
        """Take a handle out."""
        self.turns.remove(handle)
        self._begun.pop(handle, None)

    def step(self, tokens: int, room: int) -> list[Handle]:
        """Run ``tokens`` tokens of prompts; returns the handles that are done. What they have run
        goes to the prefix cache, which may use ``room`` bytes.

        Handles that are done have little left to run, mostly one token, and are taken out. If
        others generate, a prompt of several pieces is done in the step after its last one, so that
        no gap holds both that piece and the first draw. Tokens copied from the prefix cache count a
        little, so that many prompts that begin with much of it begin one by one. A long prompt
        waits for the first draws of those that are done.
        """
        done: list[Handle] = []
        together: list[Handle] = []  # new ones that share a pass
        last: Handle | None = None  # the last one that ran
        self._reads = False
        self.turns = deque(sorted(self.turns, key=self._rank))
        for _ in range(len(self.turns)):
            handle = self.turns[0]
            if tokens <= 0 or (done and handle.missing > tokens):
                break
            self.turns.rotate(-1)
            begins = handle not in self._begun
            if begins:
                if self._waits(handle, room) or self._is_read(handle, room):
                    continue
                tokens -= self._look_up(handle) // COPIED_PER_RUN
            missing, places = len(handle.align()) - 1, self._begun[handle]
            rows = len(self._loop.handles) + len(self.turns)
            if missing < 1 or (begins and not places and missing < width_of(rows)):
                done.append(handle)  # the rest goes in one pass with those that generate
                continue
            last = handle
            if self._shares(handle, missing, together, min(tokens, PREFILL_STEP)):
                together.append(handle)
                count = missing
            else:
                count = min(missing, max(0, tokens), PIECE if handle.is_scored else PREFILL_STEP)
                end = handle.kv.length + count
                for stop in [*[place for place in places if place < end], end]:
                    if stop > (held := handle.kv.length):
                        self._loop.passes.prefill([handle], stop - held)
                        if stop in places:  # its KV up to there is kept
                            self.keep(handle, room)
            if count == missing and (begins or not self._loop.handles):
                done.append(handle)
            tokens -= count
            self._uncleared += count
            if handle.is_scored:  # one at a time, as their logits are large
                break
        if together:
            self._loop.passes.prefill(together, PREFILL_STEP)
        full = self._uncleared >= PREFILL_STEP
        if last is not None and (full or last.is_scored) and not self._loop.handles:
            last.kv.wait()  # if others generate, their steps wait often enough
            self._loop.clock.wait()
        if full:
            self._uncleared = 0
            mx.clear_cache()  # buffers of shorter KV will not be used again
        for handle in done:  # last: what an interrupt cut off is done again
            self.remove(handle)
        return done

    def keep(self, handle: Handle, room: int, most: int | None = None) -> None:
        """Put what a sequence has run into the prefix cache, which may use ``room`` bytes.

        ``most``: this many tokens at most, if the prefix cache keeps any length. If it does not, a
        sequence that has gone only a few tokens beyond a snapshot is not kept.
        """
        kv, history = handle.kv, handle.history
        kv.align(history, len(history))  # it goes on from there
        count = kv.length if most is None else min(kv.length, most)
        if count < LEAST:
            return

        def keep(cache: BlockStore) -> None:
            new = count - cache.match([*history[:count], 0])
            if new >= (1 if cache.any_length else LEAST):
                kv.keep(history, room, count)
            handle.drafts.keep(history, room)
            fit(self._caches, room)

        self._ask(keep, None)

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        assert self._begun.keys() <= set(self.turns)

    def _rank(self, handle: Handle) -> float:
        """First those that have been run, then new ones, the shortest first, then the others."""
        if handle in self._begun:
            return math.inf if handle.missing > 1 else 0
        return len(handle.history)

    def _waits(self, handle: Handle, room: int) -> bool:
        """Whether another handle is running the beginning of this prompt, or has just run it.

        The common beginning is kept as soon as the other has run it; if the prefix cache does not
        keep any length, up to one of the other's places, which is added if there is none.
        """
        if self._cache is None:
            return False
        tokens = handle.history
        shared, run, other = 0, 0, handle
        for each in self._begun:
            common = min(in_common(tokens, each.history), len(tokens) - 1)
            if (common, each.kv.length) > (shared, run):
                shared, run, other = common, each.kv.length, each
        if shared <= WORTH_WAITING:
            return False
        known = self._ask(lambda cache: cache.match(tokens), 0)
        if not self._cache.any_length:
            places = self._begun.get(other, [])
            last = max([place for place in places if place <= shared], default=0)
            if shared - last > WORTH_WAITING and run <= shared - LEAST:
                places.append(shared)
                places.sort()
            else:
                shared = last
        if shared - known <= WORTH_WAITING:
            return False
        if run < shared:
            return True
        if self._cache.any_length:
            self.keep(other, room, shared)
        return False

    def _is_read(self, handle: Handle, room: int) -> bool:
        """Read some blocks of this prompt from disk; returns whether there are more."""
        loop = self._loop
        if handle.faults:
            return False

        def read(command: Command) -> None:
            self._reads = True
            loop.clock.skip()
            loop.runner.do(command)

        def restore(cache: BlockStore) -> bool:
            seconds = -1.0 if self._reads else READING  # one prompt at a time
            return cache.restore(handle.history, room=max(0, room), seconds=seconds, do=read)

        return not self._ask(restore, True)

    def _shares(self, handle: Handle, missing: int, others: list[Handle], tokens: int) -> bool:
        """Whether a prompt goes with others in one pass, padded to the longest; it may have
        ``tokens`` missing tokens at most."""
        slots = self._loop.runner.slots
        if slots.recurrent or not slots.batches or (slots.window is not None and missing > SLACK):
            return False
        if missing > tokens or handle.kv.length or handle.is_scored or self._begun[handle]:
            return False
        lengths = [missing, *[len(other.pending) - 1 for other in others]]
        return len(lengths) * max(lengths) <= PADDING * sum(lengths)

    def _look_up(self, handle: Handle) -> int:
        """Take what the prefix cache has of a sequence; returns how many tokens."""
        self._begun[handle] = []
        if self._cache is None or handle.kv.length:
            return 0
        if self._ask(lambda cache: take_prefix(handle, cache), False):
            self.hits += 1
        else:
            self.misses += 1
        self._begun[handle] = self._ask(lambda cache: places_ahead(handle, cache, self._places), [])
        return handle.kv.length

    def _ask(self, ask: Callable[[BlockStore], T], instead: T) -> T:
        """The answer of the prefix cache; ``instead`` if there is none, or if it fails."""
        if self._cache is None:
            return instead
        try:
            return ask(self._cache)
        except Exception:
            self._loop.runner.do(Drop(0))
            return instead


def take_prefix(handle: Handle, cache: BlockStore) -> bool:
    """Have a handle that has run nothing begin with the cache's KV; returns whether it does."""
    if handle.is_scored:
        return False
    if cache.match(handle.history) < LEAST or not handle.kv.take(handle.history):
        return False
    handle.cached = min(handle.kv.length, handle.request.base + handle.request.first)
    return True


def places_ahead(
    handle: Handle, cache: BlockStore, places: Callable[[Sequence[Token]], list[int]]
) -> list[int]:
    """The places at which to put more of a handle's prompt into the cache, which was asked for it;
    none if it keeps any length."""
    if cache.any_length or handle.is_scored:
        return []
    prompt = handle.history[: handle.request.base + handle.request.first]
    return ahead(places(prompt), handle.kv.length, cache.known(prompt))
