"""Who drafts for one request, how many tokens, and how they are verified.

A drafted token is accepted if it is what the request draws at its position. So a draft never
changes the text, sampled or not, whatever was drafted and when. A drafter that raises is dropped,
and nothing else is lost.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import mlx.core as mx

from ...errors import MlxgenError
from ...sampling import DrawRow
from ...tokens import Token
from ..chunk import DraftCount, all_drafts
from ..history import History
from ..kv.held import Fed, known
from ..prefix.store import BlockStore
from ..request.leads import is_foreseeable, next_draw
from ..request.request import Request

WIDEST = 32
"""Tokens of a pass, drafted ones included, that takes hardly longer than a pass of one token."""

MOST_ROWS = 8  # rows up to which anything is drafted: a pass of more is bound by its tokens
HOPE = 1.0  # plain steps that a draft is expected to save before one was seen
LENGTH_WEIGHT, GAIN_WEIGHT = 1 / 2, 1 / 4  # of the newest value in the means
REST, LONGEST_REST = 16, 256  # steps without a draft, after drafts did not pay
OFTEN, PAUSE = 128, 3  # drafts, after which a few plain steps show what those take by now

Next: TypeAlias = Callable[[DrawRow], Token | None]
"""Gives the token to go on with, from the draw of its position; ``None`` ends the walk."""

logger = logging.getLogger(__name__)


class Guess:
    """Drafted tokens on their way through the model, and the draws that verify them.

    - ``fed``: the tokens, possibly not known yet. ``drafter``: the name of who proposed them.
    - ``draws``: those at their positions and at the next one, as far as they are known; if none
      depends on the tokens before it, the guess is ``free``.
    - ``start``: the length of the history before the first of them.
    - ``steps``: how many steps it takes to verify them.
    """

    __slots__ = ("_tokens", "drafter", "draws", "fed", "free", "start", "steps")

    def __init__(self, fed: Sequence[Fed], draws: Sequence[DrawRow] = ()) -> None:
        self.fed = fed
        self._tokens: list[Token] | None = None
        self.draws = list(draws)
        self.free = bool(draws)
        self.drafter, self.start, self.steps = "", 0, 1

    @property
    def tokens(self) -> list[Token]:
        """The drafted tokens; the first call waits for the draft."""
        if self._tokens is None:
            self._tokens = known(self.fed)
        return self._tokens

    def look(self, request: Request) -> None:
        """Find the draws of all positions, while the model runs."""
        if not self.draws:
            following = iter(self.tokens)
            self.draws = walk(request, lambda draw: next(following, None))


def walk(request: Request, choose: Next) -> list[DrawRow]:
    """The draws at the end of the history and after each token that ``choose`` gives.

    All parts of the request are advanced along them, and rewound together. The walk ends if
    ``choose`` gives None, at the budget, and at a token that would end the text or is not allowed.
    Raises what ``next_draw`` raises for the first position.
    """
    draw = next_draw(request)
    draws, start, constraint = [draw], len(request.history), request.constraint
    outlook = constraint.outlook if constraint is not None else None
    try:
        while request.position + 1 < request.budget:
            token = choose(draw)
            if token is None:
                break
            try:
                if request.advance(token) is not None or request.ends(token):
                    break
                draw = next_draw(request)
            except Exception:  # it may never come to this; if it does, the draw raises it again
                break
            draws.append(draw)
    finally:
        try:
            request.rewind(start)
        except BaseException:
            request.drop(start)
            raise
        if constraint is not None:
            constraint.outlook = outlook  # keep what is known of its next token
    return draws


class Policy:
    """How many tokens to draft, and whether that pays, by two running means.

    ``length``: how many tokens of a draft stood; one that stood whole counts twice, as more could
    have. ``gain``: how many plain steps a draft saved. ``rests``: for how many steps nothing is
    drafted. Forks share the policy of the original.
    """

    __slots__ = ("_drafts", "_rest", "gain", "length", "rests")

    def __init__(self, length: float) -> None:
        self.length = length
        self.gain = HOPE
        self.rests, self._rest = 0, REST  # the steps left of this rest, and those of the next one
        self._drafts = 0  # since the last rest

    def tokens(self, most: int) -> int:
        """How many of ``most`` tokens to draft; at least one."""
        return min(most, max(1, math.ceil(self.length)))

    def saw(self, proposed: int, accepted: int, steps: float) -> None:
        """Note the outcome of a draft, or that none came although it was waited for, and how many
        plain ``steps`` that took; 0 if that is not known.

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


