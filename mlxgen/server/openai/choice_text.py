"""One choice of an answer: from chunks to what is new in each part of it, events and tokens.

Invariant: deltas, put together, do not depend on how chunks delay their text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ...chat.answer import AnswerReader
from ...chat.events import ChatEvent, Ended, Reasoning, Retracted, Text
from ...engine import Chunk, PromptScore, Usage
from ...images import plain
from ...text import TextDecoder
from ...tokens import Token
from ..errors import RequestError
from .logprobs import TokenWriter
from .plan import ReplyPlan
from .settled import settled
from .token_report import Reported, TokenReport

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class Delta:
    """What is new: events, and tokens that are complete."""

    events: list[ChatEvent] = field(default_factory=list)
    tokens: list[Reported] = field(default_factory=list)
    ids: list[Token] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        """The new text, without anything else."""
        return "".join([event.text for event in self.events if isinstance(event, Text)])

    @property
    def retractions(self) -> dict[str, int]:
        """How many characters to delete from what was sent before, if any, by what they are."""
        back = [event.event for event in self.events if isinstance(event, Retracted)]
        found: dict[str, int] = {}
        for kind, name in ((Text, "retract"), (Reasoning, "retract_reasoning")):
            count = sum(len(event.text) for event in back if isinstance(event, kind))
            if count:
                found[name] = count
        return found


class ChoiceText:
    """Chunks in, deltas out; for an answer that is not streamed, ``whole`` is all of them in one.

    ``name_call`` is that of ``AnswerReader``. ``given`` are the characters of the client's prefix,
    which are not part of the answer.
    """

    def __init__(
        self, plan: ReplyPlan, index: int, name_call: Callable[[int], str] = "call_{}".format
    ) -> None:
        self._plan = plan
        self._question = question = plan.question(index)
        vocabulary, opens_text = plan.vocabulary, question.prompt.opens_text
        decoder = TextDecoder(vocabulary, strip=opens_text, skip=question.skip)
        for token in plan.options.prefix:
            decoder.advance(token)
        self.given = decoder.end()
        self._decoder = decoder.fork()
        self._held: list[Chunk] = []
        self._report = TokenReport(decoder) if plan.logprobs else None
        self._reader = AnswerReader(replace(question.reading, given=decoder.text), name_call)
        self.writer = TokenWriter(vocabulary, opens_text=opens_text and not question.skip)
        self.scores: Sequence[PromptScore] = ()
        self.whole = Delta()

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens were thoughts."""
        return self._reader.reasoning_tokens

    def take(self, chunk: Chunk, usage: Usage | None = None) -> Delta:
        """What a chunk adds; the last one comes with ``usage``."""
        self.scores = chunk.prompt or self.scores
        if self._plan.silent:
            over = chunk.finish_reason is not None
            finish: Literal["length"] | None = "length" if over else None
            chunk = replace(chunk, text="", token=None, finish_reason=finish, stop=None)
        delta = Delta() if self._plan.stream else self.whole
        if not self._plan.holds:
            if chunk.retract and not self._plan.retracts:
                raise _sent_already(self._plan.options.hold_tokens)
            self._read(delta, chunk, usage)
            return delta
        self._held.append(chunk)
        if chunk.finish_reason is not None:
            for each in settled(self._held, self._decoder, self._plan.options.prefix):
                self._read(delta, each, usage)
        return delta

    def _read(self, delta: Delta, chunk: Chunk, usage: Usage | None) -> None:
        report = self._report
        if report is not None:
            report.add(chunk)
        events, spans = self._reader.push(chunk, usage or _NONE)
        delta.events += events
        if chunk.token is not None:
            delta.ids.append(chunk.token)
        if report is not None:
            for span in spans:
                delta.tokens.extend(report.cover(span))
        last = events[-1] if events else None
        if isinstance(last, Ended):
            if report is not None:
                delta.tokens.extend(report.finish())
            delta.finish = _FINISHES.get(last.reason, "stop")

    def marks(self, delta: Delta) -> dict[str, Any]:
        """What a delta takes back, and its tokens' ids and all about them, as far as wanted."""
        plan = self._plan
        marks: dict[str, Any] = dict(delta.retractions) if plan.retracts else {}
        if plan.ids and (delta.ids or not plan.stream):
            marks["token_ids"] = delta.ids
        if plan.ids and plan.logprobs and (delta.tokens or not plan.stream):
            marks["tokens"] = [self.writer.full_entry(token) for token in delta.tokens]
        return marks

    def prompt(self) -> dict[str, Any]:
        """What a whole answer says about the prompt."""
        facts: dict[str, Any] = {}
        if self._plan.ids:
            facts["prompt_token_ids"] = plain(self._question.prompt.tokens)
        if self._plan.prompt_logprobs:
            facts["prompt_logprobs"] = self.writer.prompt(self.scores)
        return facts


def _sent_already(held: int) -> RequestError:
    return RequestError(
        f"hold_tokens: text was taken back that had been sent, as only {held} tokens are held; "
        "hold more of them, leave it out, or send allow_retract",
        status=500,
        param="hold_tokens",
        code="program_failed",
    )


_NONE = Usage()
_FINISHES: dict[str, Finish] = {"length": "length", "calls": "tool_calls"}
