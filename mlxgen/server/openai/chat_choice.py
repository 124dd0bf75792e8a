"""A choice of a chat's answer as JSON: the events of the chat, in OpenAI's words.

Owns the JSON of messages and their deltas. Must never know how the text was made or cut.
Invariant: the deltas of a stream, put together, are the whole message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ...chat.events import CallArguments, CallStarted, ChatEvent, Reasoning, Text
from ...engine import Chunk, PromptScore, Usage
from ..call import Event
from .choice_text import ChoiceText, Delta, Finish
from .reply import Kind, ReplyPlan

_PARTS = (Text, Reasoning)


class ChatChoice:
    """A ``ReplyChoice`` of a chat."""

    def __init__(self, plan: ReplyPlan, index: int, id: str) -> None:
        self._plan = plan
        self._index = index
        self._id = id
        self.text = ChoiceText(plan.texts[index], self._name_call)
        self._writer = plan.writer(plan.texts[index])
        self._scores: Sequence[PromptScore] = ()
        self._called = 0
        # For a whole answer: what a stream would have sent.
        self._parts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []  # of each call
        self._entries: list[dict[str, Any]] = []
        self._thoughts: list[dict[str, Any]] = []
        self._extras: dict[str, list[Any]] = {"tokens": [], "token_ids": []}

    def _name_call(self, number: int) -> str:
        """A name for a call, unique among all replies."""
        seed = f"{self._id}/{self._index}/{number}".encode()
        return f"call_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"

    # ---- streams -------------------------------------------------------------------------------

    def opening(self) -> Event:
        """As ``ReplyChoice.opening``: who speaks."""
        return self._choice({"role": "assistant", "content": "", "refusal": None})

    def nothing(self) -> Event:
        """As ``ReplyChoice.nothing``."""
        return self._choice({})

    def push(self, chunk: Chunk, usage: Usage | None) -> list[Event]:
        """As ``ReplyChoice.push``."""
        self._scores = chunk.prompt or self._scores
        delta = self.text.take(chunk, usage)
        parts = self._deltas(delta.events)
        extra = self._extra(delta)
        if not self._plan.stream:
            self._keep(parts, extra)
            return []
        if extra and not parts and delta.finish is None:
            parts = [{}]
        choices = [self._choice(part) for part in parts]
        if delta.finish is not None:
            choices.append(self._choice({}, delta.finish))
        if extra:
            choices[0].update(extra)
        return choices

    def _choice(self, delta: dict[str, Any], finish: Finish | None = None) -> Event:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _deltas(self, events: Sequence[ChatEvent]) -> list[dict[str, Any]]:
        """The deltas of some events, in their order; neighbours of a kind are one."""
        deltas: list[dict[str, Any]] = []
        for event in events:
            last = deltas[-1] if deltas else {}
            if isinstance(event, _PARTS):
                is_text = isinstance(event, Text)
                name = "content" if is_text else "reasoning_content"
                if name in last:
                    last[name] += event.text
                elif is_text or self._plan.reasoning:
                    deltas.append({name: event.text})
            elif isinstance(event, CallStarted):
                function = {"name": event.name, "arguments": ""}
                call = {"index": self._called, "id": event.id, "type": "function"}
                deltas.append({"tool_calls": [{**call, "function": function}]})
                self._called += 1
            elif isinstance(event, CallArguments) and "tool_calls" in last:
                last["tool_calls"][0]["function"]["arguments"] += event.text
            elif isinstance(event, CallArguments):
                more = {"index": self._called - 1, "function": {"arguments": event.text}}
                deltas.append({"tool_calls": [more]})
        return deltas

    def _extra(self, delta: Delta) -> dict[str, Any]:
        """What a choice has in addition to its delta: log-probabilities and token ids."""
        extra: dict[str, Any] = {}
        if self._plan.ids and delta.ids:
            extra["token_ids"] = delta.ids
        if not self._plan.logprobs or not delta.tokens:
            return extra
        entry = self._writer.chat_entry
        content = [entry(t, "content") for t in delta.tokens if "content" in t.parts]
        thoughts = []
        if self._plan.reasoning:
            thoughts = [entry(t, "reasoning") for t in delta.tokens if "reasoning" in t.parts]
        if content or thoughts:
            extra["logprobs"] = {"content": content or None, "refusal": None}
        if thoughts:
            extra["logprobs"]["reasoning_content"] = thoughts
        if self._plan.ids:
            extra["tokens"] = [self._writer.full_entry(token) for token in delta.tokens]
        return extra

    # ---- whole answers -------------------------------------------------------------------------

    def _keep(self, deltas: Sequence[dict[str, Any]], extra: dict[str, Any]) -> None:
        for delta in deltas:
            for name, texts in self._parts.items():
                texts.append(delta.get(name, ""))
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    self._calls.append(call)
                    self._arguments.append([])
                self._arguments[-1].append(call["function"]["arguments"])
        logprobs = extra.get("logprobs") or {}
        self._entries.extend(logprobs.get("content") or ())
        self._thoughts.extend(logprobs.get("reasoning_content") or ())
        for name, values in self._extras.items():
            values.extend(extra.get(name, ()))

    def whole(self) -> Event:
        """As ``ReplyChoice.whole``."""
        content, reasoning = map("".join, self._parts.values())
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": "".join(arguments)},
                }
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        if reasoning:
            message["reasoning_content"] = reasoning
        whole: dict[str, Any] = {
            "index": self._index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.text.finish,
        }
        if self._plan.logprobs:
            whole["logprobs"] = {"content": self._entries, "refusal": None}
            if self._thoughts:
                whole["logprobs"]["reasoning_content"] = self._thoughts
            if self._plan.ids:
                whole["tokens"] = self._extras["tokens"]
        if self._plan.ids:
            whole["token_ids"] = self._extras["token_ids"]
        return whole

    def prompt(self) -> Event:
        """As ``ReplyChoice.prompt``."""
        facts: Event = {}
        if self._plan.ids:
            facts["prompt_token_ids"] = list(self._plan.prompts[0])
        if self._plan.prompt_logprobs:
            facts["prompt_logprobs"] = self._writer.prompt(self._scores)
        return facts


CHAT = Kind("chat.completion.chunk", "chat.completion", ChatChoice, shares_prompt=True)
