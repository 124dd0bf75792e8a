"""The end of the thinking when its budget is spent.

Owns the run of tokens that ends it: a sentence and the mark, or for a budget of 0 the mark alone.
Must never append a token: ``accept`` does. Where the run begins follows from the text alone, so
there is nothing here to take back.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import PromptError
from ...text import ThinkingMarks, Transcript
from ...tokens import Token, Vocabulary

SENTENCE = "\n\nThat is as long as I can think about it, so I answer now.\n"


class ThinkingLimit(NamedTuple):
    """How many tokens of thinking may come, and what follows them: the run, which ends with the
    ``mark``."""

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
