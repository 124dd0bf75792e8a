"""Parts of a request: what repeated draws depend on, and what may decide the next tokens.

``Retries`` holds decisions by position, which are valid only as long as the text before it does not
change; ``Closing`` (``close_json``) and ``ThinkingLimit`` say which tokens must come. The part of a
controller is in ``branches``, the order of all in ``leads``. None of them appends a token:
``accept`` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import PromptError
from ...filters import Constraint, EndSearch
from ...forks import forked
from ...search import sequence_overlap
from ...text import ThinkingMarks, Transcript
from ...tokens import Token, Vocabulary
from ..chunk import Rejected

_WARM, _WARMER, _WARMEST = 0.7, 0.1, 1.5  # temperatures of another try: ever warmer
WINDOW = 512  # valid ends are searched for within this many tokens of the end of the budget
SENTENCE = "\n\nThat is as long as I can think about it, so I answer now.\n"


# ---- draws -------------------------------------------------------------------------------------


class Decided(NamedTuple):
    """Decisions about a position: the draws that were ``rejected`` there, in order, the tokens that
    a ban or a loop excluded (``banned``), and how often hooks have ``asked`` for another draw.

    ``exclude`` and ``temperature`` are what a hook wants of the next draw. ``unmet``: it excluded
    every possible token, or everything drawn was objected to and the best of it stands.
    """

    rejected: tuple[Rejected, ...] = ()
    banned: frozenset[Token] = frozenset()
    asked: int = 0
    exclude: frozenset[Token] = frozenset()
    temperature: float | None = None
    unmet: bool = False

    @property
    def excluded(self) -> frozenset[Token]:
        """The tokens that the next draw must not give."""
        return self.banned | self.exclude


class Tries(NamedTuple):
    """How often text was taken back for one reason without getting further than ``until`` since,
    and how many tokens that took back in all."""

    times: int = 0
    until: int = 0
    tokens: int = 0


NOTHING, NEVER = Decided(), Tries()


@dataclass(slots=True)
class Retries:
    """See the module.

    - ``attempts``: how often a position was drawn before; each attempt draws with other random
      numbers. ``agreed``: the attempts that a consumer's rewinds have caused. Attempts at positions
      that the consumer has not seen must not change what it gets after a rewind.
    - ``tries``: by reason, so that nothing is taken back for ever.
    """

    attempts: dict[int, int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)
    decided: dict[int, Decided] = field(default_factory=dict)
    tries: dict[str, Tries] = field(default_factory=dict)

    def fork(self) -> Retries:
        """An independent copy."""
        return forked(self)

    def at(self, position: int) -> Decided:
        """What was decided for a position."""
        return self.decided.get(position, NOTHING)

    def reject(self, position: int, what: Rejected, spent: int = 0) -> None:
        """Note a token that was drawn at ``position`` and does not stay; ``spent``: how many tokens
        that took back, with those after it."""
        known, tries = self.at(position), self.tries.get(what.reason, NEVER)
        self.decided[position] = known._replace(rejected=(*known.rejected, what))
        if spent:
            self.tries[what.reason] = tries._replace(tokens=tries.tokens + spent)

    def exclude(self, position: int, token: Token) -> None:
        """Exclude a token from a position."""
        known = self.at(position)
        self.decided[position] = known._replace(banned=known.banned | {token})

    def ask(
        self, position: int, exclude: Collection[Token] = (), temperature: float | None = None
    ) -> None:
        """Note that a hook wants ``position`` drawn again, in this way."""
        known = self.at(position)
        self.decided[position] = known._replace(
            asked=known.asked + 1, exclude=frozenset(exclude), temperature=temperature
        )

    def give_up(self, position: int) -> None:
        """Let the token that comes there stand, and drop what a hook excluded."""
        self.decided[position] = self.at(position)._replace(exclude=frozenset(), unmet=True)

    def again(self, reason: str, start: int, until: int) -> Tries:
        """Count that text from ``start`` on, all before ``until``, cannot stay for this reason."""
        known = self.tries.get(reason, NEVER)
        times = known.times if start <= known.until else 0
        tries = self.tries[reason] = Tries(times + 1, until, known.tokens)
        return tries

    def warmth(self, position: int, temperature: float) -> float | None:
        """The temperature of the draw at ``position`` if not the usual one, ``temperature``: what a
        hook wants, or one that lets draws vary after a finished text was taken back."""
        if (wanted := self.at(position).temperature) is not None:
            return wanted
        times, since, _ = self.tries.get("check", NEVER)
        if not times or position < since:
            return None
        return max(temperature, min(_WARM + times * _WARMER, _WARMEST))

    def rewind(self, to: int) -> None:
        """Forget what was decided for positions after ``to``: the text before them has changed."""
        for later in [position for position in self.decided if position > to]:
            del self.decided[later]

    def back(self, target: int, drawn: int) -> None:
        """Note that the positions from ``target`` up to, not including, ``drawn`` are redrawn."""
        self.rewind(target)
        if target in self.decided:
            self.decided[target] = Decided(*self.decided[target][:3])  # without a hook's wish
        for position in range(target, drawn):
            self.attempts[position] = self.attempts.get(position, 0) + 1

    def back_for(self, target: int, seen: int) -> None:
        """``back``, for a consumer who has seen the first ``seen`` positions.

        What was decided for later positions is forgotten: the consumer must not be able to tell
        how far the draws had run ahead.
        """
        self.back(target, seen)
        self.rewind(seen - 1)
        if target in self.decided:
            self.decided[target] = self.decided[target]._replace(asked=0)
        self.tries.clear()
        self.agreed.update((position, self.attempts[position]) for position in range(target, seen))
        for later in [position for position in self.attempts if position >= seen]:
            self.attempts[later] = self.agreed.get(later, 0)

    def begin_at(self, position: int) -> None:
        """Forget that the positions from this one on were drawn before."""
        for table in (self.attempts, self.agreed):
            for later in [each for each in table if each >= position]:
                del table[later]


class Repeat(NamedTuple):
    """How the first ``at`` generated tokens end: the last ``run`` repeat with this ``period``,
    which is 0 if they do not. The first ``kept`` of these may stay: the first turn, and turns that
    are in the prompt as well. Those after the first ``free`` are delivered once they are known to
    stay. ``is_loop``: the loop has to be taken back."""

    at: int
    period: int = 0
    run: int = 0
    kept: int = 0
    free: int = 0
    is_loop: bool = False

    @property
    def held(self) -> int:
        """How many of the newest tokens to hold back."""
        return max(0, self.run - self.free) if self.period else 0


# ---- what must come next ------------------------------------------------------------------------


class Closing:
    """Keeps a valid end within reach of the budget (``close_json``): the shortest known way to an
    end that the filters accept. Once it is ``forcing``, nothing but that way is allowed.

    Invariant: ``way`` is None or a run of tokens after which the text may end, no longer than the
    budget that was left at the last look. Far from the end of the budget, no way is searched for.
    If a look finds nothing, later ones try again, less often the more of them have failed. Once a
    way is known, a token after which none is found is declined.
    """

    __slots__ = ("_budget", "_ends", "_misses", "_next", "at", "forcing", "way", "why")

    def __init__(self, constraint: Constraint, budget: int) -> None:
        self._ends = EndSearch(constraint)
        self._budget = budget
        self._misses = 0  # looks that found nothing since a way was last known
        self._next = WINDOW  # the budget at which to look again
        self.at = 0
        """The number of tokens at the last look."""
        self.why = "the text was ended before a valid end was searched for"
        """Why a text that ends now is not valid, for ``Usage.incomplete``."""
        self.forcing = False
        self.way: Sequence[Token] | None = None

    def look(self, at: int, taken: Token | None = None) -> bool:
        """Find the way from here; False if there was one and now none fits the budget.

        ``at`` is the number of tokens so far, and ``taken`` the token since the last look: if it
        is the next step of the way, the rest of the way still holds.
        """
        left = self._budget - at
        if self.way and self.way[0] == taken:
            self.at, self.way = at, self.way[1:]
            return True
        if self.way is None and left > self._next:
            self.at = at
            self._ends.follow()
            return True
        way = self._ends.find(left)
        if way is None and self.way is not None:
            self.forcing = True
            return False
        self.at, self.way = at, way
        if way is not None:
            self.why = "the text was ended before its valid end, which was known"
            self._misses = 0
        elif left:
            if not self._misses:
                unit = "tokens" if left > 1 else "token"
                self.why = f"no valid end was found within the last {left} {unit} of the budget"
            self._misses += 1
            self._next = left - min(left // 8, self._misses) - 1
        return True

    def avoid(self, excluded: Set[Token]) -> Sequence[Token]:
        """The first step of a way that begins with none of these; () if there is none for now."""
        left = self._budget - self.at
        way = self._ends.find(left, without=excluded)
        if not way:  # the step of an empty way would be an end token
            self.why = "every way to a valid end begins with a token that is excluded"
            self._next, self.forcing, self.way = left - 1, False, None
            return ()
        self.way = way
        return way[:1]

    def rewind(self, to: int) -> None:
        """Look again after the first ``to`` tokens, unless the last look was there or before."""
        self._ends.rewind(to)
        if to < self.at:
            self.restart(to)

    def restart(self, at: int) -> None:
        """Look again after ``at`` tokens: later decisions no longer hold."""
        self._misses, self._next, self.forcing, self.way = 0, WINDOW, False, None
        self.look(at)

    def fork(self, constraint: Constraint) -> Closing:
        """An independent copy for a forked constraint."""
        return forked(self, _ends=self._ends.fork(constraint))


class ThinkingLimit(NamedTuple):
    """How many tokens of thinking may come, and what follows them: the ``run``, a sentence that
    ends with the ``mark``, or a newline and the mark for a budget of 0. Where the run begins
    follows from the text, so there is nothing here to take back."""

    budget: int
    run: tuple[Token, ...]
    mark: tuple[Token, ...]

    @classmethod
    def of(cls, budget: int, marks: ThinkingMarks, vocabulary: Vocabulary) -> ThinkingLimit | None:
        """The limit of a generation; ``None`` if no mark ends the thinking of this model."""
        if not marks.end:
            return None
        mark = _spelled(marks.end, vocabulary)
        before = "\n" if budget == 0 else SENTENCE
        try:
            return cls(budget, (*vocabulary.continue_with(before.encode()), *mark), mark)
        except PromptError:  # a vocabulary without these characters
            return cls(budget, mark, mark)

    def left(self, transcript: Transcript, history: Sequence[Token]) -> tuple[Token, ...]:
        """What must come next in a text, which ends the ``history``: the rest of the run; nothing
        before the budget is spent or after the thinking. The run begins where the text is not
        inside a character; where a caller has put other tokens there, only the mark follows."""
        thoughts, length = transcript.thoughts, len(transcript)
        if thoughts is None or not thoughts.is_open:
            return ()
        start = thoughts.began + self.budget
        while start <= length and transcript.is_open(start):
            start += 1
        if start > length:
            return ()
        # If something kept the mark from ending the thinking, it comes again.
        done = length - start
        if done and history[-done] != self.run[0]:
            return self.mark[sequence_overlap(history[-done:], self.mark) % len(self.mark) :]
        return self.run[done:] or self.mark[(done - len(self.run)) % len(self.mark) :]

    def allows(self, transcript: Transcript, count: int) -> bool:
        """Whether none of the next ``count`` tokens can be one of the run."""
        thoughts = transcript.thoughts
        if thoughts is None or thoughts.is_over:
            return True
        spent = len(transcript) - thoughts.began if thoughts.is_open else 0
        return spent + count <= self.budget


def _spelled(mark: str, vocabulary: Vocabulary) -> tuple[Token, ...]:
    """A mark as the tokens that models write for it: an added token if there is one."""
    data = mark.encode()
    added = next((token for token in vocabulary.added if vocabulary.piece(token) == data), None)
    if added is not None:
        return (added,)
    tokens = vocabulary.encode(mark, special=False)
    for run in (tokens, tokens[1:]):  # some tokenizers begin every text with a space
        if b"".join(map(vocabulary.piece, run)) == data:
            return tuple(run)
    return tuple(vocabulary.continue_with(data))
