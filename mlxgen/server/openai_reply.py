"""The reply to a request of OpenAI's: what chats and completions share.

Invariant: the combined choices of a stream's events are those of the whole answer, and they do not
depend on how chunks delay their text.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from .. import __version__
from ..chat.answer import AnswerReader
from ..chat.events import (
    CallArguments,
    CallStarted,
    ChatEvent,
    Ended,
    Reasoning,
    Retracted,
    Text,
    joined,
)
from ..engine import Chunk, Path, Progress, PromptScore, Usage, fold
from ..images import plain
from ..text import TextDecoder
from ..tokens import Token
from .ask import Ask
from .engine.mailbox import Delivery
from .errors import RequestError, error_body
from .generation import GenerationRequest
from .reply import Aside, Event, Sent, name_of, progress_of, timings
from .told_tokens import Reported, TokenReport, TokenWriter
from .wire import to_text

FINGERPRINT = f"mlxgen-{__version__}"
_GAP = "\0"  # in no name of a model
_NONE = Usage()

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]
_FINISHES: Mapping[str, Finish] = {"length": "length", "calls": "tool_calls"}

# ---- one choice ----------------------------------------------------------------------------------


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
    """Chunks in, deltas out.

    ``name_call`` is that of ``AnswerReader``. ``given`` are the characters of the client's prefix,
    which are not part of the answer. If text may be taken back and the client does not want to know
    (``allow_retract``), all of it is said at the end.
    """

    def __init__(
        self,
        request: GenerationRequest,
        ask: Ask,
        index: int,
        name_call: Callable[[int], str] = "call_{}".format,
    ) -> None:
        options, vocabulary = ask.options, ask.model.vocabulary
        self.question = question = ask.questions[0] if ask.steered else ask.asked[index]
        self.logprobs = options.top_logprobs is not None
        self.ids = bool(request.return_token_ids)
        self._prompt_logprobs = request.prompt_logprobs is not None
        self._silent = request.max_tokens == 0
        self._retracts = bool(request.allow_retract and ask.stream)
        # What goes back further than the tokens that are held is an error.
        late = ask.stream and options.hold_tokens > 0
        self._waits = options.allow_retract and not self._retracts and not late
        self._options = options
        opens_text = question.prompt.opens_text
        decoder = TextDecoder(vocabulary, strip=opens_text, skip=question.skip)
        for token in options.prefix:
            decoder.advance(token)
        self.given = decoder.end()
        self._decoder = decoder.fork()
        self._held: list[Chunk] = []
        self._report = TokenReport(decoder) if self.logprobs else None
        self._reader = AnswerReader(replace(question.reading, given=decoder.text), name_call)
        self.writer = TokenWriter(vocabulary, opens_text=opens_text and not question.skip)
        self.scores: Sequence[PromptScore] = ()

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens were thoughts."""
        return self._reader.reasoning_tokens

    def take(self, chunk: Chunk, usage: Usage | None = None) -> Delta:
        """What a chunk adds; the last one comes with ``usage``."""
        self.scores = chunk.prompt or self.scores
        if self._silent:
            over = chunk.finish_reason is not None
            finish: Literal["length"] | None = "length" if over else None
            chunk = replace(chunk, text="", token=None, finish_reason=finish, stop=None)
        delta = Delta()
        if not self._waits:
            if chunk.retract and not self._retracts:
                raise _sent_already(self._options.hold_tokens)
            self._read(delta, chunk, usage)
            return delta
        self._held.append(chunk)
        if chunk.finish_reason is not None:
            for each in settled(self._held, self._decoder, self._options.prefix):
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
        marks: dict[str, Any] = dict(delta.retractions) if self._retracts else {}
        if self.ids and delta.ids:
            marks["token_ids"] = delta.ids
        if self.ids and delta.tokens:
            marks["tokens"] = [self.writer.full_entry(token) for token in delta.tokens]
        return marks

    def prompt(self) -> dict[str, Any]:
        """What a whole answer says about the prompt."""
        facts: dict[str, Any] = {}
        if self.ids:
            facts["prompt_token_ids"] = plain(self.question.prompt.tokens)
        if self._prompt_logprobs:
            facts["prompt_logprobs"] = self.writer.prompt(self.scores)
        return facts


