"""The reply to a chat request, streamed or whole.

Owns the JSON of ``chat.completion`` and ``chat.completion.chunk``. Must never know how the
text was made or cut. Invariant: the deltas of a stream, put together, are the whole answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...engine.chunk import Chunk, Progress, PromptScore, Usage
from ...tokens import Token
from .call import Event
from .choice_text import ChoiceText, Delta, Finish, TextPlan
from .errors import error_body
from .logprobs import TokenWriter
from .splitter import Span
from .timings import prompt_progress, timings
from .usage import usage_json

FINGERPRINT = f"mlxgen-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """What replies to a request look like; the same for each of them.

    ``texts`` says for each job how its text is read; every prompt has ``choices`` of them.
    ``given`` tokens of each answer are the client's own. ``ids`` adds token ids, and what is
    known of each token where ``logprobs`` are wanted. ``reasoning``: whether thoughts are given.
    ``echoes`` are what comes before each text, ``prompts`` the tokens of each prompt. ``silent``:
    what is generated is not given. ``timings`` and ``progress``: how fast the answer comes, and
    how far the prompt is, are.
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
        """An event with the timings of these rows, where they are wanted and known."""
        known = [row for row in rows if row is not None]
        if self.timings and known:
            event["timings"] = timings(known, given=self.given)
        return event


@dataclass(slots=True)
class _Choice:
    """A choice, and for a whole answer what it has so far."""

    text: ChoiceText
    writer: TokenWriter
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)  # of each call
    entries: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    scores: Sequence[PromptScore] = ()  # of the prompt
    called: int = 0
    progress: Progress | None = None  # the last that is known


