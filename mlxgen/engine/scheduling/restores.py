"""The prompts whose beginnings are read from disk, while others run.

Owns who waits for what, and when it is put into the prefix cache. Must never know files. A prompt
waits if reading is thought to take less time than running the same tokens; then it begins with what
has come. Several that begin alike wait for one reading, each for no more than it has in common with
it. What was read stays in the prefix cache, whatever becomes of who wanted it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...tokens import Token, in_common
from ..kv.commands import Aim, Cancel, Restore
from ..prefix.cache import PrefixCache
from ..prefix.entry import Entry
from ..prefix.fetch import Fetching
from ..step.handle import Handle
from ..step.pace import Pace
from ..step.runner import Runner

WORTH_READING = 64  # tokens that memory has not
PATIENCE = 5.0  # seconds without a piece, after which a disk is not waited for
PAUSE = 0.01  # seconds to wait for one at a time, if nothing else is to be done


@dataclass(slots=True, eq=False)
class _Reading:
    """What is read of ``tokens``: ``put`` of them are in the prefix cache. ``seen`` pieces had come
    when that was last looked at, and a next one is waited for until ``end``. ``aimed``: all know
    how far to read."""

    number: int
    fetch: Fetching
    tokens: tuple[Token, ...]
    end: float
    aimed: bool = False
    seen: int = 0
    put: int = 0


class Restores:
    """See the module. ``room`` says how many bytes the prefix ``cache`` may have now."""

    def __init__(
        self, device: Runner, cache: PrefixCache, pace: Pace, room: Callable[[], int]
    ) -> None:
        self._device = device
        self._cache = cache
        self._pace = pace
        self._room = room
        self._waiting: dict[Handle, tuple[_Reading, int]] = {}  # and for how many tokens
        self._asked: set[Handle] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, handle: object) -> bool:
        """Whether a prompt waits."""
        return handle in self._waiting

    @property
    def nbytes(self) -> int:
        """What has been read and is not in the prefix cache yet."""
        return sum(reading.fetch.nbytes for reading in self._readings)

    @property
    def _readings(self) -> set[_Reading]:
        return {reading for reading, _ in self._waiting.values()}

    def begin(self, handle: Handle) -> bool:
        """Have read what is on disk of a prompt of which nothing has run; whether it waits now."""
        if handle in self._asked or handle.kv.length or handle.is_scored or handle.faults:
            return False
        tokens = tuple(handle.history[: len(handle.history) - 1])
        wanted = self._cache.match(handle.history) + WORTH_READING
        if len(tokens) < wanted:
            return False
        for reading in self._readings:
            common = in_common(tokens, reading.tokens)
            if common >= wanted and self._serves(reading, common):
                self._waiting[handle] = reading, common
                return True
        self._asked.add(handle)
        worth = partial(self._worth, wanted - WORTH_READING, self._room())
        number = self._device.number()
        fetch = self._device.fetch(number, tokens, worth)
        if fetch is None:
            return False
        end = self._device.now() + PATIENCE
        self._waiting[handle] = _Reading(number, fetch, tokens, end), len(tokens)
        return True

    def move(self) -> None:
        """Put what has come into the prefix cache; who has what there is waits no longer."""
        going = {reading: self._goes_on(reading) for reading in self._readings}
        for handle, (reading, wanted) in list(self._waiting.items()):
            if not going[reading] or reading.put >= wanted or not self._serves(reading, wanted):
                self._leave(handle)

    def pause(self) -> None:
        """Wait a moment for what is read."""
        if self._waiting:
            next(iter(self._waiting.values()))[0].fetch.wait(PAUSE)

    def finish(self, handle: Handle) -> None:
        """Put all that is worth it into the prefix cache, while nothing else is to be done."""
        try:
            self.begin(handle)
            while handle in self._waiting:
                self.pause()
                self.move()
        finally:
            self.forget(handle)

    def forget(self, handle: Handle) -> None:
        """A prompt is not waited for any more."""
        self._asked.discard(handle)
        if handle in self._waiting:
            self._leave(handle)

    def _leave(self, handle: Handle) -> None:
        reading, _ = self._waiting.pop(handle)
        if reading not in self._readings:
            self._device.do(Cancel(reading.number))

    def _serves(self, reading: _Reading, common: int) -> bool:
        """Whether there is anything in it, as far as is known, for who has so much in common."""
        goal = reading.fetch.goal
        return goal is None or goal <= common or self._cache.any_length

    def _goes_on(self, reading: _Reading) -> bool:
        """Put what has come into the prefix cache; whether more will come."""
        fetch, now = reading.fetch, self._device.now()
        over, seen, reached = fetch.is_over, fetch.came, fetch.reached
        if seen > reading.seen:
            reading.seen, reading.end = seen, now + PATIENCE
        if fetch.goal is not None and not reading.aimed:
            reading.aimed = True
            self._device.do(Aim(reading.number, fetch.goal))
        if reached > reading.put:
            reading.put, tokens = reached, reading.tokens[:reached]
            try:
                self._device.do(Restore(reading.number, reached, self._room() + fetch.nbytes))
            except Exception:  # it is never worth a sequence
                return False
            over = over or self._cache.match((*tokens, 0)) < reached  # there is no room for more
        return not over and now < reading.end

    def _worth(self, held: int, room: int, found: list[Entry]) -> list[Entry]:
        """What to read: what there is room for, if it takes less time than running it. Called in
        the thread that reads."""
        sizes, fitting = 0, 0
        for entry in found:
            sizes += entry.nbytes
            fitting += sizes <= room
        if not self._cache.any_length and fitting < len(found):
            return []
        found = found[:fitting]
        if not found or found[-1].stop < held + WORTH_READING:
            return []
        token = self._pace.token
        running = token * (found[-1].stop - held) if token else math.inf
        return found if self._cache.read_cost.allows(sum(e.nbytes for e in found), running) else []
