"""One choice of an answer: from chunks to what is new in each part of it.

Owns the way of a chunk through the splitter and the alignment of tokens. Must never know
JSON or the other choices. Invariant: deltas, put together, do not depend on how chunks
delay their text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ...engine.chunk import Chunk
from ...text import TextDecoder
from ...tokens import Token, Vocabulary
from .splitter import Marks, Span, Splitter, Thinking
from .token_report import Reported, TokenReport
from .tools import ToolReader

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """How the text of every choice is to be read.

    - ``marks``, ``thinking``, ``tools`` and ``trim`` are the splitter's.
    - ``opens_text``: the text begins one of its own; ``skip``: bytes that it spells again of
      the prompt; ``prefix``: tokens that count as generated, and whose text is not given.
    - ``reports``: whether tokens are aligned with the text, for log-probabilities.
    """

    vocabulary: Vocabulary
    marks: Marks = field(default_factory=Marks)
    thinking: Thinking = "closed"
    tools: ToolReader | None = None
    trim: bool = True
    opens_text: bool = True
    skip: int = 0
    prefix: tuple[Token, ...] = ()
    reports: bool = False


@dataclass(slots=True)
class Delta:
    """What is new: spans of content, reasoning and calls, and tokens that are complete."""

    spans: list[Span] = field(default_factory=list)
    tokens: list[Reported] = field(default_factory=list)
    ids: list[Token] = field(default_factory=list)
    finish: Finish | None = None


class ChoiceText:
    """Chunks in, deltas out."""

    def __init__(self, plan: TextPlan) -> None:
        self._splitter = Splitter(
            plan.marks, thinking=plan.thinking, tools=plan.tools, trim=plan.trim
        )
        self._report: TokenReport | None = None
        if plan.reports:
            self._report = TokenReport(
                plan.vocabulary, opens_text=plan.opens_text, skip=plan.skip, prefix=plan.prefix
            )
        self.reasoning_tokens = 0
        self.finish: Finish | None = None
        self.given = 0  # characters of the prefix, which are not part of the answer
        self._begun: Span | None = None  # a call that the prefix began
        if plan.prefix:
            decoder = TextDecoder(plan.vocabulary, strip=plan.opens_text, skip=plan.skip)
            for token in plan.prefix:
                decoder.advance(token)
            self.given = len(decoder.text)
            self._begun = _begun(self._splitter.push(decoder.text), self._splitter)

    def take(self, chunk: Chunk) -> Delta:
        """What a chunk adds."""
        delta = Delta()
        if chunk.token is not None:
            delta.ids.append(chunk.token)
            if self._report is not None:
                self._report.add(chunk)
        thought = self._splitter.thinking
        spans = self._splitter.push(chunk.text)
        if chunk.finish_reason is not None:
            spans += self._splitter.flush(cut=chunk.finish_reason in ("length", "cancelled"))
        if (thought or self._splitter.thinking) and chunk.token is not None:
            self.reasoning_tokens += 1
        delta.spans = list(self._new(spans))
        if self._report is not None:
            for span in spans:
                end = span.start + len(span.text)
                delta.tokens.extend(self._report.cover(span.kind, span.start, end))
        if chunk.finish_reason is not None:
            if self._report is not None:
                delta.tokens.extend(self._report.finish())
            delta.finish = self.finish = self._reason(chunk)
        return delta

    def _new(self, spans: list[Span]) -> Iterator[Span]:
        """The spans that the client gets, without what it gave itself."""
        if self._begun is not None:
            yield self._begun
            self._begun = None
        for span in spans:
            if span.kind == "mark" or (span.kind == "call" and not (span.calls or span.more)):
                continue
            known = self.given - span.start
            if span.kind == "call" or known <= 0:
                yield span
            elif known < len(span.text):
                yield span._replace(text=span.text[known:], start=self.given)

    def _reason(self, chunk: Chunk) -> Finish:
        if chunk.finish_reason == "length":
            return "length"
        return "tool_calls" if self._splitter.calls and not self._splitter.is_unfinished else "stop"


def _begun(spans: list[Span], splitter: Splitter) -> Span | None:
    """The call that these spans began and did not end, as one span without text."""
    if not splitter.is_unfinished:
        return None
    first = max((i for i, span in enumerate(spans) if span.calls), default=None)
    if first is None:
        return None
    more = "".join(span.more for span in spans[first:])
    return spans[first]._replace(text="", more=more)
