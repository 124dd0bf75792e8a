"""What answers a request: news of its sequences in, events of one API out.

A whole answer is what the events of a stream, put together, say. So there is one way from chunks to
JSON, and what a client reads does not depend on whether it streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..engine import Usage
from .engine.mailbox import Delivery

Event: TypeAlias = dict[str, Any]


class Aside(NamedTuple):
    """What clients skip in a stream, before its first event, too: a comment, or an event."""

    text: str


Sent: TypeAlias = Event | str | Aside
"""An event of a stream, or the JSON of one, or what is no part of the answer."""


class Reply(Protocol):
    """The reply to one request; sans-IO, and it belongs to one task."""

    def start(self) -> Sequence[Sent]:
        """The first events."""

    def take(self, news: Delivery) -> Sequence[Sent]:
        """What is known of a sequence now; returns the events to send."""

    def alive(self) -> Sequence[Sent]:
        """What a stream says if nothing else was said for a while."""

    def finish(self, usages: Sequence[Usage]) -> Sequence[Sent]:
        """The last events (before ``[DONE]``); ``usages`` in the order of sequences."""

    def fail(self, error: BaseException) -> Event:
        """The event that ends a stream which fails."""

    def fold(self, event: Event) -> None:
        """Add one of the events to the whole answer, if nobody streams them."""

    def whole(self) -> Any:
        """The whole answer, after the last event."""


def name_of(kind: str, *where: object) -> str:
    """A name for a part of a reply, unique among all: ``where`` begins with the id of the reply."""
    seed = "/".join(map(str, where)).encode()
    return f"{kind}_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"
