"""A choice of a completion as JSON.

Owns the JSON of texts. Must never know how the text was made. Invariant: the texts of a
stream's events, put together, are the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...engine import Chunk, FinishReason, PromptScore, Usage
from ..call import Event
from .choice_text import ChoiceText, Delta, Finish
from .reply import Kind, ReplyPlan
from .token_report import Reported


class CompletionChoice:
    """A ``ReplyChoice`` of a completion."""

    def __init__(self, plan: ReplyPlan, index: int, id: str) -> None:
        self._plan = plan
        self._index = index
        self.text = ChoiceText(plan.texts[index])
        self._writer = plan.writer(plan.texts[index])
        self._echo = plan.echoes[index] if plan.echoes else ""
        self._offset = len(self._echo) - self.text.given
        self._scores: Sequence[PromptScore] = ()
        self._began = False
        # For a whole answer: what a stream would have sent.
        self._parts: list[str] = []
        self._reported: list[Reported] = []
        self._tokens: list[dict[str, Any]] = []
        self._ids: list[int] = []

    def opening(self) -> Event | None:
        """As ``ReplyChoice.opening``: the prompt, if it is to be echoed.

        With log-probabilities it comes with the first chunk, which has the prompt's own.
        """
        return self._choice(self._echo) if self._echo and not self._plan.logprobs else None

    def nothing(self) -> Event:
        """As ``ReplyChoice.nothing``."""
        return self._choice("")

    def push(self, chunk: Chunk, usage: Usage | None) -> list[Event]:
        """As ``ReplyChoice.push``."""
        self._scores = chunk.prompt or self._scores
        if self._plan.silent:
            finish: FinishReason | None = "length" if chunk.finish_reason is not None else None
            chunk = replace(chunk, text="", token=None, finish_reason=finish, stop=None)
        delta = self.text.take(chunk, usage)
        text, full = delta.text, self._full(delta)
        if not self._plan.stream:
            self._parts.append(text)
            self._reported.extend(delta.tokens)
            self._ids.extend(delta.ids)
            self._tokens.extend(full)
            return []
        extra: dict[str, Any] = {}
        if self._plan.logprobs and not self._began:
            self._began = True
            text = self._echo + text
            if self._scores:
                extra["logprobs"] = self._logprobs(delta.tokens)
        if self._plan.logprobs and delta.tokens and not extra:
            extra["logprobs"] = self._writer.legacy(delta.tokens, self._offset)
        if self._plan.ids and delta.ids:
            extra["token_ids"] = delta.ids
        if full:
            extra["tokens"] = full
        if not text and not extra and delta.finish is None:
            return []
        return [{**self._choice(text, delta.finish), **extra}]

    def _choice(self, text: str, finish: Finish | None = None) -> Event:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}

    def _full(self, delta: Delta) -> list[dict[str, Any]]:
        if not (self._plan.ids and self._plan.logprobs):
            return []
        return [self._writer.full_entry(token) for token in delta.tokens]

    def _logprobs(self, reported: list[Reported]) -> dict[str, Any]:
        """The four lists of the text, after those of an echo."""
        lists = self._writer.legacy(reported, self._offset)
        if not self._scores or not self._echo:
            return lists
        echoed = self._writer.echoed(self._scores, self._echo)
        return {name: echoed[name] + lists[name] for name in lists}

    def whole(self) -> Event:
        """As ``ReplyChoice.whole``."""
        whole = self._choice(self._echo + "".join(self._parts), self.text.finish)
        if self._plan.logprobs:
            whole["logprobs"] = self._logprobs(self._reported)
        if self._plan.ids:
            whole["token_ids"] = self._ids
            if self._plan.logprobs:
                whole["tokens"] = self._tokens
        return whole

    def prompt(self) -> Event:
        """As ``ReplyChoice.prompt``."""
        facts: Event = {}
        if self._plan.prompt_logprobs:
            facts["prompt_logprobs"] = self._writer.prompt(self._scores)
        if self._plan.ids:
            facts["prompt_token_ids"] = list(self._plan.prompts[self._index])
        return facts


COMPLETION = Kind("text_completion", "text_completion", CompletionChoice, shares_prompt=False)
