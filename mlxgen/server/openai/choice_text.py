"""One choice of an answer: from chunks to what is new in each part of it.

Owns the alignment of the tokens with the events that their text gives. Must never know JSON or
the other choices. Invariant: deltas, put together, do not depend on how chunks delay their text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ...chat.answer import AnswerReader, Reading
from ...chat.events import ChatEvent, Ended, Text
from ...engine import Chunk, Usage
from ...text import TextDecoder
from ...tokens import Token, Vocabulary
from .token_report import Reported, TokenReport

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """How to read the text of every choice.

    - ``reading`` is that of its events.
    - ``opens_text``: the text begins one of its own; ``skip``: bytes that it spells again of
      the prompt; ``prefix``: tokens that count as generated, and whose text is not given.
    - ``reports``: whether tokens are aligned with the text, for log-probabilities.
    """

    vocabulary: Vocabulary
    reading: Reading = field(default_factory=Reading)
    opens_text: bool = True
    skip: int = 0
    prefix: tuple[Token, ...] = ()
    reports: bool = False


@dataclass(slots=True)
class Delta:
    """What is new: events, and tokens that are complete."""

    events: Sequence[ChatEvent]
    tokens: list[Reported] = field(default_factory=list)
    ids: list[Token] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        """The new text, without anything else."""
        return "".join([event.text for event in self.events if isinstance(event, Text)])


class ChoiceText:
    """Chunks in, deltas out. ``name_call`` is that of ``AnswerReader``."""

    def __init__(self, plan: TextPlan, name_call: Callable[[int], str] = "call_{}".format) -> None:
        self._report: TokenReport | None = None
        if plan.reports:
            self._report = TokenReport(
                plan.vocabulary, opens_text=plan.opens_text, skip=plan.skip, prefix=plan.prefix
            )
        self.finish: Finish | None = None
        reading = plan.reading
        if plan.prefix:
            decoder = TextDecoder(plan.vocabulary, strip=plan.opens_text, skip=plan.skip)
            for token in plan.prefix:
                decoder.advance(token)
            reading = replace(reading, given=decoder.text)
        self.given = len(reading.given)
        """Characters of the prefix, which are not part of the answer."""
        self._reader = AnswerReader(reading, name_call)

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens were thoughts."""
        return self._reader.reasoning_tokens

    def take(self, chunk: Chunk, usage: Usage | None = None) -> Delta:
        """What a chunk adds; the last one comes with ``usage``."""
        report = self._report
        if report is not None:
            report.add(chunk)
        events, spans = self._reader.push(chunk, usage or _NONE)
        delta = Delta(events)
        if chunk.token is not None:
            delta.ids.append(chunk.token)
        if report is not None:
            for span in spans:
                end = span.start + len(span.text)
                delta.tokens.extend(report.cover(span.kind, span.start, end))
        last = events[-1] if events else None
        if isinstance(last, Ended):
            if report is not None:
                delta.tokens.extend(report.finish())
            delta.finish = self.finish = _FINISHES.get(last.reason, "stop")
        return delta


_NONE = Usage()
_FINISHES: dict[str, Finish] = {"length": "length", "calls": "tool_calls"}