def settled(
    chunks: Sequence[Chunk], decoder: TextDecoder, prefix: tuple[Token, ...] = ()
) -> Iterator[Chunk]:
    """The chunks of all tokens that stayed, each with its own text, as if others had never been
    there.

    ``decoder`` has taken the ``prefix``, of which the chunks have no text.
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


# ---- all of them ---------------------------------------------------------------------------------


AnyChoice: TypeAlias = "ChatChoice | CompletionChoice"


class Kind(NamedTuple):
    """A kind of reply: what its events and its whole answer are called, and its choices.

    ``shares_prompt``: all choices are of one prompt, of which the answer itself speaks.
    """

    event: str
    whole: str
    choice: Callable[[GenerationRequest, Ask, int, str], AnyChoice]
    shares_prompt: bool


class OpenAIReply:
    """A ``Reply`` of OpenAI's. If a program writes the text, its branches are the choices."""

    def __init__(
        self, kind: Kind, request: GenerationRequest, ask: Ask, id: str, created: int
    ) -> None:
        self._kind = kind
        self._request = request
        self._ask = ask
        self._id = id
        wanted = request.stream_options and request.stream_options.include_usage
        self._tells_usage = bool(wanted) or not ask.stream
        self._reports = bool(request.return_progress and ask.stream)
        self._head: Event = {
            "id": id,
            "object": kind.event,
            "created": created,
            "model": ask.model.name,
            "system_fingerprint": FINGERPRINT,
        }
        self._choices: list[AnyChoice] = []
        self._progress: list[Progress | None] = []
        self._facts: list[Event] = []
        for _ in ask.asked if ask.steered is None else ():
            self._add({})
        told = ask.options.top_logprobs is not None or request.return_token_ids
        self._only_text = ask.stream and not (told or request.timings_per_token)
        self._frames: dict[tuple[int, type[Text | Reasoning]], list[str]] = {}
        self._whole: Event = {}

    def _add(self, facts: Event) -> None:
        """Begin one more choice."""
        choice = self._kind.choice(self._request, self._ask, len(self._choices), self._id)
        self._choices.append(choice)
        self._progress.append(None)
        self._facts.append(facts)

    def start(self) -> list[Event]:
        """As ``Reply.start``: the choices, unless they come up one by one."""
        if self._ask.steered is not None:
            return []
        openings = (choice.opening() for choice in self._choices)
        return [self._event(opening) for opening in openings if opening is not None]

    def take(self, news: Delivery) -> Sequence[Sent]:
        """As ``Reply.take``; of a branch, a stream says its facts when the choice ends."""
        index, sent = news.place, list[Sent]()
        if news.branch is not None:
            sent.append(self._opened(index, news.branch))
        if news.facts is not None:
            self._facts[index] |= news.facts
        if news.progress is not None:
            self._progress[index] = news.progress
        choice = self._choices[index]
        for chunk in news.chunks:
            sent += self._said(index, choice, choice.text.take(chunk, news.usage), news.progress)
        if self._reports and not news.chunks:
            progress = progress_of(news, len(choice.text.question.prompt.tokens))
            sent += [{**self._event(choice.nothing()), **told} for told in progress]
        return sent

    def _opened(self, index: int, branch: Path) -> Event:
        assert index == len(self._choices)
        facts = {"branch": list(branch)}
        self._add(facts)
        choice = self._choices[index]
        return self._event({**(choice.opening() or choice.nothing()), **facts})

    def _said(
        self,
        index: int,
        choice: AnyChoice,
        delta: Delta,
        progress: Progress | None,
    ) -> Sequence[Sent]:
        if self._only_text and delta.finish is None and len(delta.events) == 1:
            [event] = delta.events
            if isinstance(event, (Text, Reasoning)):
                return self._more(index, event)
        events = choice.events(delta)
        if delta.finish is not None:
            events[-1] |= self._facts[index]
        return [timed(self._event(new), self._request, self._ask, [progress]) for new in events]

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

    def alive(self) -> list[Aside]:
        return [still_alive(self._ask, self._progress)]

    def fail(self, error: BaseException) -> Event:
        return error_body(error, self._ask.names)[1]

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """As ``Reply.finish``: the usage, if it was asked for."""
        if not self._tells_usage:
            return []
        last = {**self._head, "choices": [], "usage": self._usage(usages)}
        return [timed(last, self._request, self._ask, self._progress)]

    def fold(self, event: Event) -> None:
        grow(self._whole, event)

    def whole(self) -> Event:
        whole = grown(self._whole)
        choices = []
        for choice, facts, folded in zip(self._choices, self._facts, whole["choices"], strict=True):
            text = choice.text
            empty: Event = {"token_ids": []} if text.ids else {}
            empty |= {"tokens": []} if text.ids and text.logprobs else {}
            own = {} if self._kind.shares_prompt else text.prompt()
            choices.append({**empty, **choice.whole(folded), **facts, **own})
        first = choices and self._kind.shares_prompt
        shared = self._choices[0].text.prompt() if first else {}
        return {**whole, "object": self._kind.whole, "choices": choices, **shared}

    def _event(self, choice: Event) -> Event:
        event = {**self._head, "choices": [choice]}
        if self._tells_usage:
            event["usage"] = None
        return event

    def _usage(self, usages: Sequence[Usage]) -> dict[str, Any]:
        ask, given = self._ask, len(self._ask.options.prefix)
        if self._request.max_tokens == 0:  # what was generated is not returned
            usages = [replace(usage, completion_tokens=given) for usage in usages]
        reasoning = sum(choice.text.reasoning_tokens for choice in self._choices)
        choices = ask.answers if ask.steered is None else len(usages)
        return usage_json(usages, choices=choices, given=given, reasoning=reasoning)


