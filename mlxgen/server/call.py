"""A parsed request, and the reply to it.

Owns the values that pass between an API and the engine's thread. Must never know how
requests are read, or who sends the events. Invariant: everything in a ``Call`` is
frozen and may be used in any thread; a ``Reply`` belongs to one task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..chat.calls.held import HeldCalls
from ..engine import Chunk, Options, Path, Progress, Prompt, Usage
from ..filters import Specification

Event: TypeAlias = dict[str, Any]


class Aside(NamedTuple):
    """What clients skip in a stream, before its first event, too: a comment, or an event."""

    text: str


Sent: TypeAlias = Event | str | Aside
"""An event of a stream, or the JSON of one, or what is no part of the answer."""


class Job(NamedTuple):
    """One sequence: ``lm.prepare(job.prompt, job.options)``."""

    prompt: Prompt
    options: Options


class Steered(NamedTuple):
    """What decides on the text of a call: a program or a controller of the operator's, by name.

    ``make`` makes it for one generation. It is the operator's code, and may do anything.
    """

    name: str
    make: Callable[[], Any]


class Reply(Protocol):
    """Chunks in, JSON out, or dictionaries that are ready for it; one for each call, and sans-IO.

    Pushed chunks give the events of a stream. If the call is not for a stream, ``push`` and
    ``finish`` give nothing, and ``complete`` gives the answer.
    """

    def start(self) -> list[Event]:
        """The first events of a stream."""

    def prefilled(self, index: int, progress: Progress) -> Sequence[Sent]:
        """More of the prompt of the job ``index`` was run; returns the events to send now.

        Only for streams.
        """

    def alive(self) -> Sequence[Sent]:
        """What a stream says if nothing else was said for a while."""

    def push(
        self, index: int, chunk: Chunk, progress: Progress | None = None, usage: Usage | None = None
    ) -> Sequence[Sent]:
        """Add a chunk of the job ``index``; returns the events to send now.

        ``usage`` comes with the last one; ``progress`` before the prompt was run, and always for
        calls that are ``watched``.
        """

    def fail(self, error: BaseException) -> Event:
        """The event that ends a stream which fails."""

    def finish(self, usages: Sequence[Usage]) -> list[Event]:
        """The last events of a stream (before ``[DONE]``); ``usages`` in the order of jobs."""

    def complete(self, usages: Sequence[Usage]) -> Any:
        """The whole answer; ``usages`` in the order of jobs. Not for streams."""


@runtime_checkable
class BranchedReply(Reply, Protocol):
    """A reply to a call that is ``steered``: its answers are branches, and come up one by one."""

    def opened(self, index: int, branch: Path) -> list[Event]:
        """There is an answer ``index``, with no text yet; returns the events to send now."""

    def learned(self, index: int, facts: Mapping[str, Any]) -> None:
        """Add to what is said of an answer besides its text."""


@runtime_checkable
class QueuedReply(Reply, Protocol):
    """A reply that can say how long the queue is before it."""

    def queued(self, index: int, ahead: int) -> Sequence[Sent]:
        """So many sequences begin before the job ``index``; returns the events to send now.

        Only for streams.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A parsed request.

    - ``jobs``: what to run; the position of a job is the ``index`` for ``Reply.push``.
    - ``stream``: whether the client wants events.
    - ``watched``: whether chunks come with the progress of their jobs.
    - ``specs``: the specifications that preparing the jobs will compile, each once.
    - ``steered``: what decides on the only job. Its branches are the answers then.
    - ``held``: the calls that the specifications hold to schemas.
    - ``params``: which fields the engine's ``prompt`` and ``filters`` come from, and which exclude
      tokens, for ``error_body(error, call.params)``.
    - ``ignored``: accepted fields that have no effect.
    """

    jobs: tuple[Job, ...]
    stream: bool
    watched: bool = False
    specs: tuple[Specification, ...] = ()
    steered: Steered | None = None
    held: HeldCalls | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    make_reply: Callable[[str, int], Reply] = field(repr=False)

    def loosened(self, loose: Set[str]) -> Call:
        """The same, with these tools held to the outline of their schemas and checked later."""
        assert self.held is not None
        spec = self.held.spec_of(loose)
        specs = () if spec is None else (spec,)
        jobs = [Job(prompt, replace(o, filters=specs)) for prompt, o in self.jobs]
        return replace(self, jobs=tuple(jobs), specs=specs)

    def reply(self, *, id: str, created: int) -> Reply:
        """A new reply. ``id`` as in ``chatcmpl-...``; ``created`` in seconds since 1970."""
        return self.make_reply(id, created)
