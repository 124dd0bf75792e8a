"""The things that a program can await, as answers to its controller's calls.

``ask`` says how the branch continues, or gives ``Done`` with the result; between two calls
of it, ``told`` is given what the answer led to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from ..engine import Branch, Session, Splice, Wait
from ..errors import DeadEndError
from ..filters import Filter, Specification
from ..text import heal_plan
from ..tokens import Token
from .branch_history import BranchHistory
from .token_set import TokenSet


@dataclass(frozen=True, slots=True)
class Done:
    """What an await evaluates to, or raises."""

    value: Any
    error: Exception | None = None


Answer: TypeAlias = list[Branch] | Wait | Done


class Step(Protocol):
    """Something awaited, while it is carried out."""

    def ask(self) -> Answer: ...

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None: ...


@dataclass(slots=True)
class Put:
    """Takes back the newest tokens and appends a run, if there is anything to do."""

    back: int
    tokens: Sequence[Token]

    def ask(self) -> Answer:
        todo = self.back or self.tokens
        return [Branch(self.back, None, [self.tokens])] if todo else Done(None)

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self.back, self.tokens = 0, ()


class Sample:
    """Samples one token: its id, or ``None`` for an end token, which is not appended."""

    __slots__ = ("_branch", "_result")

    def __init__(self, allowed: TokenSet, ends: Sequence[Token], temperature: float | None) -> None:
        splices = [Splice(ends, backtrack=1)] if ends else []
        self._branch = Branch(sample_mask=allowed.words, splices=splices, temperature=temperature)
        self._result: Done | None = None

    def ask(self) -> Answer:
        return self._result or [self._branch]

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self._result = Done(tokens[0] if tokens else None)


@dataclass(slots=True)
class Split:
    """Forks into ``count`` branches; ``result`` says what the await gives in each.

    ``index`` is the branch's own, after the fork.
    """

    count: int
    result: Callable[[int], Any]
    index: int | None = None

    def at(self, index: int) -> Split:
        """The same step as branch ``index`` sees it: after the fork."""
        return replace(self, index=index)

    def ask(self) -> Answer:
        index = 0 if self.count == 1 else self.index
        return [Branch(ff_tokens=[[]])] * self.count if index is None else Done(self.result(index))

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        self.index = branch_idx


@dataclass(slots=True)
class Until:
    """Waits until ``look`` returns something; the end of ``wait()`` makes it look again."""

    look: Callable[[], Done | None]
    wait: Callable[[], Wait]

    def ask(self) -> Answer:
        return self.look() or self.wait()

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        pass


class Gen:
    """Generates a piece of text after ``history``; see ``Guide.gen`` for the rest.

    A ``Session`` has the rules; here they become branches. When it is done, the history ends with
    exactly the tokens of its text: a stop is taken back with everything after it, and an end token
    is never appended. Of the last ``fixed`` tokens, which are text, those that it may join are
    taken back first and spelled anew.
    """

    def __init__(
        self,
        history: BranchHistory,
        vocab_size: int,
        filters: Sequence[Specification | Filter],
        stop: Sequence[str],
        max_tokens: int | None,
        temperature: float | None,
        *,
        fixed: int = 0,
    ) -> None:
        opens = history.opens()
        self._vocabulary = history.vocabulary
        self._decoder = history.decoder(0 if opens else 1)
        start = partial(
            Session,
            history.vocabulary,
            vocab_size=vocab_size,
            filters=filters,
            stop=stop,
            max_tokens=max_tokens or None,
        )
        fixed = min(fixed, len(history.tokens) - history.labelled)
        end = history.tokens[-1 - fixed :]
        kept, self._removed = heal_plan(history.vocabulary, end) if fixed else (end, b"")
        self._back = len(end) - len(kept)  # tokens that are spelled anew
        if self._removed and max_tokens != 0:
            self._session = start(prompt=end, heal=True)
            try:
                self._session.mask()
            except DeadEndError:  # what the filters want does not join it
                self._removed = b""
        if not self._removed or max_tokens == 0:
            self._removed, self._back = b"", 0
            self._session = start(prompt=None if opens else history.tokens[-1:])
        self._max_tokens = max_tokens
        ends = [token for token in history.vocabulary.eos if token < vocab_size]
        splices = [Splice(ends, backtrack=1)] if ends else []
        self._sampled = Branch(0, range(vocab_size), (), splices, temperature)
        self._tokens: list[Token] = []  # all that were appended, even after the end of the text
        self._cut: Branch | None = None  # takes the stop back
        self._samples = False  # whether the last answer asked for a token
        self._text: str | None = None  # set when it is done
        if max_tokens == 0 or self._session.finish_reason is not None:
            self._finish()

    def ask(self) -> Answer:
        if self._text is not None:
            cut, self._cut = self._cut, None
            return Done(self._text) if cut is None else [cut]
        forced = self._session.forced()
        self._samples = not forced
        if forced:
            left = None if self._max_tokens is None else self._max_tokens - len(self._tokens)
            return [Branch(ff_tokens=[forced[:left]])]
        mask, back, self._back = self._session.mask(), self._back, 0
        if mask is None:
            return [self._sampled]
        return [replace(self._sampled, backtrack=back, sample_mask=mask)]

    def told(self, branch_idx: int, tokens: Sequence[Token]) -> None:
        if self._text is not None:
            return  # the stop was taken back
        for token in tokens:
            self._tokens.append(token)
            if self._session.finish_reason is None:
                self._session.push_token(token)
        if self._session.finish_reason == "stop":
            self._cut = self._without_stop()
        if self._session.finish_reason is not None or (self._samples and not tokens):
            self._finish()  # in the second case by an end token, which was not appended

    def _finish(self) -> None:
        self._session.finish()
        self._text = self._session.text
        left = self._removed[self._spelled(len(self._tokens)) :]
        if left and self._cut is None:  # too few tokens to spell the end of the fixed text
            self._cut = Branch(ff_tokens=[self._vocabulary.continue_with(left)])

    def _spelled(self, count: int) -> int:
        """How many bytes the first ``count`` tokens have."""
        return sum(len(self._vocabulary.piece(token)) for token in self._tokens[:count])

    def _without_stop(self) -> Branch:
        """Takes the stop back, and spells again the text before it in its first token."""
        text, decoder = self._session.text, self._decoder
        if self._removed:
            whole = self._removed + text.encode()
            kept = len(self._tokens)
            while self._spelled(kept) > len(whole):
                kept -= 1
            spelled = self._vocabulary.continue_with(whole[self._spelled(kept) :])
            return Branch(backtrack=len(self._tokens) - kept, ff_tokens=[spelled])
        ends = []  # of the text after each token
        for token in self._session.tokens:
            decoder.advance(token)
            ends.append(decoder.end())
        kept = bisect_left(ends, len(text))
        if text and ends[kept] == len(text):
            kept += 1
        rest = text[ends[kept - 1] if kept else 0 :]
        spelled = self._vocabulary.continue_with(rest.encode()) if rest else []
        return Branch(backtrack=len(self._tokens) - kept, ff_tokens=[spelled])
