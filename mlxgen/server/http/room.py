"""How many connections there may be, and which one is closed if another needs its place.

Owns the connections by what they wait for. Must never know a socket or a request. It belongs to
the event loop. Invariant: a connection that waits for the server keeps its place. Of the others, an
idle one goes first, because it loses nothing; then the one that has waited for its client longest,
so that clients that are merely slow outlast those that stall on purpose.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Phase(Enum):
    """What a connection waits for."""

    IDLE = "the client, for another request"
    HEAD = "the client, for the rest of a request's headers"
    BODY = "the client, for the rest of a request's body"
    TAKING = "the client, to read what was sent"
    ANSWER = "the server"


class Guest(Protocol):
    """A connection, as far as its place is concerned."""

    def give_up(self) -> None:
        """Close it."""


class Room:
    """Places for ``most`` connections."""

    def __init__(self, most: int) -> None:
        self.most = most
        # oldest first
        self._idle: dict[Guest, None] = {}
        self._waiting: dict[Guest, None] = {}
        self._answered: dict[Guest, None] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._waiting) + len(self._answered)

    @property
    def can_give_up(self) -> bool:
        """Whether a connection waits for its client."""
        return bool(self._idle or self._waiting)

    def put(self, guest: Guest, phase: Phase) -> None:
        """Set what a connection waits for."""
        kind = {Phase.IDLE: self._idle, Phase.ANSWER: self._answered}.get(phase, self._waiting)
        if guest not in kind:
            self.remove(guest)
            kind[guest] = None

    def remove(self, guest: Guest) -> None:
        """Forget a connection that is closed, if it is here."""
        for kind in (self._idle, self._waiting, self._answered):
            kind.pop(guest, None)

    def give_up_one(self) -> None:
        """Close the connection that loses the least, if one can be given up."""
        guest = next(iter(self._idle or self._waiting), None)
        if guest is not None:
            self.remove(guest)
            guest.give_up()
