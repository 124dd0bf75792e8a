"""Replies made of choices: the common part of chats, completions and llama.cpp's completions.

Invariant: the choices of a stream's events, combined, are those of the whole answer, and they do
not depend on how long chunks hold text back.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from .. import __version__
from ..chat.answer import AnswerReader
from ..chat.events import ChatEvent, Ended, Reasoning, Retracted, Text
from ..engine import Chunk, Progress, PromptScore, Usage, fold
from ..images import plain
from ..text import TextDecoder
from ..tokens import Token
from .ask import Ask
from .errors import RequestError, error_body
from .generation import GenerationRequest
from .reply import Aside, Delivery, Event, Sent, name_of, progress_of, timings, used_of
from .told_tokens import Reported, TokenReport, TokenWriter

FINGERPRINT = f"mlxgen-{__version__}"
_NONE = Usage()

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]
_FINISHES: Mapping[str, Finish] = {"length": "length", "calls": "tool_calls"}

# ---- one choice ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Delta:
    """The news of a choice: events, and tokens that are complete; ``last`` ends it."""

    events: list[ChatEvent] = field(default_factory=list)
    tokens: list[Reported] = field(default_factory=list)
    ids: list[Token] = field(default_factory=list)
    last: Ended | None = None

    @property
    def text(self) -> str:
        """The new text of the answer alone."""
        return "".join([event.text for event in self.events if isinstance(event, Text)])

    @property
    def finish(self) -> Finish | None:
        """Why the choice ends, if it does."""
        return None if self.last is None else _FINISHES.get(self.last.reason, "stop")


class Choice(ABC):
    """One sequence of an answer: chunks in, events out. Each API defines the form of the events.

    - ``progress``: the newest known; ``facts``: what the choice's last event adds.
    - ``given``: the number of characters of the client's prefix, which are not part of the answer.
    - ``logprobs``, ``ids`` and ``marked``: what is reported besides the text.

    If text may be taken back but the client takes no retractions (``allow_retract``), all text is
    sent at the end.
    """

    def __init__(self, request: GenerationRequest, ask: Ask, index: int, id: str) -> None:
        options, vocabulary = ask.options, ask.model.dialect.vocabulary
        self.request, self.ask, self.index = request, ask, index
        self.progress: Progress | None = None
        self.facts: Event = {}
        self.question = question = ask.questions[0 if ask.steered else index // ask.answers]
        self.logprobs = options.top_logprobs is not None
        self.ids = bool(request.return_token_ids)
        self._retracts = bool(request.allow_retract and ask.stream)
        self.marked = self.ids or self._retracts
        # With tokens held back, text is sent, and taking back more than these tokens is an error.
        late = ask.stream and options.hold_tokens > 0
        self._waits = options.allow_retract and not self._retracts and not late
        opens_text = question.prompt.opens_text
        decoder = TextDecoder(vocabulary, strip=opens_text, skip=question.skip)
        for token in options.prefix:
            decoder.advance(token)
        self.given = decoder.end()
        self._decoder = decoder.fork()
        self._held: list[Chunk] = []
        self._report = TokenReport(decoder) if self.logprobs else None
        reading = replace(question.reading, given=decoder.text)
        self._reader = AnswerReader(reading, partial(name_of, "call", id, index))
        self.writer = TokenWriter(vocabulary, opens_text=opens_text and not question.skip)
        self.scores: Sequence[PromptScore] = ()

    # ---- for each API to define

    def opening(self) -> Event | None:
        """The event of the choice before anything is generated, if the API has one."""
        return None

    @abstractmethod
    def nothing(self) -> Event:
        """An event of the choice without news."""

    @abstractmethod
    def events(self, delta: Delta) -> list[Event]:
        """The events of the choice for its news."""

    def whole(self, folded: Event) -> Event:
        """The choice in a whole answer, from the fold of its events."""
        return folded

    # ---- shared by all APIs

    @property
    def reasoning_tokens(self) -> int:
        """The number of reasoning tokens."""
        return self._reader.reasoning_tokens

    def take(self, chunk: Chunk, usage: Usage | None = None) -> list[Event]:
        """The events for a chunk; the last chunk comes with ``usage``."""
        self.scores = chunk.prompt or self.scores
        if self.request.max_tokens == 0:
            over = chunk.finish_reason is not None
            finish: Literal["length"] | None = "length" if over else None
            chunk = replace(chunk, text="", token=None, finish_reason=finish, stop=None)
        chunks: Sequence[Chunk] = [chunk]
        if self._waits:
            self._held.append(chunk)
            over = chunk.finish_reason is not None
            whole = settled(self._held, self._decoder, self.ask.options.prefix) if over else ()
            chunks = list(whole)
        elif chunk.retract and not self._retracts:
            raise _sent_already(self.ask.options.hold_tokens)
        delta, report = Delta(), self._report
        for chunk in chunks:
            if report is not None:
                report.add(chunk)
            events, spans = self._reader.push(chunk, usage or _NONE)
            delta.events += events
            if chunk.token is not None:
                delta.ids.append(chunk.token)
            if report is not None:
                for span in spans:
                    delta.tokens.extend(report.cover(span))
        if delta.events and isinstance(last := delta.events[-1], Ended):
            delta.last = last
            delta.tokens.extend(report.finish() if report is not None else ())
        told = self.events(delta)
        if delta.last is not None:
            told[-1] |= self.facts
        return told

    def marks(self, delta: Delta) -> dict[str, Any]:
        """The number of sent characters that a delta takes back, and the ids and details of its
        tokens, as far as the client wants them."""
        marks: dict[str, Any] = {}
        for event in delta.events if self._retracts else ():
            if isinstance(event, Retracted) and isinstance(event.event, (Text, Reasoning)):
                name = "retract" if isinstance(event.event, Text) else "retract_reasoning"
                marks[name] = marks.get(name, 0) + len(event.event.text)
        if self.ids and delta.ids:
            marks["token_ids"] = delta.ids
        if self.ids and delta.tokens:
            marks["tokens"] = [self.writer.full_entry(token) for token in delta.tokens]
        return marks

    def prompt(self) -> dict[str, Any]:
        """The fields of a whole answer about the prompt."""
        facts: dict[str, Any] = {}
        if self.ids:
            facts["prompt_token_ids"] = plain(self.question.prompt.tokens)
        if self.request.prompt_logprobs is not None:
            facts["prompt_logprobs"] = self.writer.prompt(self.scores)
        return facts


def settled(
    chunks: Sequence[Chunk], decoder: TextDecoder, prefix: tuple[Token, ...] = ()
) -> Iterator[Chunk]:
    """The chunks of the tokens that were not taken back, each with its own text, as if the others
    had never been generated.

    ``decoder`` has already taken the ``prefix``, whose text the chunks do not have.
    """
    whole = fold(chunks, Usage(), prefix)
    start, at = decoder.end(), 0
    for place, chunk in enumerate(whole.chunks, 1):
        if chunk.token is not None:
            decoder.advance(chunk.token)
        end = len(whole.text) if place == len(whole.chunks) else decoder.end() - start
        text = whole.text[at:end]
        at += len(text)
        yield replace(chunk, text=text, retract=0)


def _sent_already(held: int) -> RequestError:
    return RequestError(
        f"hold_tokens: text was taken back that had been sent, as only {held} tokens are held; "
        "hold more of them, leave it out, or send allow_retract",
        status=500,
        param="hold_tokens",
        code="program_failed",
    )


# ---- all choices ---------------------------------------------------------------------------------


class ChoicesReply:
    """A ``Reply`` of choices. If a program writes the text, its branches are the choices.

    Each API sets the ``object`` of its events and of its whole answer, and the class of its
    choices; ``shares_prompt``: all choices have the same prompt, which the answer itself reports.
    """

    event = whole_event = "text_completion"
    choice: type[Choice]
    shares_prompt = False

    def __init__(self, request: GenerationRequest, ask: Ask, id: str, created: int) -> None:
        self._request = request
        self._ask = ask
        self._id = id
        wanted = request.stream_options and request.stream_options.include_usage
        self._tells_usage = bool(wanted) or not ask.stream
        self._reports = bool(request.return_progress and ask.stream)
        self._times = bool(request.timings_per_token)
        self._head: Event = {
            "id": id,
            "object": self.event,
            "created": created,
            "model": ask.name,
            "system_fingerprint": FINGERPRINT,
        }
        count = len(ask.questions) * ask.answers if ask.steered is None else 0
        self._choices = [self.choice(request, ask, index, id) for index in range(count)]
        self._whole: Event = {}

    def start(self) -> list[Event]:
        """As ``Reply.start``: an opening for each choice known by now."""
        openings = [choice.opening() for choice in self._choices]
        return [self._event(opening) for opening in openings if opening is not None]

    def take(self, news: Delivery) -> Sequence[Sent]:
        """As ``Reply.take``; a stream reports the facts of a branch when its choice ends."""
        sent = list[Sent]()
        if news.branch is not None:
            choice = self.choice(self._request, self._ask, len(self._choices), self._id)
            self._choices.append(choice)
            choice.facts = {"branch": list(news.branch)}
            sent.append(self._event({**(choice.opening() or choice.nothing()), **choice.facts}))
        choice = self._choices[news.place]
        choice.facts |= news.facts or {}
        choice.progress = news.progress or choice.progress
        for chunk in news.chunks:
            for new in choice.take(chunk, news.usage):
                event = self._event(new)
                sent.append(self._timed(event, [news.progress]) if self._times else event)
        if self._reports and not news.chunks:
            progress = progress_of(news, len(choice.question.prompt.tokens))
            sent += [{**self._event(choice.nothing()), **told} for told in progress]
        return sent

    def alive(self) -> list[Aside]:
        """As ``Reply.alive``: how much of the prompts has been run, in mlx-lm's form."""
        run = sum(each.progress.prefilled for each in self._choices if each.progress is not None)
        whole = sum(len(each.prompt.tokens) for each in self._ask.questions) * self._ask.answers
        return [Aside(f": keepalive {run}/{whole}")]

    def fail(self, error: BaseException) -> Event:
        return error_body(error, self._ask.names)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: the usage, if it was asked for."""
        if not self._tells_usage:
            return []
        ask, given = self._ask, len(self._ask.options.prefix)
        if self._request.max_tokens == 0:  # what was generated is not returned
            usages = [replace(usage, completion_tokens=given) for usage in usages]
        used = used_of(
            usages,
            choices=ask.answers if ask.steered is None else len(usages),
            given=given,
            reasoning=sum(choice.reasoning_tokens for choice in self._choices),
        )
        told = {
            "prompt_tokens": used.prompt,
            "completion_tokens": used.completion,
            "total_tokens": used.prompt + used.completion,
            "prompt_tokens_details": {"cached_tokens": used.cached},
            "completion_tokens_details": {
                "reasoning_tokens": used.reasoning,
                "accepted_prediction_tokens": used.accepted,
                "rejected_prediction_tokens": used.drafted - used.accepted,
            },
            "timings": timings(usages, given=given),
        }
        last = {**self._head, "choices": [], "usage": told}
        if self._times:
            last = self._timed(last, [choice.progress for choice in self._choices])
        return [last]

    def fold(self, event: Event) -> None:
        grow(self._whole, event)

    def whole(self) -> Any:
        whole, choices = grown(self._whole), []
        for choice, folded in zip(self._choices, whole["choices"], strict=True):
            empty: Event = {"token_ids": []} if choice.ids else {}
            empty |= {"tokens": []} if choice.ids and choice.logprobs else {}
            own = {} if self.shares_prompt else choice.prompt()
            choices.append({**empty, **choice.whole(folded), **choice.facts, **own})
        shared = self._choices[0].prompt() if choices and self.shares_prompt else {}
        return {**whole, "object": self.whole_event, "choices": choices, **shared}

    def _event(self, choice: Event) -> Event:
        event = {**self._head, "choices": [choice]}
        if self._tells_usage:
            event["usage"] = None
        return event

    def _timed(self, event: Event, sequences: Sequence[Progress | None]) -> Event:
        """An event with the timings of these sequences, if known."""
        known = [one.usage for one in sequences if one is not None]
        if known:
            queued = max(usage.queued_seconds for usage in known)
            told = timings(known, given=len(self._ask.options.prefix))
            event["timings"] = told | {"queued_ms": round(1e3 * queued, 3)}
        return event


# ---- the fold of events --------------------------------------------------------------------------

_TEXTS = frozenset({"content", "reasoning_content", "reasoning", "text", "arguments"})
_BY_INDEX = frozenset({"choices", "tool_calls"})
_FACTS = frozenset({"branch", "usage", "timings", "generation_settings"})


def grow(whole: Event, event: Mapping[str, Any]) -> None:
    """Fold an event into those before it: texts and lists are appended, choices and calls are found
    by their index, and for anything else the last value counts."""
    for name, value in event.items():
        old = whole.get(name)
        if name in _BY_INDEX:
            items = whole.setdefault(name, {})
            for item in value:
                grow(items.setdefault(item["index"], {}), item)
        elif name in _FACTS or not isinstance(value, (dict, list, str)):
            if value is not None or old is None:
                whole[name] = value
        elif isinstance(value, dict):
            if old is None:
                old = whole[name] = {}
            grow(old, value)
        elif isinstance(value, list):
            whole[name] = old if old is not None else []
            whole[name] += value
        elif name in _TEXTS:
            if old is None:
                old = whole[name] = io.StringIO()
            old.write(value)
        else:
            whole[name] = value


def grown(whole: Mapping[str, Any]) -> Event:
    """The result of ``grow``, as JSON."""
    found: Event = {}
    for name, value in whole.items():
        if isinstance(value, io.StringIO):
            found[name] = value.getvalue()
        elif name in _BY_INDEX:
            found[name] = [grown(value[index]) for index in sorted(value)]
        elif isinstance(value, dict) and name not in _FACTS:
            found[name] = grown(value)
        else:
            found[name] = value
    return found
