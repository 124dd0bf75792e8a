"""The reply to a request of the Responses API, streamed or whole.

Invariant: a whole response is the one that the last event of its stream would hold. Events are
numbered from 0, without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...chat.answer import AnswerReader
from ...chat.events import Ended
from ...chat.splitter import Reading
from ...engine import Chunk, Progress, Usage
from ..call import Event
from ..errors import error_body
from ..timings import prompt_progress, timings
from .output import Kind, Output

_FAILURES = {429: "rate_limit_exceeded"}


def failed(error: BaseException, id: str) -> Event:
    """The only event of a stream that fails before its request was parsed."""
    response = {"id": id, "object": "response", "status": "failed", "output": []}
    event = _about("failed", {**response, "error": _failure(error, {})})
    return {**event, "sequence_number": 0}


def _failure(error: BaseException, params: Mapping[str, str]) -> dict[str, str]:
    status, body = error_body(error, params)
    code = body["error"]["code"]
    if code != "context_length_exceeded":
        code = _FAILURES.get(status, "server_error" if status >= 500 else "invalid_prompt")
    return {"code": code, "message": body["error"]["message"]}


class ResponsesReply:
    """A ``Reply`` as OpenAI's responses have it.

    ``about`` is what each of its responses says of the request, and ``thoughts`` the kind of item
    that thoughts become. ``progress``: events say how far the prompt is.
    """

    def __init__(
        self,
        reading: Reading,
        id: str,
        created: int,
        *,
        about: Event,
        thoughts: Kind,
        stream: bool,
        progress: bool = False,
        params: Mapping[str, str],
    ) -> None:
        self._stream = stream
        self._reports = progress
        self._params = params
        self._output = Output(id, thoughts)
        self._reader = AnswerReader(reading, lambda number: self._output.id_of("call", number))
        self._about: Event = {"id": id, "object": "response", "created_at": created, **about}
        self._ended: Ended | None = None
        self._numbered = 2  # the first two are those of ``start``, whenever it is called

    def start(self) -> list[Event]:
        if not self._stream:
            return []
        begun = self._response("in_progress")
        return [
            {"type": f"response.{name}", "sequence_number": number, "response": begun}
            for number, name in enumerate(("created", "in_progress"))
        ]

    def prefilled(self, index: int, progress: Progress) -> list[Event]:
        """As ``Reply.prefilled``: nothing unless asked for, as each repeats all the tools."""
        if not self._reports:
            return []
        return [{**event, "prompt_progress": prompt_progress(progress)} for event in self.alive()]

    def alive(self) -> list[Event]:
        return self._sent([_about("in_progress", self._response("in_progress"))])

    def push(
        self, index: int, chunk: Chunk, progress: Progress | None = None, usage: Usage | None = None
    ) -> Sequence[Event]:
        events, _ = self._reader.push(chunk, usage)
        if events and isinstance(events[-1], Ended):
            self._ended = events[-1]
        return self._sent([new for event in events for new in self._output.take(event)])

    def fail(self, error: BaseException) -> Event:
        if not self._stream:
            return error_body(error, self._params)[1]
        failure = _failure(error, self._params)
        [event] = self._sent([_about("failed", self._response("failed", error=failure))])
        return event

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        return self._sent([self._last(usages)])

    def complete(self, usages: Sequence[Usage]) -> Any:
        return self._last(usages)["response"]

    def _last(self, usages: Sequence[Usage]) -> Event:
        assert self._ended is not None
        cut = self._ended.reason == "length"
        status = "incomplete" if cut else "completed"
        response = self._response(
            status,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=_usage(usages[0], self._ended.reasoning_tokens),
        )
        return _about(status, response)

    def _response(self, status: str, **known: Any) -> Event:
        empty: Event = {"error": None, "incomplete_details": None, "usage": None}
        output = {"status": status, "output": [*self._output.items]}
        return {**self._about, **empty, **output, **known}

    def _sent(self, events: list[Event]) -> list[Event]:
        """The events with their numbers; none if nobody streams them."""
        if not self._stream:
            return []
        for event in events:
            event["sequence_number"] = self._numbered
            self._numbered += 1
        return events


def _about(status: str, response: Event) -> Event:
    return {"type": f"response.{status}", "response": response}


def _usage(usage: Usage, reasoning: int) -> dict[str, Any]:
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "timings": timings([usage]),
    }
