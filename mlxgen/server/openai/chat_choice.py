"""A choice of a chat's answer as JSON: the events of the chat, in OpenAI's words.

Invariant: the deltas of a stream, put together, are the whole message.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from ...chat.events import CallArguments, CallStarted, Reasoning, Text, joined
from ..call import Event
from .choice_text import ChoiceText, Delta, Finish
from .plan import ReplyPlan
from .reply import Kind, OpenAIReply


class ChatChoice:
    """A ``ReplyChoice`` of a chat."""

    def __init__(self, plan: ReplyPlan, index: int, id: str) -> None:
        self._plan = plan
        self._index = index
        self._id = id
        self.text = ChoiceText(plan, index, self._name_call)
        self._called = 0
        self._shown = (Text, CallStarted, CallArguments, *((Reasoning,) if plan.reasoning else ()))

    def _name_call(self, number: int) -> str:
        """A name for a call, unique among all replies."""
        seed = f"{self._id}/{self._index}/{number}".encode()
        return f"call_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"

    def opening(self) -> Event:
        """As ``ReplyChoice.opening``: who speaks."""
        return self._choice({"role": "assistant", "content": "", "refusal": None})

    def nothing(self) -> Event:
        return self._choice({})

    def events(self, delta: Delta) -> list[Event]:
        extra = self.text.marks(delta)
        if self._plan.logprobs:
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

    def whole(self, delta: Delta) -> Event:
        parts = self._deltas(delta)
        content, reasoning = (
            "".join([part.get(name, "") for part in parts])
            for name in ("content", "reasoning_content")
        )
        calls = [call for part in parts for call in part.get("tool_calls", ())]
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            for call in calls:
                del call["index"]
            message |= {"content": content or None, "tool_calls": calls}
        if reasoning:
            message |= _thoughts(reasoning)
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs(delta) if self._plan.logprobs else None,
            "finish_reason": delta.finish,
            **self.text.marks(delta),
        }

    def _choice(self, delta: dict[str, Any], finish: Finish | None = None) -> Event:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _deltas(self, delta: Delta) -> list[dict[str, Any]]:
        """The messages' deltas, in the order of their events; neighbours of a kind are one."""
        deltas: list[dict[str, Any]] = []
        for event in joined([e for e in delta.events if isinstance(e, self._shown)]):
            if isinstance(event, Text):
                deltas.append({"content": event.text})
            elif isinstance(event, Reasoning):
                deltas.append(_thoughts(event.text))
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
        if self._plan.reasoning:
            thoughts = [entry(t, "reasoning") for t in delta.tokens if "reasoning" in t.parts]
            logprobs |= {"reasoning_content": thoughts} if thoughts else {}
        return logprobs


def _thoughts(text: str) -> Event:
    """Thoughts under both names by which clients look for them."""
    return {"reasoning_content": text, "reasoning": text}


CHAT = partial(
    OpenAIReply, Kind("chat.completion.chunk", "chat.completion", ChatChoice, shares_prompt=True)
)
