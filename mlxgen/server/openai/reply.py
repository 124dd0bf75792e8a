"""The reply to a request of OpenAI's, streamed or whole: what chats and completions share.

Invariant: the combined choices of a stream's events are those of the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ... import __version__
from ...chat.events import Reasoning, Text
from ...engine import Chunk, Path, Progress, Usage
from ..call import Aside, Event, Sent
from ..errors import error_body
from ..http.responses import to_text
from ..timings import prompt_progress, queue_progress
from .choice_text import ChoiceText, Delta
from .plan import ReplyPlan
from .usage import still_alive, timed, usage_json

FINGERPRINT = f"mlxgen-{__version__}"
_GAP = "\0"  # in no name of a model


class ReplyChoice(Protocol):
    """One choice as JSON: the objects of a stream, and that of a whole answer of its ``text``."""

    text: ChoiceText

    def opening(self) -> Event | None:
        """The choice in a stream before anything is generated."""

    def nothing(self) -> Event:
        """One that says nothing new."""

    def events(self, delta: Delta) -> list[Event]:
        """Those that say what is new."""

    def whole(self, delta: Delta) -> Event:
        """All of it."""


class Kind(NamedTuple):
    """A kind of reply: what its events and its whole answer are called, and its choices.

    ``shares_prompt``: all choices are of one prompt, of which the answer itself speaks.
    """

    event: str
    whole: str
    choice: Callable[[ReplyPlan, int, str], ReplyChoice]
    shares_prompt: bool


class OpenAIReply:
    """A ``Reply`` of OpenAI's, and a ``BranchedReply``."""

    def __init__(self, kind: Kind, plan: ReplyPlan, id: str, created: int) -> None:
        self._plan = plan
        self._kind = kind
        self._head: Event = {
            "id": id,
            "object": kind.event if plan.stream else kind.whole,
            "created": created,
            "model": plan.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._choices: list[ReplyChoice] = []
        self._progress: list[Progress | None] = []
        self._facts: list[Event] = []
        self._id = id
        for _ in plan.questions if not plan.branched else ():
            self._add({})
        self._only_text = not (plan.logprobs or plan.ids or plan.timings)
        self._frames: dict[tuple[int, type[Text | Reasoning]], list[str]] = {}

    def _add(self, facts: Event) -> None:
        """Begin one more choice."""
        self._choices.append(self._kind.choice(self._plan, len(self._choices), self._id))
        self._progress.append(None)
        self._facts.append(facts)

    def opened(self, index: int, branch: Path) -> list[Event]:
        """As ``BranchedReply.opened``."""
        assert index == len(self._choices)
        facts = {"branch": list(branch)}
        self._add(facts)
        if not self._plan.stream:
            return []
        choice = self._choices[index]
        return [self._event({**(choice.opening() or choice.nothing()), **facts})]

    def learned(self, index: int, facts: Mapping[str, Any]) -> None:
        """As ``BranchedReply.learned``: a stream says it when the choice ends."""
        self._facts[index] |= facts

    def start(self) -> list[Event]:
        if not self._plan.stream or self._plan.branched:
            return []
        openings = (choice.opening() for choice in self._choices)
        return [self._event(opening) for opening in openings if opening is not None]

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        self._progress[index] = progress
        if not self._plan.progress:
            return []
        event = self._event(self._choices[index].nothing())
        return [{**event, "prompt_progress": prompt_progress(progress)}]

    def queued(self, index: int, ahead: int) -> list[Event]:
        """As ``QueuedReply.queued``."""
        if not self._plan.progress:
            return []
        event = self._event(self._choices[index].nothing())
        tokens = len(self._plan.question(index).prompt.tokens)
        return [{**event, "prompt_progress": queue_progress(tokens, ahead)}]

    def alive(self) -> list[Aside]:
        return [still_alive(self._plan, self._progress)]

    def push(
        self, index: int, chunk: Chunk, progress: Progress | None = None, usage: Usage | None = None
    ) -> Sequence[Sent]:
        if progress is not None:
            self._progress[index] = progress
        choice = self._choices[index]
        delta = choice.text.take(chunk, usage)
        if not self._plan.stream:
            return []
        if self._only_text and delta.finish is None and len(delta.events) == 1:
            [event] = delta.events
            if isinstance(event, (Text, Reasoning)):
                return self._more(index, event)
        events = choice.events(delta)
        if delta.finish is not None:
            events[-1] |= self._facts[index]
        return [timed(self._event(new), self._plan, [progress]) for new in events]

    def _more(self, index: int, event: Text | Reasoning) -> list[str]:
        """The events that say no more than a text, which is most of them: what is around the text
        is made once."""
        kind = type(event)
        frame = self._frames.get((index, kind))
        if frame is None:
            shown = self._choices[index].events(Delta([kind(_GAP)]))
            whole = "".join([to_text(self._event(new)) for new in shown])
            frame = self._frames[index, kind] = whole.split(to_text(_GAP))
        return [to_text(event.text).join(frame)] if len(frame) > 1 else []

    def fail(self, error: BaseException) -> Event:
        return error_body(error, self._plan.params)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: the usage, if it was asked for."""
        if not self._plan.stream or not self._plan.include_usage:
            return []
        last = {**self._head, "choices": [], "usage": self._usage(usages)}
        return [timed(last, self._plan, self._progress)]

    def complete(self, usages: Sequence[Usage]) -> Event:
        assert not self._plan.stream
        texts = [choice.text for choice in self._choices]
        wholes = [choice.whole(choice.text.whole) for choice in self._choices]
        for each, facts in zip(wholes, self._facts, strict=True):
            each |= facts
        whole = {**self._head, "choices": wholes, "usage": self._usage(usages)}
        if self._kind.shares_prompt:
            whole |= texts[0].prompt()
        else:
            for each, text in zip(wholes, texts, strict=True):
                each |= text.prompt()
        return timed(whole, self._plan, self._progress)

    def _event(self, choice: Event) -> Event:
        event = {**self._head, "choices": [choice]}
        if self._plan.include_usage:
            event["usage"] = None
        return event

    def _usage(self, usages: Sequence[Usage]) -> dict[str, Any]:
        plan = self._plan
        if plan.silent:
            usages = [replace(usage, completion_tokens=plan.given) for usage in usages]
        reasoning = sum(choice.text.reasoning_tokens for choice in self._choices)
        choices = len(usages) if plan.branched else plan.choices
        return usage_json(usages, choices=choices, given=plan.given, reasoning=reasoning)