class Drafter(ABC):
    """Proposes tokens for one request.

    It looks at the history of the request that it is asked for, and notices by itself what was
    taken back there since the last time. ``name`` is what usage and chunks call it, and ``most``
    how many tokens it proposes at a time unless a request says otherwise. With ``wants_states``, it
    gets the states of what runs (``ran``).
    """

    name: ClassVar[str]
    most: int
    wants_states = False
    cache: BlockStore | None = None
    """Where it keeps what it has run, apart from the model's own prefix cache."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def expects(self, request: Request) -> bool:
        """Whether it will probably have something to propose after the next token, which is not
        known yet. Takes microseconds."""
        return True

    @abstractmethod
    def propose(self, request: Request, count: int) -> Guess | None:
        """Up to ``count`` tokens after the request's history; ``None`` if it has none."""

    def learn(self, history: History) -> None:
        """Remember what is useful of a history that has ended."""

    def ran(self, history: History, start: int, tokens: Sequence[Fed], states: mx.array) -> None:
        """Note that these tokens have run, from place ``start`` of the history on, and gave the
        trunk's ``states`` [n, width]. The last ones may be drafted, or not known yet."""

    def catches_up(self, history: History) -> bool:
        """Whether it must run more of a history, before it can propose any tokens, than goes
        between two steps of others. If so, it has run some of it now."""
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
    """What drafts for one request, and with what success.

    - ``drafters``: in the order in which they are asked.
    - ``most``: tokens at a time, if the request says how many. ``wanted``: drafts were asked for,
      whatever they cost.
    - ``turn``: the drafter whose tokens the next step verifies, or has waited for without a draft.
    - ``counts``: how many tokens of each were verified, and how many of these stood.
    """

    __slots__ = ("_expected", "counts", "drafters", "most", "turn", "wanted")

    def __init__(
        self, drafters: Iterable[Drafter] = (), most: int | None = None, *, wanted: bool = False
    ) -> None:
        self.drafters = tuple(drafters)
        self.counts: Mapping[str, DraftCount] = {}
        self.most, self.wanted = most, wanted
        self.turn: Drafter | None = None
        self._expected: Drafter | None = None  # the next step waits for its tokens to be known

    def expects(self, request: Request, rows: int, step: float) -> bool:
        """Whether something will probably be drafted after the next token, which is not known yet,
        when ``rows`` rows run together whose plain ``step`` takes that many seconds."""
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
        """The draft after the history; ``None`` if there is none."""
        self.turn, self._expected = self._expected, None
        most = request.budget - request.position - 1
        if not self.wanted:  # only once the time to beat is known, and only a few
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
                    self.turn = None  # the time of this step tells nothing
                    return None
                guess = drafter.propose(request, min(count, most))
            except Exception as error:
                self._failed(drafter, error)
                continue
            if guess is not None:
                guess.drafter, self.turn = drafter.name, drafter
                return guess
        return None

    def _failed(self, drafter: Drafter, error: Exception) -> None:
        """Go on without a drafter that has failed; but not for errors of the request's filters,
        which its draw raises again."""
        if not isinstance(error, MlxgenError):
            name = drafter.name
            logger.warning("the drafter %r failed and is not asked again", name, exc_info=error)
            self.drafters = tuple([each for each in self.drafters if each is not drafter])

    def count(self, proposed: int, accepted: int) -> None:
        """Count the tokens of a proposal that were verified, and those of them that stood."""
        if self.turn is not None:  # a new mapping, as callers hold the old one
            self.counts = all_drafts(
                [self.counts, {self.turn.name: DraftCount(proposed, accepted)}]
            )

    def saw(self, proposed: int, accepted: int, steps: float) -> None:
        """Note the outcome of a proposal, and how many plain ``steps`` it took; 0: not known."""
        if self.turn is not None:
            self.turn.policy.saw(proposed, accepted, steps)
            self.turn = None

    # ---- all of them -----------------------------------------------------------------------

    @property
    def caches(self) -> list[BlockStore]:
        """The prefix caches of the drafting models."""
        return [drafter.cache for drafter in self.drafters if drafter.cache is not None]

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that they hold."""
        return sum([drafter.nbytes for drafter in self.drafters])

    def nbytes_at(self, length: int) -> int:
        """The most bytes that they need for a history of ``length`` tokens."""
        return sum([each.nbytes_at(length) for each in self.drafters])

    def keep(self, history: History, room: int) -> None:
        """Have them put what they hold into their prefix caches, which may use ``room`` bytes."""
        for drafter in self.drafters:
            drafter.keep(history, room)

    def fork(self) -> Drafts:
        """An independent copy, which has proposed nothing yet."""
        return Drafts([drafter.fork() for drafter in self.drafters], self.most, wanted=self.wanted)

    def restart(self) -> None:
        """Have none of them hold anything on the device."""
        for drafter in self.drafters:
            drafter.restart()

    def distrust(self) -> None:
        """Drop drafters that hold anything on the device, as a pass of theirs may have failed."""
        self.drafters = tuple([each for each in self.drafters if not each.nbytes])