class ChatReply:
    """A ``Reply`` to a chat request."""

    def __init__(self, plan: ReplyPlan, id: str, created: int) -> None:
        self._plan = plan
        self._id = id
        self._head: dict[str, Any] = {
            "id": id,
            "object": "chat.completion.chunk" if plan.stream else "chat.completion",
            "created": created,
            "model": plan.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._choices = [_Choice(ChoiceText(text), plan.writer(text)) for text in plan.texts]

    # ---- events --------------------------------------------------------------------------------

    def start(self) -> list[Event]:
        """As ``Reply.start``: each choice says who speaks."""
        if not self._plan.stream:
            return []
        role = {"role": "assistant", "content": "", "refusal": None}
        return [self._event(index, role) for index in range(len(self._choices))]

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        """As ``Reply.prefilled``."""
        if not self._plan.progress:
            return []
        return [{**self._event(index, {}), "prompt_progress": prompt_progress(progress)}]

    def push(self, index: int, chunk: Chunk, progress: Progress | None = None) -> list[Event]:
        """As ``Reply.push``."""
        choice = self._choices[index]
        choice.progress = progress
        choice.scores = chunk.prompt or choice.scores
        delta = choice.text.take(chunk)
        parts = self._parts(index, choice, delta.spans)
        extra = self._extra(choice, delta)
        if not self._plan.stream:
            self._keep(choice, parts, extra)
            return []
        if extra and not parts and delta.finish is None:
            parts = [{}]
        events = [self._event(index, part) for part in parts]
        if delta.finish is not None:
            events.append(self._event(index, {}, delta.finish))
        if extra:
            events[0]["choices"][0].update(extra)
        return [self._plan.timed(event, [progress]) for event in events]

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
        if self._plan.ids:
            whole["prompt_token_ids"] = list(self._plan.prompts[0])
        if self._plan.prompt_logprobs:
            first = self._choices[0]
            whole["prompt_logprobs"] = first.writer.prompt(first.scores)
        return self._plan.timed(whole, [choice.progress for choice in self._choices])

    # ---- their parts ---------------------------------------------------------------------------

    def _event(
        self, index: int, delta: dict[str, Any], finish: Finish | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        event = {**self._head, "choices": [choice]}
        if self._plan.include_usage:
            event["usage"] = None
        return event

    def _parts(self, index: int, choice: _Choice, spans: Sequence[Span]) -> list[dict[str, Any]]:
        """The deltas of some spans, in their order; neighbours of a kind are one."""
        parts: list[dict[str, Any]] = []
        for span in spans:
            if span.kind == "call":
                for delta in self._call_deltas(index, choice, span):
                    last = parts[-1].get("tool_calls") if parts else None
                    if last and "id" not in delta and last[0]["index"] == delta["index"]:
                        last[0]["function"]["arguments"] += delta["function"]["arguments"]
                    else:
                        parts.append({"tool_calls": [delta]})
                continue
            if span.kind == "reasoning" and not self._plan.reasoning:
                continue
            name = "content" if span.kind == "content" else "reasoning_content"
            if parts and name in parts[-1]:
                parts[-1][name] += span.text
            else:
                parts.append({name: span.text})
        return parts

    def _call_deltas(self, index: int, choice: _Choice, span: Span) -> Iterator[dict[str, Any]]:
        """The calls that a span begins, and more of the arguments of the last one."""
        for call in span.calls:
            function = {"name": call.name, "arguments": call.arguments}
            id = call.id or self._call_id(index, choice.called)
            yield {"index": choice.called, "id": id, "type": "function", "function": function}
            choice.called += 1
        if span.more:
            yield {"index": choice.called - 1, "function": {"arguments": span.more}}

    def _call_id(self, index: int, number: int) -> str:
        """A name for a call that no other call of any reply has."""
        seed = f"{self._id}/{index}/{number}".encode()
        return f"call_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"

    def _extra(self, choice: _Choice, delta: Delta) -> dict[str, Any]:
        """What a choice has beside its delta: log-probabilities and token ids."""
        extra: dict[str, Any] = {}
        if self._plan.ids and delta.ids:
            extra["token_ids"] = delta.ids
        if not self._plan.logprobs or not delta.tokens:
            return extra
        entry = choice.writer.chat_entry
        content = [entry(t, "content") for t in delta.tokens if "content" in t.parts]
        thoughts = []
        if self._plan.reasoning:
            thoughts = [entry(t, "reasoning") for t in delta.tokens if "reasoning" in t.parts]
        if content or thoughts:
            extra["logprobs"] = {"content": content or None, "refusal": None}
        if thoughts:
            extra["logprobs"]["reasoning_content"] = thoughts
        if self._plan.ids:
            extra["tokens"] = [choice.writer.full_entry(token) for token in delta.tokens]
        return extra

    def _keep(
        self, choice: _Choice, parts: Sequence[dict[str, Any]], extra: dict[str, Any]
    ) -> None:
        """Remember what a stream would have sent."""
        for part in parts:
            choice.content.append(part.get("content", ""))
            choice.reasoning.append(part.get("reasoning_content", ""))
            for call in part.get("tool_calls", ()):
                if "id" in call:
                    choice.calls.append(call)
                    choice.arguments.append([])
                choice.arguments[-1].append(call["function"]["arguments"])
        logprobs = extra.get("logprobs") or {}
        choice.entries.extend(logprobs.get("content") or ())
        choice.thoughts.extend(logprobs.get("reasoning_content") or ())
        choice.tokens.extend(extra.get("tokens", ()))
        choice.ids.extend(extra.get("token_ids", ()))

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        content, reasoning = "".join(choice.content), "".join(choice.reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": "".join(arguments)},
                }
                for call, arguments in zip(choice.calls, choice.arguments, strict=True)
            ]
        if reasoning:
            message["reasoning_content"] = reasoning
        whole: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": choice.text.finish,
        }
        if self._plan.logprobs:
            whole["logprobs"] = {"content": choice.entries, "refusal": None}
            if choice.thoughts:
                whole["logprobs"]["reasoning_content"] = choice.thoughts
            if self._plan.ids:
                whole["tokens"] = choice.tokens
        if self._plan.ids:
            whole["token_ids"] = choice.ids
        return whole

    def _usage(self, usages: Sequence[Usage]) -> dict[str, Any]:
        reasoning = sum(choice.text.reasoning_tokens for choice in self._choices)
        return usage_json(
            usages, choices=self._plan.choices, given=self._plan.given, reasoning=reasoning
        )
