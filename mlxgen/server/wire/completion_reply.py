"""The reply to a completion request, streamed or whole.

Owns the JSON of ``text_completion``. Must never know how the text was made. Invariant: the
texts of a stream's events, put together, are the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...engine.chunk import Chunk, FinishReason, Progress, PromptScore, Usage
from .call import Event
from .chat_reply import FINGERPRINT, ReplyPlan
from .choice_text import ChoiceText, Delta, Finish
from .errors import error_body
from .logprobs import TokenWriter
from .timings import prompt_progress
from .token_report import Reported
from .usage import usage_json


@dataclass(slots=True)
class _Choice:
    """A choice, and for a whole answer what it has so far."""

    text: ChoiceText
    writer: TokenWriter
    echo: str
    parts: list[str] = field(default_factory=list)
    reported: list[Reported] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    scores: Sequence[PromptScore] = ()  # of the prompt
    progress: Progress | None = None  # the last that is known
    began: bool = False


class CompletionReply:
    """A ``Reply`` to a completion request."""

    def __init__(self, plan: ReplyPlan, id: str, created: int) -> None:
        self._plan = plan
        self._head: dict[str, Any] = {
            "id": id,
            "object": "text_completion",
            "created": created,
            "model": plan.model,
            "system_fingerprint": FINGERPRINT,
        }
        echoes = plan.echoes or [""] * len(plan.texts)
        self._choices = [
            _Choice(ChoiceText(text), plan.writer(text), echo)
            for text, echo in zip(plan.texts, echoes, strict=True)
        ]

    def start(self) -> list[Event]:
        """As ``Reply.start``: the prompts, where they are to be echoed.

        With log-probabilities they come with the first chunk, which has the prompt's own.
        """
        if not self._plan.stream or self._plan.logprobs:
            return []
        echoes = ((index, choice.echo) for index, choice in enumerate(self._choices))
        return [self._event(index, echo, {}) for index, echo in echoes if echo]

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        """As ``Reply.prefilled``."""
        if not self._plan.progress:
            return []
        return [{**self._event(index, "", {}), "prompt_progress": prompt_progress(progress)}]

    def push(self, index: int, chunk: Chunk, progress: Progress | None = None) -> list[Event]:
        """As ``Reply.push``."""
        choice = self._choices[index]
        choice.progress = progress
        choice.scores = chunk.prompt or choice.scores
        if self._plan.silent:
            finish: FinishReason | None = "length" if chunk.finish_reason is not None else None
            chunk = replace(chunk, text="", token=None, finish_reason=finish, stop=None)
        delta = choice.text.take(chunk)
        text = "".join(span.text for span in delta.spans)
        if not self._plan.stream:
            choice.parts.append(text)
            choice.reported.extend(delta.tokens)
            choice.ids.extend(delta.ids)
            choice.tokens.extend(self._full(choice, delta))
            return []
        extra: dict[str, Any] = {}
        if self._plan.logprobs and not choice.began:
            choice.began = True
            text = choice.echo + text
            if choice.scores:
                extra["logprobs"] = self._logprobs(choice, delta.tokens)
        if self._plan.logprobs and delta.tokens and not extra:
            extra["logprobs"] = choice.writer.legacy(delta.tokens, self._offset(choice))
        if self._plan.ids and delta.ids:
            extra["token_ids"] = delta.ids
        full = self._full(choice, delta)
        if full:
            extra["tokens"] = full
        if not text and not extra and delta.finish is None:
            return []
        return [self._plan.timed(self._event(index, text, extra, delta.finish), [progress])]

    def fail(self, error: BaseException) -> Event:
        """As ``Reply.fail``."""
        return error_body(error, self._plan.params)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: the usage, if it was asked for."""
        if not self._plan.stream or not self._plan.include_usage:
            return []
        last = {**self._head, "choices": [], "usage": self._usage(usages)}
        return [self._plan.timed(last, [choice.progress for choice in self._choices])]

    def complete(self, usages: Sequence[Usage]) -> Event:
        """As ``Reply.complete``."""
        assert not self._plan.stream
        choices = [self._whole(i, choice) for i, choice in enumerate(self._choices)]
        whole = {**self._head, "choices": choices, "usage": self._usage(usages)}
        return self._plan.timed(whole, [choice.progress for choice in self._choices])

    def _event(
        self, index: int, text: str, extra: dict[str, Any], finish: Finish | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, **extra}
        event = {**self._head, "choices": [choice]}
        if self._plan.include_usage:
            event["usage"] = None
        return event

    def _full(self, choice: _Choice, delta: Delta) -> list[dict[str, Any]]:
        if not (self._plan.ids and self._plan.logprobs):
            return []
        return [choice.writer.full_entry(token) for token in delta.tokens]

    def _offset(self, choice: _Choice) -> int:
        return len(choice.echo) - choice.text.given

    def _logprobs(self, choice: _Choice, reported: list[Reported]) -> dict[str, Any]:
        """The four lists of the text, behind those of an echo."""
        lists = choice.writer.legacy(reported, self._offset(choice))
        if not choice.scores or not choice.echo:
            return lists
        echoed = choice.writer.echoed(choice.scores, choice.echo)
        return {name: echoed[name] + lists[name] for name in lists}

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        logprobs = self._logprobs(choice, choice.reported) if self._plan.logprobs else None
        whole: dict[str, Any] = {
            "index": index,
            "text": choice.echo + "".join(choice.parts),
            "logprobs": logprobs,
            "finish_reason": choice.text.finish,
        }
        if self._plan.prompt_logprobs:
            whole["prompt_logprobs"] = choice.writer.prompt(choice.scores)
        if self._plan.ids:
            whole["prompt_token_ids"] = list(self._plan.prompts[index])
            whole["token_ids"] = choice.ids
            if self._plan.logprobs:
                whole["tokens"] = choice.tokens
        return whole

    def _usage(self, usages: Sequence[Usage]) -> dict[str, Any]:
        if self._plan.silent:
            usages = [replace(usage, completion_tokens=self._plan.given) for usage in usages]
        return usage_json(usages, choices=self._plan.choices, given=self._plan.given, reasoning=0)
