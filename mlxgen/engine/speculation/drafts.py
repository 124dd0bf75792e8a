"""What drafts for one request: its drafters, and what came of their proposals.

Owns which of them is asked, and how many tokens of whom were proposed and stood. Must never know
what a draft is worth in seconds (``worth`` does). Invariant: a drafter that raises is dropped, and
nothing else is lost; what it proposes may be nonsense, but never a token that does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import mlx.core as mx

from ...errors import MlxgenError
from ...tokens import Token
from ..chunk import DraftCount
from ..history import History
from ..kv import Fed
from ..kv.held import alike
from ..prefix.store import BlockStore
from ..request.leads import is_led
from ..request.request import Request
from .drafter import Drafter
from .guess import Guess
from .worth import Choice, Offer

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Drafts:
    """See the module. ``most``: tokens at a time, if the request says how many. ``wanted``: they
    were asked for, whatever they take."""

    __slots__ = ("_asked", "_counts", "_drafters", "most", "wanted")

    def __init__(
        self, drafters: Iterable[Drafter] = (), most: int | None = None, *, wanted: bool = False
    ) -> None:
        self._drafters = self._asked = tuple(drafters)
        self._counts: dict[str, list[int]] = {}  # proposed and accepted
        self.most = most
        self.wanted = wanted

    def __bool__(self) -> bool:
        return bool(self._drafters)

    @property
    def counts(self) -> Mapping[str, DraftCount]:
        """How many tokens each proposed that were verified, and how many of these stood."""
        return {name: DraftCount(*counts) for name, counts in self._counts.items()}

    @property
    def wants_states(self) -> bool:
        """Whether one of them wants to be told the states of what runs."""
        return any(drafter.wants_states for drafter in self._drafters)

    # ---- proposals -------------------------------------------------------------------------

    def offers(self, request: Request, plain: float, *, early: bool = False) -> list[Offer]:
        """What each could propose after the history, or, if ``early``, after one token more that
        is not known yet; ``plain``: the seconds of a pass without drafts."""
        position = request.position + early
        left = request.budget - position - 1
        if left <= 0 or is_led(request) or request.retries.differs:
            return []
        found = []
        self._asked = self._drafters
        for drafter in self._asked:
            chances: Sequence[float] = ()
            always = self.wanted and self.most is not None
            if always or not drafter.acceptance.rests(position):
                count = min(left, self.most or drafter.most)
                if not self.wanted:
                    count = drafter.acceptance.careful(count)
                try:
                    ask = drafter.early if early else drafter.chances
                    chances = ask(request, count)[:count]
                except Exception as error:
                    self._failed(drafter, error)
            found.append(Offer(chances, drafter.price(plain)))
        return found

    def drafter(self, choice: Choice) -> Drafter:
        """Whose offer this choice is among the last ones."""
        return self._asked[choice.offer]

    def propose(self, request: Request, choice: Choice) -> Guess | None:
        """What the drafter of this choice among the offers proposes."""
        drafter, count = self.drafter(choice), choice.tokens
        guess = self._try(drafter, partial(drafter.propose, request, count))
        guess = guess and guess.cut(count, request.vocab_size)
        if guess is not None:
            guess.drafter = drafter.name
        return guess

    def goes_on(self, guess: Guess) -> bool:
        """Whether who proposed a guess can begin with the next one early."""
        return any(each.goes_on for each in self._drafters if each.name == guess.drafter)

    def go_on(self, request: Request, guess: Guess, drawn: Sequence[Token]) -> None:
        """Have who proposed a guess go on, once it is known what the request has ``drawn`` at its
        positions, and before the request accepts what stands of that."""
        stand = alike(guess.tokens, drawn)
        came = drawn[: stand + 1]
        if request.position + len(came) + 1 >= request.budget or min(came) < 0:
            return
        for drafter in self._drafters:
            if drafter.name == guess.drafter and (stand or self.wanted):
                self._try(drafter, partial(drafter.go_on, request, came))

    def saw(self, name: str, position: int, proposed: int, accepted: int) -> None:
        """Note how many tokens of a verified proposal stood, and the position reached."""
        counts = self._counts.setdefault(name, [0, 0])
        counts[0] += proposed
        counts[1] += accepted
        for drafter in self._drafters:
            if drafter.name == name:
                self._try(drafter, partial(drafter.saw, position, proposed, accepted))

    def _try(self, drafter: Drafter, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception as error:
            self._failed(drafter, error)
            return None

    def _failed(self, drafter: Drafter, error: Exception) -> None:
        """Go on without a drafter, but for what the request's filters raise: its draw raises it
        again."""
        if isinstance(error, MlxgenError):
            return
        name = drafter.name
        logger.warning("the drafter %r failed and is not asked again", name, exc_info=error)
        self._drafters = tuple([each for each in self._drafters if each is not drafter])

    # ---- all of them -----------------------------------------------------------------------

    def learn(self, history: History) -> None:
        """Have them remember what is worth it of a history that has ended."""
        for drafter in self._drafters:
            self._try(drafter, partial(drafter.learn, history))

    def ran(self, history: History, start: int, tokens: Sequence[Fed], states: mx.array) -> None:
        """Note that these tokens have run, from this place on, and gave these states."""
        for drafter in self._drafters:
            if drafter.wants_states:
                self._try(drafter, partial(drafter.ran, history, start, tokens, states))

    def missing(self, history: History) -> int:
        """How many tokens of a history they have to run before all can propose any."""
        return max([drafter.missing(history) for drafter in self._drafters], default=0)

    def follow(self, history: History, count: int) -> None:
        """Have them run ``count`` of these at most, but not the last one."""
        for drafter in self._drafters:
            self._try(drafter, partial(drafter.follow, history, count))

    @property
    def caches(self) -> list[BlockStore]:
        """The prefix caches of the models among them."""
        return [drafter.cache for drafter in self._drafters if drafter.cache is not None]

    def keep(self, history: History, room: int) -> None:
        """Have them put what they hold into their prefix caches, which may use ``room`` bytes."""
        for drafter in self._drafters:
            self._try(drafter, partial(drafter.keep, history, room))

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that they hold."""
        return sum([drafter.nbytes for drafter in self._drafters])

    def nbytes_at(self, length: int) -> int:
        """The most bytes that they need for a history of ``length`` tokens."""
        return sum([drafter.nbytes_at(length) for drafter in self._drafters])

    def fork(self) -> Drafts:
        """An independent copy, which has proposed nothing yet."""
        return Drafts([drafter.fork() for drafter in self._drafters], self.most, wanted=self.wanted)

    def restart(self) -> None:
        """Have them hold nothing on the device."""
        for drafter in self._drafters:
            self._try(drafter, drafter.restart)

    def distrust(self) -> None:
        """Go on without those that have anything on the device: a pass failed, maybe one of
        theirs."""
        self._drafters = tuple([each for each in self._drafters if not each.nbytes])
