"""What may decide which tokens come next: ``close_json`` and a thinking budget.

Owns what each of them says; of a controller, ``branches`` does. Must never append a token:
``leads`` has their order, and ``accept`` appends.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from ...errors import PromptError
from ...filters import Constraint, EndSearch
from ...forks import forked
from ...text import ThinkingMarks, Transcript
from ...tokens import Token, Vocabulary

WINDOW = 512  # ends are searched for in this many tokens before the end of the budget
SENTENCE = "\n\nThat is as long as I can think about it, so I answer now.\n"


class Closing:
    """Keeps a valid end within reach of the budget (``close_json``): the shortest known way to an
    end that the filters accept, which alone is allowed once it is ``forcing``.

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
        if to < self.at:
            self.restart(to)

    def restart(self, at: int) -> None:
        """Look again after ``at`` tokens: what was decided later no longer holds."""
        self._misses, self._next, self.forcing, self.way = 0, WINDOW, False, None
        self.look(at)

    def fork(self, constraint: Constraint) -> Closing:
        """An independent copy for a forked constraint."""
        return forked(self, _ends=self._ends.fork(constraint))


class ThinkingLimit(NamedTuple):
    """How many tokens of thinking may come, and what follows them: the run, a sentence that ends
    with the ``mark``, or for a budget of 0 the mark alone. Where it begins follows from the text,
    so there is nothing here to take back."""

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

    def left(self, transcript: Transcript) -> tuple[Token, ...]:
        """What comes next: the rest of the run; nothing before the budget is spent or after it.

        It begins where the text is not inside a character.
        """
        thoughts, length = transcript.thoughts, len(transcript)
        if thoughts is None or not thoughts.is_open:
            return ()
        start = thoughts.began + self.budget
        while start <= length and transcript.is_open(start):
            start += 1
        if start > length:
            return ()
        # If something kept the mark from coming, it comes again.
        done = length - start
        return self.run[done:] or self.mark[(done - len(self.run)) % len(self.mark) :]

    def allows(self, transcript: Transcript, count: int) -> bool:
        """Whether none of the next ``count`` tokens can be one of the run."""
        thoughts = transcript.thoughts
        if thoughts is None or thoughts.is_over:
            return True
        spent = len(transcript) - thoughts.began if thoughts.is_open else 0
        return spent + count <= self.budget


def _spelled(mark: str, vocabulary: Vocabulary) -> tuple[Token, ...]:
    """A mark as the tokens that models write for it, which are added ones if there are any."""
    data = mark.encode()
    added = next((token for token in vocabulary.added if vocabulary.piece(token) == data), None)
    if added is not None:
        return (added,)
    tokens = vocabulary.encode(mark, special=False)
    for run in (tokens, tokens[1:]):  # some tokenizers begin every text with a space
        if b"".join(map(vocabulary.piece, run)) == data:
            return tuple(run)
    return tuple(vocabulary.continue_with(data))
