"""A choice of a completion as JSON.

Invariant: the texts of a stream's events, put together, are the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..call import Event
from .choice_text import ChoiceText, Delta, Finish
from .plan import ReplyPlan
from .reply import Kind, OpenAIReply
from .token_report import Reported


class CompletionChoice:
    """A ``ReplyChoice`` of a completion."""

    def __init__(self, plan: ReplyPlan, index: int, id: str) -> None:
        self._plan = plan
        self._index = index
        self.text = ChoiceText(plan, index)
        self._echo = plan.question(index).echo
        self._began = False

    def opening(self) -> Event | None:
        """As ``ReplyChoice.opening``: the prompt, if it is to be echoed.

        With log-probabilities it comes with the first chunk, which has the prompt's own.
        """
        return self._choice(self._echo) if self._echo and not self._plan.logprobs else None

    def nothing(self) -> Event:
        return self._choice("")

    def events(self, delta: Delta) -> list[Event]:
        text, extra = delta.text, self.text.marks(delta)
        if self._plan.logprobs:
            is_first, self._began = not self._began, True
            if is_first:
                text = self._echo + text
            if delta.tokens or (is_first and self.text.scores):
                extra["logprobs"] = self._logprobs(delta.tokens, echoes=is_first)
        if not text and not extra and delta.finish is None:
            return []
        return [{**self._choice(text, delta.finish), **extra}]

    def whole(self, delta: Delta) -> Event:
        whole = self._choice(self._echo + delta.text, delta.finish)
        if self._plan.logprobs:
            whole["logprobs"] = self._logprobs(delta.tokens, echoes=True)
        return whole | self.text.marks(delta)

    def _choice(self, text: str, finish: Finish | None = None) -> Event:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, reported: Sequence[Reported], *, echoes: bool) -> dict[str, Any]:
        """The four lists of the text, after those of an echo."""
        lists = self.text.writer.legacy(reported, len(self._echo) - self.text.given)
        if not echoes or not self.text.scores or not self._echo:
            return lists
        echoed = self.text.writer.echoed(self.text.scores, self._echo)
        return {name: echoed[name] + lists[name] for name in lists}


COMPLETION = partial(
    OpenAIReply, Kind("text_completion", "text_completion", CompletionChoice, shares_prompt=False)
)
