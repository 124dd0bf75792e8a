"""The answers that are being generated, by the names under which they can be steered.

Invariant: nobody learns of an answer that is not their own, not even whether there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from .ask import Ask
from .engine.mailbox import Mailbox
from .errors import RequestError
from .fleet.member import Serving

KNOWN = 4096  # names of answers that have ended, which are told from those that never were


class Answer(NamedTuple):
    """What is generated for a request. ``id`` is that of the reply."""

    id: str
    ask: Ask
    mailbox: Mailbox
    serving: Serving


class Answers:
    """All of them; an owner is as in ``owner_of``."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Answer] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add(self, owner: str, names: Iterable[str], answer: Answer) -> None:
        """Know an answer under these names; of several with the same name, the newest is meant."""
        for name in names:
            self._running[owner, name] = answer

    def end(self, answer: Answer) -> None:
        """Remember of an answer only that it was there."""
        for key in [key for key, each in self._running.items() if each is answer]:
            del self._running[key]
            self._ended[key] = None
        while len(self._ended) > KNOWN:
            self._ended.popitem(last=False)

    def find(self, owner: str, name: str) -> Answer:
        """The answer of this name; raises ``RequestError``: 409 if it has ended, or else 404."""
        found = self._running.get((owner, name))
        if found is not None:
            return found
        if (owner, name) in self._ended:
            raise ended()
        raise RequestError(
            "there is no such answer; send the id that it has in its events, or its X-Request-Id",
            status=404,
            param="id",
            code="answer_not_found",
        )


def ended() -> RequestError:
    """The error for an answer that cannot be steered any more."""
    return RequestError("the answer has ended", status=409, param="id", code="answer_ended")
