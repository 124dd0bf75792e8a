"""The things that a program can await, as answers to its controller's calls, one after the other.

A step is a generator: it yields how the branch goes on, is sent the tokens that this has appended,
and returns what the await gives. What it raises is raised in the program. ``BranchHistory`` has the
tokens of the branch, as the engine reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from ..engine import Branch, Session, Splice, Wait
from ..engine.history import History
from ..errors import DeadEndError, StateError
from ..filters import Filter, Specification
from ..forks import forked
from ..text import TextDecoder, Transcript, heal_plan
from ..tokens import Token, Vocabulary, in_common
from .token_set import TokenSet

FIXED, BACK = "fixed", "backtrack"  # what appends text that the model has not spelled

T = TypeVar("T")
Answer: TypeAlias = list[Branch] | Wait
Step: TypeAlias = Generator[Answer, Any, Any]


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the text to go back to; made by ``Guide.label``.

    ``length`` and ``moment`` are those of the history when it was made; ``end`` are the tokens of
    fixed text before it, which may be spelled anew with what follows.
    """

    length: int
    moment: int
    end: tuple[Token, ...] = ()


class BranchHistory:
    """The prompt and the generated tokens; ``base`` is how much of the prompt is left, and
    ``fixed`` are the runs of text, from one length to another, that the model has not spelled.
    ``removed`` is the prompt's end that the first tokens spell again: it is no generated text."""

    __slots__ = ("base", "fixed", "opens_text", "removed", "tokens", "vocabulary")

    def __init__(
        self,
        prompt: Sequence[Token],
        vocabulary: Vocabulary,
        *,
        opens_text: bool,
        removed: bytes = b"",
    ):
        self.tokens = History(prompt)
        self.base = len(self.tokens)
        self.vocabulary = vocabulary
        self.opens_text = opens_text
        self.removed = removed
        self.fixed: list[tuple[int, int]] = []

    def apply(self, back: int, appended: Sequence[Token]) -> None:
        """Takes a report: tokens taken back, then tokens appended."""
        if back:
            self.tokens.cut(len(self.tokens) - back)
            self.base = min(self.base, len(self.tokens))
        self.tokens += appended

    def spelled(self, count: int, *, fixed: bool) -> None:
        """Note whether the newest tokens, which something awaited has appended, are fixed text."""
        end, length = len(self.tokens) - count, len(self.tokens)
        self.fixed = [(start, min(stop, end)) for start, stop in self.fixed if start < end]
        if fixed and count:
            joins = self.fixed and self.fixed[-1][1] == end
            self.fixed.append((self.fixed.pop()[0] if joins else end, length))

    @property
    def newest(self) -> int:
        """How many of the newest tokens are fixed text."""
        start, stop = self.fixed[-1] if self.fixed else (0, 0)
        return stop - start if stop == len(self.tokens) else 0

    @property
    def text(self) -> str:
        """The text of the generated tokens, as far as characters are complete."""
        decoder = TextDecoder(self.vocabulary, strip=self.opens_text, skip=len(self.removed))
        for token in self.tokens[self.base :]:
            decoder.advance(token)
        return decoder.text

    @property
    def unspelled(self) -> bytes:
        """What of the prompt's end is still to be spelled again."""
        return self.removed[len(self._bytes(self.tokens[self.base :])) :] if self.removed else b""

    def after_prompt(self, tokens: Sequence[Token], *, as_text: bool = True) -> Sequence[Token]:
        """A run, after what of the prompt's end is still to be spelled; with ``as_text``, both are
        spelled together."""
        if not (left := self.unspelled):
            return tokens
        if as_text:
            return self.vocabulary.continue_with(left + self._bytes(tokens))
        return [*self.vocabulary.continue_with(left), *tokens]

    def label(self) -> Label:
        tokens = self.tokens
        return Label(len(tokens), tokens.moment, tuple(tokens[len(tokens) - self.newest :]))

    def find(self, label: Label) -> tuple[int, Sequence[Token]]:
        """How many tokens to take back to a label, and those to append, as the text before it may
        have been spelled anew. StateError if its place was taken back."""
        tokens, start = self.tokens, label.length - len(label.end)
        low = tokens.low_since(label.moment) if label.moment <= tokens.moment else -1
        if label.length <= low:
            return len(tokens) - label.length, ()
        before = self._bytes(label.end)
        now = self._bytes(tokens[start : start + len(before)]) if start <= low else b""
        if not before or not now.startswith(before):
            raise StateError("the text before this label was taken back; make a new label")
        kept = in_common(tokens[start:], label.end)
        return len(tokens) - start - kept, label.end[kept:]

    def _bytes(self, tokens: Sequence[Token]) -> bytes:
        return b"".join([self.vocabulary.piece(token) for token in tokens])

    def fork(self) -> BranchHistory:
        """An independent copy."""
        return forked(self, shared=("vocabulary",))


