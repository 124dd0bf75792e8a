"""Who drafts for one request, and what came of it.

Owns who is asked next, how many tokens of whom were proposed and stood, and whose the time of a
step is. Invariant: a drafter that raises is dropped, and nothing else is lost. Whatever is drafted,
the text stays the same.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import mlx.core as mx

from ...errors import MlxgenError
from ...forks import forked
from ..chunk import DraftCount, all_drafts
from ..history import History
from ..kv import Fed
from ..prefix.store import BlockStore
from ..request.leads import is_foreseeable
from ..request.request import Request
from .guess import WIDEST, Guess

MOST_ROWS = 8  # that run together, if anything is to be drafted: a pass of more is bound by tokens
HOPE = 1.0  # plain steps that a draft is thought to save before one was seen
LENGTH_WEIGHT, GAIN_WEIGHT = 1 / 2, 1 / 4  # of the newest in the means
REST, LONGEST_REST = 16, 256  # steps without a draft, after drafts did not pay
OFTEN, PAUSE = 128, 3  # drafts, after which a few steps without show what plain ones take by now

NONE = DraftCount(0, 0)

logger = logging.getLogger(__name__)


class Policy:
    """How many tokens to draft, and whether that pays, by two running means.

    ``length``: how many tokens of a draft stood; one that stood whole counts
    twice, as more could have. ``gain``: how many plain steps a drafted one saved. ``rests``: for
    how many steps nothing is to be drafted.
    """

    __slots__ = ("_drafts", "_rest", "gain", "length", "rests")

    def __init__(self, length: float) -> None:
        self.length = length
        self.gain = HOPE
        self.rests, self._rest = 0, REST  # how long it still rests, and how long it would next time
        self._drafts = 0  # since the last rest

    def tokens(self, most: int) -> int:
        """How many of ``most`` tokens to draft; at least one."""
        return min(most, max(1, math.ceil(self.length)))

    def saw(self, proposed: int, accepted: int, steps: float) -> None:
        """Note what became of a draft, or that there was none although it was waited for, and how
        many plain ``steps`` that took; 0: nobody knows.

        If drafts do not pay, they rest, and are tried again with one; if that does not pay either,
        they rest for twice as long.
        """
        if proposed:
            stood = 2 * accepted if accepted == proposed else accepted
            self.length += LENGTH_WEIGHT * (stood - self.length)
        if not steps:
            return
        gained = 1 + accepted - steps
        self.gain += GAIN_WEIGHT * (gained - self.gain)
        self._drafts += 1
        if self.gain < 0.0:
            self.rests, self._rest = self._rest, min(LONGEST_REST, 2 * self._rest)
            self.gain, self._drafts = 0.0, 0
        elif self._drafts == OFTEN:
            self.rests, self._drafts = PAUSE, 0
        elif gained > 0.0:
            self._rest = REST

    def fork(self) -> Policy:
        """An independent copy."""
        return forked(self)


class Drafter(ABC):
    """Proposes tokens for one request.

    It looks at the history of the request that it is asked for, and notices by itself what was
    taken back there since the last time. ``name`` is what usage and chunks call it, and ``most``
    how many tokens it proposes at a time unless a request says otherwise. With ``wants_states``, it
    is told what runs (``ran``).
    """

    name: ClassVar[str]
    most: int
    wants_states = False
    cache: BlockStore | None = None
    """Where it keeps what it has run, beside the model's own."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def expects(self, request: Request) -> bool:
        """Whether it will probably have something to propose after the next token, which is not
        known yet. It takes microseconds."""
        return True

    @abstractmethod
    def propose(self, request: Request, count: int) -> Guess | None:
        """Up to ``count`` tokens after the request's history; ``None`` if it has none."""

    def learn(self, history: History) -> None:
        """Remember what is worth it of a history that has ended."""

    def ran(self, history: History, start: int, tokens: Sequence[Fed], states: mx.array) -> None:
        """Note that these tokens have run, from this place in the history on, and gave the trunk's
        ``states`` [n, width]. The last ones may be drafted, or not known yet."""

    def catches_up(self, history: History) -> bool:
        """Whether it has to run more of a history, before it can propose any, than goes between two
        steps of others. Then it has run some of it."""
        return False

    def keep(self, history: History, room: int) -> None:
        """Put what it holds of a history into ``cache``, which may use ``room`` bytes."""

    def restart(self) -> None:
        """Drop the arrays that it holds: the history will run again."""

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that it holds."""
        return 0

    def nbytes_at(self, length: int) -> int:
        """The most bytes that it needs for a history of ``length`` tokens."""
        return 0

    @abstractmethod
    def fork(self) -> Drafter:
        """An independent copy."""


class Drafts:
    """See the module. ``drafters``: in the order in which they are asked. ``most``: tokens at a
    time, if the request says how many. ``wanted``: drafts were asked for, whatever they take.
    ``turn``: who the time of the next step counts for. ``counts``: how many tokens each proposed
    that were verified, and how many of these stood."""

    __slots__ = ("_expected", "_saw", "_spent", "counts", "drafters", "most", "turn", "wanted")

    def __init__(
        self, drafters: Iterable[Drafter] = (), most: int | None = None, *, wanted: bool = False
    ) -> None:
        self.drafters = tuple(drafters)
        self.counts: Mapping[str, DraftCount] = {}
        self.most, self.wanted = most, wanted
        self.turn: Drafter | None = None
        self._expected: Drafter | None = None  # the next step waits for its tokens to be known
        self._saw = NONE  # of the draft whose turn it is
        self._spent: list[float] = []  # seconds of its steps so far, if its draft takes several

    def _tell(self, tell: Callable[[Drafter], object]) -> None:
        """Tell all of them something, and go on without those that fail."""
        for drafter in self.drafters:
            try:
                tell(drafter)
            except Exception as error:
                self._failed(drafter, error)

    def _failed(self, drafter: Drafter, error: Exception) -> None:
        """Go on without a drafter that has failed; but not for what the request's filters raise,
        which its draw raises again."""
        if not isinstance(error, MlxgenError):
            name = drafter.name
            logger.warning("the drafter %r failed and is not asked again", name, exc_info=error)
            self.drafters = tuple([each for each in self.drafters if each is not drafter])

    # ---- proposals -------------------------------------------------------------------------

    def expects(self, request: Request, rows: int, step: float) -> bool:
        """Whether something is probably drafted after the next token, which is not known yet, if so
        many ``rows`` run together, whose plain ``step`` takes so many seconds."""
        self._expected = None
        may = self.wanted or (step > 0.0 and rows <= MOST_ROWS)
        if not may or request.position + 2 >= request.budget:
            return False
        for drafter in self.drafters:
            policy = drafter.policy
            policy.rests = max(0, policy.rests - 1)
            if self._expected is None and (self.wanted or not policy.rests):
                try:
                    self._expected = drafter if drafter.expects(request) else None
                except Exception as error:
                    self._failed(drafter, error)
        return self._expected is not None

    def propose(self, request: Request, rows: int, step: float) -> Guess | None:
        """What is drafted after the history; ``None``: nothing."""
        self.turn, self._expected, self._spent = self._expected, None, []
        most = request.budget - request.position - 1
        if not self.wanted:  # not before it is known what it has to be worth, and only a few
            most = min(most, WIDEST // rows - 1) if step > 0.0 and rows <= MOST_ROWS else 0
        if most <= 0 or not is_foreseeable(request):
            return None
        for drafter in self.drafters:
            if drafter.policy.rests and not self.wanted:
                continue
            count = drafter.policy.tokens(self.most or drafter.most)
            if self.wanted and self.most is not None:
                count = self.most
            try:
                if rows > 1 and drafter.catches_up(request.history):
                    self.turn, self._spent = drafter, [0.0]  # what this step takes tells nothing
                    return None
                guess = drafter.propose(request, min(count, most))
            except Exception as error:
                self._failed(drafter, error)
                continue
            if guess is not None:
                guess.drafter, self.turn = drafter.name, drafter
                return guess
        return None

    def saw(self, proposed: int, accepted: int) -> None:
        """Note how many tokens of the proposal stood, which was verified."""
        if self.turn is not None:
            name, new = self.turn.name, DraftCount(proposed, accepted)
            # What was told before does not change
            self.counts = all_drafts([self.counts, {name: new}])
            self._saw = _sum(self._saw, new)

    def took(self, seconds: float, step: float, *, goes_on: bool = False) -> None:
        """Note the seconds of a step, and of a plain ``step`` of as many rows; 0: nobody knows.

        ``goes_on``: the next step counts for the same draft.
        """
        self._spent.append(seconds)
        if goes_on:
            return
        drafter, self.turn = self.turn, None
        (proposed, accepted), self._saw = self._saw, NONE
        spent, self._spent = self._spent, []
        if drafter is not None:
            known = step and all(spent)
            drafter.policy.saw(proposed, accepted, sum(spent) / step if known else 0.0)

    # ---- all of them -----------------------------------------------------------------------

    def learn(self, history: History) -> None:
        """Have them remember what is worth it of a history that has ended."""
        self._tell(lambda drafter: drafter.learn(history))

    def ran(self, history: History, start: int, tokens: Sequence[Fed], states: mx.array) -> None:
        """Note that these tokens have run, from this place on, and gave these states."""
        for drafter in self.drafters:
            if drafter.wants_states:
                try:
                    drafter.ran(history, start, tokens, states)
                except Exception as error:
                    self._failed(drafter, error)

    @property
    def wants_states(self) -> bool:
        """Whether one of them wants to be told the states of what runs."""
        return any(drafter.wants_states for drafter in self.drafters)

    @property
    def caches(self) -> list[BlockStore]:
        """The prefix caches of the models among them."""
        return [drafter.cache for drafter in self.drafters if drafter.cache is not None]

    def keep(self, history: History, room: int) -> None:
        """Have them put what they hold into their prefix caches, which may use ``room`` bytes."""
        self._tell(lambda drafter: drafter.keep(history, room))

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that they hold."""
        return sum([drafter.nbytes for drafter in self.drafters])

    def nbytes_at(self, length: int) -> int:
        """The most bytes that they need for a history of ``length`` tokens."""
        return sum([each.nbytes_at(length) for each in self.drafters]) if self.drafters else 0

    def fork(self) -> Drafts:
        """An independent copy, which has proposed nothing yet."""
        return Drafts([drafter.fork() for drafter in self.drafters], self.most, wanted=self.wanted)

    def restart(self) -> None:
        """Have them hold nothing on the device."""
        self._tell(lambda drafter: drafter.restart())

    def distrust(self) -> None:
        """Go on without those that have anything on the device: a pass failed, maybe one of
        theirs."""
        self.drafters = tuple([each for each in self.drafters if not each.nbytes])


def _sum(one: DraftCount, other: DraftCount) -> DraftCount:
    return DraftCount(one.proposed + other.proposed, one.accepted + other.accepted)