def usage_json(
    usages: Sequence[Usage], *, choices: int, given: int, reasoning: int
) -> dict[str, Any]:
    """The tokens of an answer: a prompt that several choices share is counted once, and tokens that
    the client sent as generated, ``given`` to each choice, belong to it."""
    firsts = usages[::choices]
    prompt = sum(usage.prompt_tokens + given for usage in firsts)
    completion = sum(usage.completion_tokens - given for usage in usages)
    drafted = sum(usage.drafted_tokens for usage in usages)
    accepted = sum(usage.accepted_draft_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in firsts),
        },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "timings": timings(usages, given=given),
    }


def still_alive(ask: Ask, sequences: Sequence[Progress | None]) -> Aside:
    """A sign of life, with how much of the prompts was run, as mlx-lm has it."""
    run = sum(one.prefilled for one in sequences if one is not None)
    return Aside(f": keepalive {run}/{sum(len(each.prompt.tokens) for each in ask.asked)}")


def timed(
    event: Event, request: GenerationRequest, ask: Ask, sequences: Sequence[Progress | None]
) -> Event:
    """An event with the timings of these sequences, if they are wanted and known."""
    if request.timings_per_token:
        known = [one.usage for one in sequences if one is not None]
        if known:
            queued = max(usage.queued_seconds for usage in known)
            given = len(ask.options.prefix)
            told = timings(known, given=given) | {"queued_ms": round(1e3 * queued, 3)}
            event["timings"] = told
    return event


# ---- a choice of a chat, and of a completion ----------------------------------------------------


class ChatChoice:
    """A choice of a chat; ``thinks``: thoughts are shown."""

    def __init__(
        self, request: GenerationRequest, ask: Ask, index: int, id: str, *, thinks: bool = True
    ) -> None:
        self._index = index
        self.text = ChoiceText(request, ask, index, partial(name_of, "call", id, index))
        self._called = 0
        self._thinks = thinks
        self._shown = (Text, CallStarted, CallArguments, *((Reasoning,) if thinks else ()))

    def opening(self) -> Event:
        """The choice before anything is generated: who speaks."""
        return self._choice({"role": "assistant", "content": "", "refusal": None})

    def nothing(self) -> Event:
        """One that says nothing new."""
        return self._choice({})

    def events(self, delta: Delta) -> list[Event]:
        """Those that say what is new."""
        extra = self.text.marks(delta)
        if self.text.logprobs:
            logprobs = self._logprobs(delta)
            if logprobs["content"] or "reasoning_content" in logprobs:
                extra["logprobs"] = {**logprobs, "content": logprobs["content"] or None}
        parts = self._deltas(delta)
        if extra and not parts and delta.finish is None:
            parts = [{}]
        choices = [self._choice(part) for part in parts]
        if delta.finish is not None:
            choices.append(self._choice({}, delta.finish))
        if extra:
            choices[0].update(extra)
        return choices

    def whole(self, folded: Event) -> Event:
        """The choice of a whole answer, for all that its events said."""
        delta = folded.pop("delta")
        content, calls = delta.get("content") or "", delta.get("tool_calls")
        message: Event = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            for call in calls:
                del call["index"]
            message |= {"content": content or None, "tool_calls": calls}
        if delta.get("reasoning"):
            message |= _told(delta["reasoning"])
        if self.text.logprobs:
            told = folded["logprobs"] or {"refusal": None}
            folded["logprobs"] = {**told, "content": told.get("content") or []}
        return {**folded, "message": message}

    def _choice(self, delta: dict[str, Any], finish: Finish | None = None) -> Event:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _deltas(self, delta: Delta) -> list[dict[str, Any]]:
        """The messages' deltas, in the order of their events; neighbours of a kind are one."""
        deltas: list[dict[str, Any]] = []
        for event in joined([e for e in delta.events if isinstance(e, self._shown)]):
            if isinstance(event, Text):
                deltas.append({"content": event.text})
            elif isinstance(event, Reasoning):
                deltas.append(_told(event.text))
            elif isinstance(event, CallStarted):
                call = {"index": self._called, "id": event.id, "type": "function"}
                function = {"name": event.name, "arguments": ""}
                deltas.append({"tool_calls": [{**call, "function": function}]})
                self._called += 1
            elif isinstance(event, CallArguments) and deltas and "tool_calls" in deltas[-1]:
                deltas[-1]["tool_calls"][0]["function"]["arguments"] = event.text
            elif isinstance(event, CallArguments):
                more = {"index": self._called - 1, "function": {"arguments": event.text}}
                deltas.append({"tool_calls": [more]})
        return deltas

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        """The entries of the tokens in each part that is returned."""
        entry = self.text.writer.chat_entry
        content = [entry(t, "content") for t in delta.tokens if "content" in t.parts]
        logprobs: dict[str, Any] = {"content": content, "refusal": None}
        if self._thinks:
            thoughts = [entry(t, "reasoning") for t in delta.tokens if "reasoning" in t.parts]
            logprobs |= {"reasoning_content": thoughts} if thoughts else {}
        return logprobs


