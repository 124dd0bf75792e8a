"""The reply to a request of OpenAI's, streamed or whole.

Owns what chats and completions have in common: the head of every event, errors, usage, timings.
Must never know how the text is made, or what a choice says about it. Invariant: the combined
choices of a stream's events are those of the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ... import __version__
from ...engine import Chunk, Progress, Usage
from ...tokens import Token
from ..call import Event
from ..errors import error_body
from .choice_text import ChoiceText, TextPlan
from .logprobs import TokenWriter
from .timings import prompt_progress, timings
from .usage import usage_json

FINGERPRINT = f"mlxgen-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """What replies to a request look like; the same for each of them.

    ``texts`` says for each job how its text is read; every prompt has ``choices`` of them.
    ``given`` tokens of each answer are the client's own. ``ids`` adds token ids, and all that is
    known about each token if ``logprobs`` are wanted. ``reasoning``: whether thoughts are returned.
    ``echoes`` come before each text, and ``prompts`` are the tokens of each prompt. ``silent``: the
    generated text is not returned. ``timings`` and ``progress``: whether to report the speed of the
    answer and the progress of the prompt.
    """

    model: str
    texts: Sequence[TextPlan]
    choices: int = 1
    given: int = 0
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    ids: bool = False
    reasoning: bool = True
    echoes: Sequence[str] = ()
    prompts: Sequence[Sequence[Token]] = ()
    prompt_logprobs: bool = False
    silent: bool = False
    timings: bool = False
    progress: bool = False
    params: Mapping[str, str] = field(default_factory=dict)

    def writer(self, text: TextPlan) -> TokenWriter:
        """What writes the tokens of a choice."""
        return TokenWriter(text.vocabulary, opens_text=text.opens_text and not text.skip)

    def timed(self, event: Event, rows: Sequence[Progress | None]) -> Event:
        """An event with the timings of these rows, if they are wanted and known."""
        known = [row for row in rows if row is not None]
        if self.timings and known:
            event["timings"] = timings(known, given=self.given)
        return event


class ReplyChoice(Protocol):
    """One choice as JSON: the objects of a stream, and that of a whole answer."""

    text: ChoiceText

    def opening(self) -> Event | None:
        """The choice in a stream before anything is generated."""
        ...

    def nothing(self) -> Event:
        """One that says nothing new."""
        ...

    def push(self, chunk: Chunk, usage: Usage | None) -> list[Event]:
        """Add a chunk; returns the objects for a stream, and nothing for a whole answer."""
        ...

    def whole(self) -> Event:
        """All of it."""
        ...

    def prompt(self) -> Event:
        """What a whole answer says about the prompt."""
        ...


class Kind(NamedTuple):
    """A kind of reply: what its events and its whole answer are called, and its choices.

    ``shares_prompt``: all choices are of one prompt, of which the answer itself speaks.
    """

    event: str
    whole: str
    choice: Callable[[ReplyPlan, int, str], ReplyChoice]
    shares_prompt: bool


class OpenAIReply:
    """A ``Reply`` of OpenAI's."""

    def __init__(self, plan: ReplyPlan, kind: Kind, id: str, created: int) -> None:
        self._plan = plan
        self._kind = kind
        self._head: Event = {
            "id": id,
            "object": kind.event if plan.stream else kind.whole,
            "created": created,
            "model": plan.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._choices = [kind.choice(plan, index, id) for index in range(len(plan.texts))]
        self._progress: list[Progress | None] = [None] * len(self._choices)

    def start(self) -> list[Event]:
        """As ``Reply.start``."""
        if not self._plan.stream:
            return []
        openings = (choice.opening() for choice in self._choices)
        return [self._event(opening) for opening in openings if opening is not None]

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        """As ``Reply.prefilled``."""
        if not self._plan.progress:
            return []
        event = self._event(self._choices[index].nothing())
        return [{**event, "prompt_progress": prompt_progress(progress)}]

    def push(
        self,
        index: int,
        chunk: Chunk,
        progress: Progress | None = None,
        usage: Usage | None = None,
    ) -> list[Event]:
        """As ``Reply.push``."""
        self._progress[index] = progress
        new = self._choices[index].push(chunk, usage)
        return [self._plan.timed(self._event(choice), [progress]) for choice in new]

    def fail(self, error: BaseException) -> Event:
        """As ``Reply.fail``."""
        return error_body(error, self._plan.params)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: the usage, if it was asked for."""
        if not self._plan.stream or not self._plan.include_usage:
            return []
        last = {**self._head, "choices": [], "usage": self._usage(usages)}
        return [self._plan.timed(last, self._progress)]

    def complete(self, usages: Sequence[Usage]) -> Event:
        """As ``Reply.complete``."""
        assert not self._plan.stream
        wholes = [choice.whole() for choice in self._choices]
        whole = {**self._head, "choices": wholes, "usage": self._usage(usages)}
        if self._kind.shares_prompt:
            whole |= self._choices[0].prompt()
        else:
            for each, choice in zip(wholes, self._choices, strict=True):
                each |= choice.prompt()
        return self._plan.timed(whole, self._progress)

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
        return usage_json(usages, choices=plan.choices, given=plan.given, reasoning=reasoning)