def put(back: int, tokens: Sequence[Token]) -> Step:
    """Takes back the newest tokens and appends a run, if there is anything to do."""
    if back or tokens:
        yield [Branch(back, None, [tokens])]


def sample(allowed: TokenSet, ends: Sequence[Token], temperature: float | None) -> Step:
    """Samples one token: its id, or ``None`` for an end token, which is not appended."""
    splices = [Splice(ends, backtrack=1)] if ends else []
    drawn = yield [Branch(sample_mask=allowed.words, splices=splices, temperature=temperature)]
    return drawn[0] if drawn else None


def until(look: Callable[[], T | None], wait: Callable[[], Wait]) -> Step:
    """Waits until ``look`` returns something; the end of ``wait()`` makes it look again."""
    while (found := look()) is None:
        yield wait()
    return found


def gen(
    history: BranchHistory,
    vocab_size: int,
    filters: Sequence[Specification | Filter],
    stop: Sequence[str],
    max_tokens: int | None,
    temperature: float | None,
) -> Step:
    """Generates a piece of text after ``history``; see ``Guide.gen`` for the rest.

    A ``Session`` has the rules; here they become branches. When it is done, the history ends with
    exactly the tokens of its text: a stop is taken back with everything after it, and an end token
    is never appended. Of the fixed text at the end, the tokens that it may join are taken back
    first and spelled anew, and so is what of the prompt's end is still to be spelled.
    """
    vocabulary = history.vocabulary
    opens = history.opens_text and len(history.tokens) == history.base
    session, removed, back = None, b"", 0
    unspelled = history.after_prompt(())
    if max_tokens != 0 and (unspelled or history.newest):
        end = [*history.tokens[-1 - history.newest :], *unspelled]
        kept, removed = heal_plan(vocabulary, end)
        if removed:
            back = len(end) - len(kept)  # tokens that are spelled anew
            session = _session(history, vocab_size, filters, stop, max_tokens, end, heal=True)
            try:
                session.mask()
            except DeadEndError:  # what the filters want does not join it
                session, removed, back = None, b"", 0
        if unspelled:
            if run := unspelled[: len(unspelled) - back]:
                yield [Branch(ff_tokens=[run])]
            back = 0  # the others are not there
    if session is None:
        last = None if opens else history.tokens[-1:]
        session = _session(history, vocab_size, filters, stop, max_tokens, last)
    ends = [token for token in vocabulary.eos if token < vocab_size]
    splices = [Splice(ends, backtrack=1)] if ends else []
    free = Branch(0, range(vocab_size), (), splices, temperature)
    tokens: list[Token] = []  # all that were appended, even after the end of the text
    while session.finish_reason is None and max_tokens != 0:
        if forced := session.forced():
            left = None if max_tokens is None else max_tokens - len(tokens)
            new = yield [Branch(ff_tokens=[forced[:left]])]
        else:
            mask = session.mask()
            drawn = free if mask is None else replace(free, backtrack=back, sample_mask=mask)
            new, back = (yield [drawn]), 0
            if not new:  # an end token, which is not appended
                break
        for token in new:
            tokens.append(token)
            if session.finish_reason is None:
                session.push_token(token)
    stops = session.finish_reason == "stop"
    session.finish()
    text, stays, rest = session.text, len(tokens), b""
    if stops:
        decoder = TextDecoder(vocabulary, strip=opens and not removed, skip=len(removed))
        transcript = Transcript(decoder)
        for token in session.tokens:
            transcript.advance(token)
        stays = transcript.token_at(len(text))
        rest = text[decoder.end(stays) :].encode()
    spelled = sum(len(vocabulary.piece(token)) for token in tokens[:stays])
    rest = removed[spelled:] + rest
    if stays < len(tokens) or rest:
        run = vocabulary.continue_with(rest) if rest else ()
        yield [Branch(len(tokens) - stays, None, [run])]
    return text


def _session(
    history: BranchHistory,
    vocab_size: int,
    filters: Sequence[Specification | Filter],
    stop: Sequence[str],
    max_tokens: int | None,
    prompt: Sequence[Token] | None,
    *,
    heal: bool = False,
) -> Session:
    return Session(
        history.vocabulary,
        prompt=prompt,
        heal=heal,
        vocab_size=vocab_size,
        filters=filters,
        stop=stop,
        max_tokens=max_tokens or None,
    )
