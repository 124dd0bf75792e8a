"""Drafts from text: what followed the last three tokens at their latest earlier place.

While the text goes on as it did there, that place is followed. It is in the request itself, else
in earlier texts of the same owner. Owns these texts. Invariant: nothing of one owner's is ever
shown to another.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

from ...filters.matcher import GrammarFilter
from ...tokens import Token
from ..history import History
from ..request.leads import free_draws
from ..request.request import Request
from .drafts import Drafter
from .guess import Guess
from .places import FEW, NOTHING, RUN, Places, as_ids
from .policy import Policy

MOST = 1 << 18  # tokens of an owner's texts that are remembered: 6 MiB at most
OWNERS = 16  # whose texts are remembered, the latest ones
LENGTH = 6.0  # tokens that are thought to stand at first
SURE = 8  # tokens that came as they did at the place that is followed, after which it is sure


class Texts:
    """What one owner's requests had. When the younger half is full it becomes the older one, which
    is dropped. Several threads may use it."""

    __slots__ = ("_half", "_lock", "generations")

    def __init__(self, most: int = MOST) -> None:
        self._half = most // 2
        self._lock = threading.Lock()
        self.generations = Places(), Places()  # the younger, and the older, which nobody changes

    def add(self, tokens: Sequence[Token]) -> None:
        """Remember a text, or its last tokens if it is longer than there is room for."""
        ids = as_ids([*tokens[-self._half + 1 :], NOTHING])  # no run goes on into the next text
        with self._lock:
            if len(self.generations[0]) + len(ids) > self._half:
                self.generations = Places(), self.generations[0]
            self.generations[0].extend(ids)


class Earlier:
    """The texts of each owner. Threads may share it."""

    def __init__(self) -> None:
        self._of: dict[str, Texts] = {}
        self._lock = threading.Lock()

    def drafter(self, owner: str, prediction: Sequence[Token] = ()) -> Lookup:
        """A drafter that knows the earlier texts of an owner and this one, and adds to them."""
        with self._lock:
            own = self._of.pop(owner, None) or Texts()
            self._of[owner] = own  # the latest are last
            if len(self._of) > OWNERS:
                del self._of[next(iter(self._of))]
        if prediction:
            own.add(prediction)
        return Lookup(own)


class Lookup(Drafter):
    """See the module; ``texts`` are shared with other requests of the same owner."""

    name = "text"
    most = 16  # they cost nothing until they are verified

    def __init__(self, texts: Texts) -> None:
        super().__init__(Policy(LENGTH))
        self._texts = texts
        self._own = Places()
        self._moment = -1  # of the history when it was last seen
        self._found: tuple[int, Sequence[Token]] = (-1, ())  # at this length of it
        self._copied: tuple[Places, int] | None = None  # what is followed, and from where on
        self._stood = 0  # tokens that have come as it had them

    @property
    def is_sure(self) -> bool:
        return self._stood >= SURE

    def expects(self, request: Request) -> bool:
        return len(self._run(request)) > 1

    def propose(self, request: Request, count: int) -> Guess | None:
        run = self._run(request)[:count]
        return Guess(run, free_draws(request, len(run) + 1)) if run else None

    def learn(self, history: History) -> None:
        self._texts.add(history)

    def fork(self) -> Lookup:
        twin = Lookup(self._texts)
        twin.policy = self.policy.fork()
        twin._own, twin._moment = self._own.fork(), self._moment
        return twin

    def _run(self, request: Request) -> Sequence[Token]:
        """The tokens that may come next, as far as a grammar allows them; what other filters do not
        allow ends the walk that verifies it."""
        history, constraint = request.history, request.constraint
        if constraint is not None and not constraint.rewinds:
            return ()  # they would be fed the whole text to verify it
        self._follow(history)
        length, run = self._found
        if length != len(history):
            run, eos = self._look_up(), request.vocabulary.eos
            if not eos.isdisjoint(run):
                run = run[: min(run.index(end) for end in eos if end in run)]
            if run and constraint is not None and isinstance(constraint.filter, GrammarFilter):
                run = run[: constraint.validate(run)]
            self._found = len(history), run
        return run

    def _follow(self, history: History) -> None:
        """Note what was taken back of the history since the last time, and what has come."""
        own, known = self._own, 0
        if self._moment >= 0:
            known = min(len(own), history.low_since(self._moment))
        if self._moment != history.moment:
            self._moment, self._found = history.moment, (-1, ())
        new = history[known:]
        if known < len(own):
            own.cut(known)
            self._copied = None
        elif self._copied is not None and new:
            places, at = self._copied
            goes_on = places.tokens[at : at + len(new)].tolist() == new
            self._copied = (places, at + len(new)) if goes_on else None
            self._stood += len(new)
        if self._copied is None:
            self._stood = 0
        if len(new) > FEW:
            own.extend(as_ids(new))
        else:
            for token in new:
                own.append(token)

    def _look_up(self) -> list[Token]:
        """What followed the last tokens where they were last."""
        own = self._own
        last = own.tokens[-RUN:]
        if len(last) < RUN:
            return []
        if self._copied is None:
            for places in (own, *self._texts.generations):
                at = places.latest(*last)
                while at >= 0 and places.tokens[at - RUN : at] != last:
                    at = places.chain[at]
                if at >= 0:
                    self._copied = places, at
                    break
            else:
                return []
        places, at = self._copied
        run = _until_nothing(places.tokens[at : at + self.most + 1])
        if run and places is own and at + len(run) == len(own):  # the text goes round
            run = (run * (self.most // len(run) + 1))[: self.most + 1]
        return run


def _until_nothing(tokens: array[int]) -> list[Token]:
    run = tokens.tolist()
    return run[: next((i for i, token in enumerate(run) if token < 0), len(run))]