def _told(text: str) -> Event:
    """Thoughts under both names by which clients look for them."""
    return {"reasoning_content": text, "reasoning": text}


class CompletionChoice:
    """The same of a completion."""

    def __init__(self, request: GenerationRequest, ask: Ask, index: int, id: str) -> None:
        self._index = index
        self.text = ChoiceText(request, ask, index)
        self._echo = self.text.question.echo
        self._began = False

    def opening(self) -> Event | None:
        """As of a chat: the prompt, if it is to be echoed.

        With log-probabilities it comes with the first chunk, which has the prompt's own.
        """
        return self._choice(self._echo) if self._echo and not self.text.logprobs else None

    def nothing(self) -> Event:
        return self._choice("")

    def events(self, delta: Delta) -> list[Event]:
        text, extra = delta.text, self.text.marks(delta)
        if self.text.logprobs:
            is_first, self._began = not self._began, True
            if is_first:
                text = self._echo + text
            if delta.tokens or (is_first and self.text.scores):
                extra["logprobs"] = self._logprobs(delta.tokens, echoes=is_first)
        if not text and not extra and delta.finish is None:
            return []
        return [{**self._choice(text, delta.finish), **extra}]

    def whole(self, folded: Event) -> Event:
        if self.text.logprobs and folded["logprobs"] is None:
            folded["logprobs"] = self._logprobs([], echoes=True)
        return folded

    def _choice(self, text: str, finish: Finish | None = None) -> Event:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, reported: Sequence[Reported], *, echoes: bool) -> dict[str, Any]:
        """The four lists of the text, after those of an echo."""
        lists = self.text.writer.legacy(reported, len(self._echo) - self.text.given)
        if not echoes or not self.text.scores or not self._echo:
            return lists
        echoed = self.text.writer.echoed(self.text.scores, self._echo)
        return {name: echoed[name] + lists[name] for name in lists}


CHATS = Kind("chat.completion.chunk", "chat.completion", ChatChoice, shares_prompt=True)
THOUGHTLESS = CHATS._replace(choice=partial(ChatChoice, thinks=False))
TEXTS = Kind("text_completion", "text_completion", CompletionChoice, shares_prompt=False)

# ---- the fold of events --------------------------------------------------------------------------

_TEXTS = frozenset({"content", "reasoning_content", "reasoning", "text", "arguments"})
_BY_INDEX = frozenset({"choices", "tool_calls"})
_OBJECTS = frozenset({"delta", "function", "logprobs"})
_LISTS = frozenset(
    {"content", "reasoning_content", "tokens", "token_ids", "completion_probabilities"}
    | {"token_logprobs", "top_logprobs", "text_offset"}
)


def grow(whole: Event, event: Mapping[str, Any]) -> None:
    """Put an event together with those before: texts and lists go on, choices and calls are found
    by their index, and of anything else the last one counts."""
    for name, value in event.items():
        old = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif name in _BY_INDEX:
            items = whole.setdefault(name, {})
            for item in value:
                grow(items.setdefault(item["index"], {}), item)
        elif name in _OBJECTS:
            if old is None:
                old = whole[name] = {}
            grow(old, value)
        elif name in _LISTS and isinstance(value, list):
            if old is None:
                old = whole[name] = []
            old += value
        elif name in _TEXTS and isinstance(value, str):
            if old is None:
                old = whole[name] = io.StringIO()
            old.write(value)
        else:
            whole[name] = value


def grown(whole: Mapping[str, Any]) -> Event:
    """What has grown, as JSON."""
    found: Event = {}
    for name, value in whole.items():
        if isinstance(value, io.StringIO):
            found[name] = value.getvalue()
        elif name in _BY_INDEX:
            found[name] = [grown(value[index]) for index in sorted(value)]
        elif name in _OBJECTS and value is not None:
            found[name] = grown(value)
        else:
            found[name] = value
    return found
