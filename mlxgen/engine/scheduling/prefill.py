"""The prompts that are being run, a piece at a time, and what they have in common.

Owns the order of the pieces, and when a beginning is taken from the prefix cache and given to
it. Must never know limits or the requests that generate. Invariant: a handle in here has tokens to
run before its first draw, and none of them twice if another one runs them already; a prefix
cache that fails is emptied, as it is never worth a sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..history import in_common
from ..kv.padded import alike
from ..prefix.cache import PrefixCache
from ..step.handle import Handle
from ..step.step import Loop

WORTH_KEEPING = 16  # tokens from which on a prefix is kept
COPIED_PER_RUN = 128  # tokens taken from the prefix cache that count as one that is run
WORTH_WAITING = 32  # tokens in common from which on a sequence waits for another's prefill

T = TypeVar("T")


class Prefill:
    """Sequences whose prompts go through ``loop``, in turn; ``cache`` may be ``None``."""

    def __init__(self, loop: Loop, cache: PrefixCache | None) -> None:
        self._loop = loop
        self._cache = cache
        self._turns: deque[Handle] = deque()
        self._begun: set[Handle] = set()  # the prefix cache was asked for these
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, handle: object) -> bool:
        return handle in self._turns

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._turns)

    def add(self, handle: Handle, *, begun: bool = False) -> None:
        """Run what a handle has pending; ``begun``: from the KV that it has."""
        self._turns.append(handle)
        if begun:
            self._begun.add(handle)

    def remove(self, handle: Handle) -> None:
        """Take a handle out."""
        self._turns.remove(handle)
        self._begun.discard(handle)

    def step(self, budget: int) -> tuple[int, list[Handle]]:
        """Run up to ``budget`` tokens; returns how many, and the handles that are done.

        Those have one token left to run, and are taken out. A short prompt with nobody beside it is
        done at once: the loop runs all of it in the pass that gives its logits. What comes from the
        prefix cache counts a little, as it is copied: many that begin with much of it begin one by
        one.
        """
        fed = 0
        done: list[Handle] = []
        together: list[Handle] = []  # short and new: these share a pass
        alone = len(self._turns) == 1 and not self._loop.handles
        for _ in range(len(self._turns)):
            handle = self._turns[0]
            self._turns.rotate(-1)
            if handle not in self._begun:
                if self._waits(handle, done):
                    continue
                fed += self._look_up(handle) // COPIED_PER_RUN
            missing = len(handle.align()) - 1
            if alone and self._loop.passes.is_single(handle):
                missing = 0
            count = min(missing, max(0, budget - fed))
            if count == missing:
                done.append(handle)
            if count == missing > 0 and self._goes_with(handle, together):
                together.append(handle)
            elif count > 0:
                self._loop.passes.prefill(handle, count)
            fed += count
            if fed >= budget:
                break
        if len(together) == 1:
            self._loop.passes.prefill(together[0], len(together[0].pending))
        elif together:
            self._loop.passes.prefill_together(together)
        for handle in done:  # not before: what an interrupt cut off is done again
            self.remove(handle)
        return fed, done

    def keep(self, handle: Handle, room: int) -> None:
        """Give what a sequence has run to the prefix cache, which may have ``room`` bytes."""
        kv, history = handle.kv, handle.history
        kv.align(history, len(history))  # it is run on from there
        if kv.length < WORTH_KEEPING:
            return

        def keep(cache: PrefixCache) -> None:
            if cache.match([*history[: kv.length], 0]) < kv.length:
                kv.keep(history, room)

        self._ask(keep, None)

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        assert self._begun <= set(self._turns)

    def _waits(self, handle: Handle, done: list[Handle]) -> bool:
        """Whether another one is running the beginning of this prompt, or has just run it."""
        if self._cache is None or handle.is_scored:
            return False
        tokens = handle.history
        shared = max((in_common(tokens, o.history) for o in (*self._begun, *done)), default=0)
        if shared <= WORTH_WAITING:
            return False
        return shared > self._ask(lambda cache: cache.match(tokens), 0) + WORTH_WAITING

    def _goes_with(self, handle: Handle, others: list[Handle]) -> bool:
        """Whether a prompt shares a pass with others, padded to the longest of them."""
        if handle.kv.length or handle.is_scored:
            return False
        missing = [len(each.pending) - 1 for each in (*others, handle)]
        return missing[-1] <= self._loop.passes.longest_padded and alike(missing)

    def _look_up(self, handle: Handle) -> int:
        """Take what the prefix cache has of a sequence; returns how many tokens."""
        self._begun.add(handle)
        if self._cache is None or handle.kv.length or handle.is_scored:
            return 0
        if self._ask(lambda cache: take_prefix(handle, cache), False):
            self.hits += 1
        else:
            self.misses += 1
        return handle.kv.length

    def _ask(self, ask: Callable[[PrefixCache], T], instead: T) -> T:
        """What the prefix cache says; ``instead`` if there is none, or if it fails."""
        if self._cache is None:
            return instead
        try:
            return ask(self._cache)
        except Exception:
            self._cache.clear()
            return instead


def take_prefix(handle: Handle, cache: PrefixCache) -> bool:
    """Let a handle that has run nothing begin with what the cache has of its history."""
    if handle.is_scored:
        return False
    if cache.match(handle.history) < WORTH_KEEPING or not handle.kv.take(handle.history):
        return False
    if handle.request.may_decline:
        handle.kv.expect_rewinds()
    handle.cached = min(handle.kv.length, handle.request.base + handle.request.first)
    return True
