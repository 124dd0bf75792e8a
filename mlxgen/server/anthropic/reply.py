"""The reply to a request of the Messages API, streamed or whole.

Invariant: a whole message is what its stream's events, put together, say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...chat.answer import AnswerReader
from ...chat.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ChatEvent,
    Ended,
    Reasoning,
    Text,
)
from ...chat.splitter import Reading
from ...engine import Chunk, Progress, Usage
from ..call import Aside, Event, Sent
from ..errors import as_messages_error, error_body
from ..http.responses import to_text
from ..timings import prompt_progress, timings

_REASONS = {"length": "max_tokens", "calls": "tool_use"}


class MessagesReply:
    """A ``Reply`` as Anthropic's.

    ``stops`` are the client's own; ``thinks``: thoughts are shown; ``progress``: pings say how far
    the prompt is.
    """

    def __init__(
        self,
        reading: Reading,
        id: str,
        *,
        model: str,
        prompt_tokens: int,
        stream: bool,
        stops: Collection[str],
        thinks: bool,
        progress: bool = False,
        params: Mapping[str, str],
    ) -> None:
        self._stream = stream
        self._model = model
        self._stops = stops
        self._thinks = thinks
        self._reports = progress
        self._begun = False
        self._params = params
        self._id = id
        self._reader = AnswerReader(reading, self._name_call)
        self._index = -1  # of the newest block
        self._open: str | None = None  # the type of the block that is not over
        self._thoughts = hashlib.blake2b(digest_size=24)
        self._usage = Usage(prompt_tokens=prompt_tokens)
        self._whole: Event = {"content": []}  # what the events said, if nobody streams them
        self._texts: list[str] = []  # of its last block
        self._held: list[Event] = []  # until it is known what the prefix cache has of the prompt

    def _name_call(self, number: int) -> str:
        """A name for a call, unique among all replies."""
        seed = f"{self._id}/{number}".encode()
        return f"toolu_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"

    def start(self) -> list[Event]:
        """As ``Reply.start``: who answers, and the size of the prompt."""
        self._begun = True
        message: Event = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._usage),
        }
        return [{"type": "message_start", "message": message}]

    def prefilled(self, index: int, progress: Progress) -> list[Sent]:
        self._usage = progress.usage
        pings = [_ping(prompt_progress=prompt_progress(progress))] if self._reports else []
        return [*pings, *self._released()]

    def alive(self) -> list[Aside]:
        # Readers expect ``message_start`` before any other event
        return [_ping() if self._begun else Aside(": the prompt is being run")]

    def push(
        self, index: int, chunk: Chunk, progress: Progress | None = None, usage: Usage | None = None
    ) -> Sequence[Event]:
        if progress is not None:
            self._usage = progress.usage
        if usage is not None:
            self._usage = usage
        events, _ = self._reader.push(chunk, self._usage)
        shown = [new for event in events for new in self._shown(event)]
        if self._stream:
            self._held += shown
            known = progress is None or progress.prefilled or usage is not None
            return self._released() if known else ()
        for each in shown:
            self._fold(each)
        return ()

    def _released(self) -> list[Event]:
        held, self._held = self._held, []
        return held

    def fail(self, error: BaseException) -> Event:
        return as_messages_error(*error_body(error, self._params))

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        return [{"type": "message_stop"}]

    def complete(self, usages: Sequence[Usage]) -> Event:
        [start] = self.start()
        whole: Event = start["message"] | self._whole
        return whole

    def _fold(self, event: Event) -> None:
        content = self._whole["content"]
        match event["type"]:
            case "content_block_start":
                content.append(event["content_block"])
            case "content_block_delta":
                for name, value in event["delta"].items():
                    if name == "signature":
                        content[-1][name] = value
                    elif name != "type":
                        self._texts.append(value)
            case "content_block_stop":
                text, self._texts = "".join(self._texts), []
                kind = content[-1]["type"]
                content[-1]["input" if kind == "tool_use" else kind] = (
                    _arguments(text) if kind == "tool_use" else text
                )
            case "message_delta":
                self._whole |= {**event["delta"], "usage": event["usage"]}

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
