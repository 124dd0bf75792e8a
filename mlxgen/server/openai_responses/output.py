"""The items of an answer: from the events of a chat to those of a stream, and the whole items.

Invariant: every item and every part that begins is done once, before the next one begins, with the
text that its deltas add up to. The output is the items that are done, as their events show them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ...chat.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ChatEvent,
    Ended,
    Reasoning,
    Text,
)
from ..call import Event


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of item.

    - ``letters``: how its ids begin; ``empty``: it without its text.
    - ``text``: what the events of its text are called; ``extra`` is in all of them.
    - ``field``: where the text is, in the item or in its one ``part``.
    - ``place``: where the part is, and ``parts`` what its events are called.
    """

    letters: str
    empty: Event
    text: str
    extra: Event = field(default_factory=dict)
    field: str = "text"
    part: Event | None = None
    place: Literal["content", "summary"] = "content"
    parts: str = "response.content_part"


MESSAGE = Kind(
    "msg",
    {"type": "message", "role": "assistant", "content": []},
    "response.output_text",
    {"logprobs": []},
    part={"type": "output_text", "text": "", "annotations": [], "logprobs": []},
)
THOUGHTS = Kind(
    "rs",
    {"type": "reasoning", "summary": [], "content": []},
    "response.reasoning_text",
    part={"type": "reasoning_text", "text": ""},
)
SUMMARY = Kind(
    "rs",
    {"type": "reasoning", "summary": []},
    "response.reasoning_summary_text",
    part={"type": "summary_text", "text": ""},
    place="summary",
    parts="response.reasoning_summary_part",
)
CALL = Kind(
    "fc",
    {"type": "function_call", "arguments": ""},
    "response.function_call_arguments",
    field="arguments",
)


class OpenItem:
    """An item that is being written; ``more`` may come until it is done."""

    def __init__(self, kind: Kind, id: str, index: int, **known: Any) -> None:
        self._kind = kind
        self._item: Event = {"id": id, **kind.empty, **known, "status": "in_progress"}
        self._texts: list[str] = []
        self._place: Event = {"item_id": id, "output_index": index}
        if kind.part is not None:
            self._place[f"{kind.place}_index"] = 0
        self._text: Event = self._place | kind.extra

    def begin(self) -> Iterator[Event]:
        kind = self._kind
        yield self._whole("added", self._item)
        if kind.part is not None:
            yield {"type": f"{kind.parts}.added", **self._place, "part": kind.part}

    def more(self, text: str) -> Event:
        self._texts.append(text)
        return {"type": f"{self._kind.text}.delta", **self._text, "delta": text}

    def end(self, status: str) -> Iterator[Event]:
        """The last events; the item is in the last one of them."""
        kind, text = self._kind, "".join(self._texts)
        yield {"type": f"{kind.text}.done", **self._text, kind.field: text}
        whole: Event = {**self._item, "status": status}
        if kind.part is None:
            whole[kind.field] = text
        else:
            part = {**kind.part, kind.field: text}
            yield {"type": f"{kind.parts}.done", **self._place, "part": part}
            whole[kind.place] = [part]
        yield self._whole("done", whole)

    def _whole(self, what: str, item: Event) -> Event:
        index = self._place["output_index"]
        return {"type": f"response.output_item.{what}", "output_index": index, "item": item}


class Output:
    """Events of a chat in, events of a stream out; ``items`` are those that are done.

    ``seed`` makes the ids of items; ``thoughts`` is the kind of item that thoughts become.
    """

    def __init__(self, seed: str, thoughts: Kind) -> None:
        self._seed = seed
        self._thoughts = thoughts
        self._begun = 0
        self._item: OpenItem | None = None
        self._kind: Kind | None = None
        self.items: list[Event] = []

    def id_of(self, letters: str, number: int) -> str:
        """An id that is unique among all replies."""
        seed = f"{self._seed}/{letters}/{number}".encode()
        return f"{letters}_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"

    def take(self, event: ChatEvent) -> Iterator[Event]:
        """What an event of the chat adds."""
        if isinstance(event, Text):
            yield from self._more(MESSAGE, event.text)
        elif isinstance(event, Reasoning):
            yield from self._more(self._thoughts, event.text)
        elif isinstance(event, CallStarted):
            yield from self._begin(CALL, call_id=event.id, name=event.name)
        elif isinstance(event, CallArguments):
            yield from self._more(CALL, event.text)
        elif isinstance(event, CallEnded):
            yield from self._end()
        elif isinstance(event, Ended):
            yield from self._end("incomplete" if event.reason == "length" else "completed")

    def _more(self, kind: Kind, text: str) -> Iterator[Event]:
        if self._kind is not kind:
            yield from self._begin(kind)
        assert self._item is not None
        yield self._item.more(text)

    def _begin(self, kind: Kind, **known: Any) -> Iterator[Event]:
        yield from self._end()
        self._item = OpenItem(kind, self.id_of(kind.letters, self._begun), self._begun, **known)
        self._kind = kind
        self._begun += 1
        yield from self._item.begin()

    def _end(self, status: str = "completed") -> Iterator[Event]:
        if self._item is None:
            return
        events = list(self._item.end(status))
        self._item = self._kind = None
        self.items.append(events[-1]["item"])
        yield from events
