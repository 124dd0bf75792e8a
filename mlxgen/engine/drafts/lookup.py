"""Drafts from text: what followed the last three tokens at their latest earlier place.

That place is followed as long as the text goes on as it did there. It is in the request itself,
else in earlier texts of the same owner. Owns these texts. Invariant: nothing of one owner is ever
shown to another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from ...forks import forked
from ...tokens import Token
from ..history import History
from ..request.leads import free_draws
from ..request.request import Request
from .drafts import Drafter, Guess, Policy

RUN = 3  # tokens that have to match
MOST = 1 << 16  # tokens of an owner's texts that are remembered: some 11 MB at most
OWNERS = 16  # owners whose texts are remembered, the latest ones
LENGTH = 6.0  # tokens that are expected to stand at first
NOTHING = -1  # in the place of a token that is never found
SURE = 8  # tokens that must have come as expected before it is asked, if there is another drafter


class Places:
    """Tokens, and the latest place after each three of them.

    Only one thread may change it. Others may read it at the same time, unless it is cut.
    """

    __slots__ = ("_latest", "tokens")

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        # By the three tokens before; some places may have been cut off
        self._latest: dict[tuple[Token, ...], int] = {}

    def extend(self, tokens: Iterable[Token]) -> None:
        """Add tokens; those below 0, which are patches of images, are never found."""
        known, latest = self.tokens, self._latest
        for token in tokens:
            latest[tuple(known[-RUN:])] = len(known)
            known.append(max(token, NOTHING))

    def cut(self, to: int) -> None:
        """Keep the first ``to`` tokens. Runs whose latest place is cut off are found no more."""
        del self.tokens[to:]

    def after(self, run: tuple[Token, ...]) -> int | None:
        """The latest place after these three."""
        place = self._latest.get(run) if len(run) == RUN and NOTHING not in run else None
        if place is None or place >= len(self.tokens):
            return None
        return place if tuple(self.tokens[place - RUN : place]) == run else None

    def fork(self) -> Places:
        """An independent copy."""
        return forked(self)


class Texts:
    """The texts of one owner's requests; if they do not all fit, the latest half stays. Several
    threads may use it: ``places`` are never cut."""

    __slots__ = ("_lock", "_most", "places")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.places = Places()

    def add(self, tokens: Sequence[Token]) -> None:
        """Remember a text, or its last tokens if it is longer than there is room for."""
        half = self._most // 2
        text = [*tokens[-half + 1 :], NOTHING]  # no run goes on into the next text
        with self._lock:
            if len(self.places.tokens) + len(text) > self._most:
                latest, self.places = self.places.tokens[-half:], Places()
                self.places.extend(latest)
            self.places.extend(text)


class Earlier:
    """The texts of each owner. Threads may share it."""

    def __init__(self) -> None:
        self._of: dict[str, Texts] = {}
        self._lock = threading.Lock()

    def drafter(self, owner: str, prediction: Sequence[Token] = (), *, patience: int = 0) -> Lookup:
        """A drafter that knows an owner's earlier texts and this request's, and adds to them."""
        with self._lock:
            own = self._of.pop(owner, None) or Texts()
            self._of[owner] = own  # the latest are last
            if len(self._of) > OWNERS:
                del self._of[next(iter(self._of))]
        if prediction:
            own.add(prediction)
        return Lookup(own, patience)


class Lookup(Drafter):
    """See the module; ``texts`` are shared with other requests of the same owner. ``patience``: how
    many tokens must have come as at the followed place before it proposes: until then, drafters
    that know the text better come first."""

    name = "text"
    most = 16  # they cost nothing until verified

    def __init__(self, texts: Texts, patience: int = 0) -> None:
        super().__init__(Policy(LENGTH))
        self._texts, self._patience = texts, patience
        self._own = Places()
        self._moment = 0  # of the history when it was last seen
        self._copied: tuple[Places, int] | None = None  # what is followed, and from where on
        self._stood = 0  # tokens that came as at that place

    def expects(self, request: Request) -> bool:
        return len(self._run(request)) > 1

    def propose(self, request: Request, count: int) -> Guess | None:
        run = self._run(request)[:count]
        return Guess(run, free_draws(request, len(run) + 1)) if run else None

    def learn(self, history: History) -> None:
        self._texts.add(history)

    def fork(self) -> Lookup:
        return forked(self, shared=("_texts", "policy"), _copied=None)

    def _run(self, request: Request) -> Sequence[Token]:
        """The tokens that may come next, as far as a grammar allows them; tokens that other filters
        refuse end the walk that verifies them."""
        constraint, eos, run = request.constraint, request.vocabulary.eos, list[Token]()
        # Other filters may have to be fed the whole text to verify it
        if constraint is not None and not constraint.rewinds:
            return run

        history, own = request.history, self._own
        if self._moment != history.moment:  # something was taken back since the last time
            if (low := history.low_since(self._moment)) < len(own.tokens):
                own.cut(low)
                self._copied = None
            self._moment = history.moment
        if new := history[len(own.tokens) :]:
            own.extend(new)  # before the comparison, as a short turn goes on into itself
            if self._copied is not None:
                places, at = self._copied
                goes_on = places.tokens[at : at + len(new)] == new
                self._copied = (places, at + len(new)) if goes_on else None
                self._stood += len(new)
        if self._copied is None:
            self._stood = 0
            last = tuple(own.tokens[-RUN:])
            for places in (own, self._texts.places):
                if (place := places.after(last)) is not None:
                    self._copied = places, place
                    break
        if self._copied is None or self._stood < self._patience:
            return run

        places, at = self._copied
        for token in places.tokens[at : at + self.most + 1]:
            if token < 0 or token in eos:
                break
            run.append(token)
        if run and places is own and at + len(run) == len(places.tokens):
            run = (run * (self.most // len(run) + 1))[: self.most + 1]  # the text repeats itself
        if constraint is not None and constraint.is_grammar:
            run = run[: constraint.validate(run)]
        return run
