"""The reply to a request of Anthropic's Messages API."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from ..chat.answer import AnswerReader
from ..chat.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ChatEvent,
    Ended,
    Reasoning,
    Text,
)
from ..engine import Usage
from .ask import Ask
from .engine.mailbox import Delivery
from .errors import as_messages_error, error_body
from .reply import Aside, Event, Sent, name_of, prompt_progress, timings
from .wire import to_text

_REASONS = {"length": "max_tokens", "calls": "tool_use"}


class MessagesReply:
    """A ``Reply``. ``stops`` are the client's own; ``thinks``: thoughts are shown."""

    def __init__(
        self, ask: Ask, id: str, created: int, *, stops: Collection[str], thinks: bool
    ) -> None:
        [question] = ask.questions
        self._ask = ask
        self._stops = frozenset(stops)
        self._thinks = thinks
        self._begun = False
        self._id = id
        self._reader = AnswerReader(question.reading, partial(name_of, "toolu", id))
        self._index = -1  # of the newest block
        self._open: str | None = None  # the type of the block that is not over
        self._thoughts = hashlib.blake2b(digest_size=24)
        self._usage = Usage(prompt_tokens=len(question.prompt.tokens))
        self._held: list[Event] = []  # until it is known what the prefix cache has of the prompt
        self._whole: Event = {}
        self._texts: list[str] = []  # of its last block

    def start(self) -> list[Event]:
        """As ``Reply.start``: who answers, and the size of the prompt."""
        self._begun = True
        message: Event = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._ask.model.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._usage),
        }
        return [{"type": "message_start", "message": message}]

    def take(self, news: Delivery) -> Sequence[Sent]:
        progress, sent = news.progress, list[Sent]()
        if progress is not None:
            self._usage = progress.usage
        if news.usage is not None:
            self._usage = news.usage
        for chunk in news.chunks:
            events, _ = self._reader.push(chunk, self._usage)
            self._held += [new for event in events for new in self._shown(event)]
        if not news.chunks and progress is not None and self._ask.watched:
            sent.append(_ping(prompt_progress=prompt_progress(progress)))
        if not news.chunks or progress is None or progress.prefilled or news.usage is not None:
            sent += self._held
            self._held = []
        return sent

    def alive(self) -> list[Aside]:
        # Readers expect ``message_start`` before any other event
        return [_ping() if self._begun else Aside(": the prompt is being run")]

    def fail(self, error: BaseException) -> Event:
        return as_messages_error(*error_body(error, self._ask.names))

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        return [{"type": "message_stop"}]

    # ---- the whole message

    def fold(self, event: Event) -> None:
        match event["type"]:
            case "message_start":
                self._whole = event["message"]
            case "content_block_start":
                self._whole["content"].append(event["content_block"])
            case "content_block_delta":
                for name, value in event["delta"].items():
                    if name == "signature":
                        self._whole["content"][-1][name] = value
                    elif name != "type":
                        self._texts.append(value)
            case "content_block_stop":
                text, self._texts = "".join(self._texts), []
                block = self._whole["content"][-1]
                is_call = block["type"] == "tool_use"
                block["input" if is_call else block["type"]] = _arguments(text) if is_call else text
            case "message_delta":
                self._whole |= {**event["delta"], "usage": event["usage"]}

    def whole(self) -> Event:
        return self._whole

    # ---- events

    def _shown(self, event: ChatEvent) -> list[Event]:
        if isinstance(event, Text):
            return self._more("text", {"text": ""}, {"type": "text_delta", "text": event.text})
        if isinstance(event, Reasoning):
            if not self._thinks:
                return []
            self._thoughts.update(event.text.encode("utf-8", "replace"))
            delta = {"type": "thinking_delta", "thinking": event.text}
            return self._more("thinking", {"thinking": "", "signature": ""}, delta)
        if isinstance(event, CallStarted):
            call = {"id": event.id, "name": event.name, "input": {}}
            return [*self._stop(), self._start("tool_use", call)]
        if isinstance(event, CallArguments):
            return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
        if isinstance(event, CallEnded):
            return self._stop()
        return [*self._stop(), self._ended(event)] if isinstance(event, Ended) else []

    def _more(self, kind: str, empty: Event, delta: Event) -> list[Event]:
        if self._open == kind:
            return [self._delta(delta)]
        return [*self._stop(), self._start(kind, empty), self._delta(delta)]

    def _start(self, kind: str, empty: Event) -> Event:
        self._index += 1
        self._open = kind
        block = {"type": kind, **empty}
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> list[Event]:
        """The end of the open block. Thoughts are signed, as clients send them back only so."""
        if self._open is None:
            return []
        signed = []
        if self._open == "thinking":
            signature = self._thoughts.hexdigest()
            signed = [self._delta({"type": "signature_delta", "signature": signature})]
        self._open = None
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    def _ended(self, ended: Ended) -> Event:
        reason, stop = _REASONS.get(ended.reason, "end_turn"), None
        if reason == "end_turn" and isinstance(ended.stop, str) and ended.stop in self._stops:
            reason, stop = "stop_sequence", ended.stop
        delta = {"stop_reason": reason, "stop_sequence": stop}
        usage = {**_usage(self._usage), "timings": timings([self._usage])}
        return {"type": "message_delta", "delta": delta, "usage": usage}


def _ping(**more: Any) -> Aside:
    return Aside(f"event: ping\ndata: {to_text({'type': 'ping', **more})}")


def _usage(usage: Usage) -> dict[str, int]:
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,  # it costs nothing
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call; none of one that was cut off."""
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
