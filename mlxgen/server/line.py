"""Who is next when many want one of a few places.

Owns the places and the order. Must never know what happens at a place, or who a client is. It
belongs to the event loop.

The order is start-time fair queuing (Goyal, Vin and Cheng, 1996): each client has a clock, which
its turns advance by what they cost. The client whose clock is furthest behind is next, and a new
client starts at the clock of the last turn. So a client that asks for much waits for those that
ask for little, whoever came first.

Heavy turns, and those of a client that has just had more than its share, never take the last free
place, so light and new ones find one at once.

Invariant: no more turns are in progress than there were places when they began.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

WAITING = 32  # turns that one client may wait for
_GUESS = 0.02  # the assumed cost of a turn until it has ended
_DEBT = 0.2  # turns of a client this far ahead of the line's clock are heavy


class CrowdedError(Exception):
    """A client already waits for as many turns as it may."""


@dataclass(slots=True, eq=False)
class Turn:
    """A place, for a while."""

    client: str
    heavy: bool
    place: asyncio.Future[None] = field(repr=False)


class Line:
    """Places, and the turns that wait for one. Costs are in seconds."""

    def __init__(self, places: int = 0) -> None:
        self._places = places
        self._waiting: list[Turn] = []  # in the order in which they came
        self._taken = 0
        self._heavy = 0  # of these
        self._clock = 0.0
        self._clocks: dict[str, float] = {}  # of clients that are ahead of the clock

    def open(self) -> None:
        """Add a place."""
        self._places += 1
        self._call()

    def shut(self) -> None:
        """Remove a place as soon as it is free."""
        self._places -= 1

    async def enter(self, client: str, *, heavy: bool = False) -> Turn:
        """Wait for a place; raises ``CrowdedError`` if the client already waits for too many."""
        if sum(turn.client == client for turn in self._waiting) >= WAITING:
            raise CrowdedError
        turn = Turn(client, heavy, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._call()
        try:
            await turn.place
        except asyncio.CancelledError:
            if turn.place.cancelled():
                self._waiting.remove(turn)
            else:
                self.leave(turn, 0.0)
            raise
        return turn

    def leave(self, turn: Turn, cost: float) -> None:
        """Release the place."""
        self._taken -= 1
        self._heavy -= turn.heavy
        self._clocks[turn.client] = self._clock_of(turn.client) + cost - _GUESS
        if not self._taken and not self._waiting:
            self._clocks.clear()  # nobody is left to be compared with
        self._call()

    def _clock_of(self, client: str) -> float:
        return max(self._clock, self._clocks.get(client, 0.0))

    def _call(self) -> None:
        """Give the free places to the turns that are next."""
        while self._taken < self._places:
            ready = [turn for turn in self._waiting if self._may_begin(turn)]
            if not ready:
                return
            turn = min(ready, key=lambda turn: self._clock_of(turn.client))
            turn.heavy = self._is_heavy(turn)
            self._waiting.remove(turn)
            self._taken += 1
            self._heavy += turn.heavy
            self._clock = self._clock_of(turn.client)
            ahead = ((name, at) for name, at in self._clocks.items() if at > self._clock)
            self._clocks = {**dict(ahead), turn.client: self._clock + _GUESS}
            turn.place.set_result(None)

    def _may_begin(self, turn: Turn) -> bool:
        if turn.place.done():  # cancelled, and about to be removed
            return False
        return self._heavy < max(1, self._places - 1) or not self._is_heavy(turn)

    def _is_heavy(self, turn: Turn) -> bool:
        return turn.heavy or self._clock_of(turn.client) - self._clock > _DEBT
