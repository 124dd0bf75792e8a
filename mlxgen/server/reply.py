"""The replies to requests: news of sequences in, events of one API out.

A whole answer is the fold of the events of a stream. So there is one way from chunks to JSON, and
the answer does not depend on whether the client streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..engine import Chunk, Path, Progress, Usage, all_drafts

Event: TypeAlias = dict[str, Any]


class Delivery(NamedTuple):
    """News of one sequence: chunks, and at its end ``usage``.

    ``progress`` comes without chunks while the prompt is run, and with chunks until its end has
    been reported, or always if the sequence is watched. ``ahead``: the sequence waits, behind this
    number of others.

    For the branches of a program: ``branch`` names a new one, whose ``chunks`` are those up to its
    fork; ``facts`` has what is known besides its text; ``closes``: no more branches will come.
    """

    place: int
    chunks: Sequence[Chunk]
    usage: Usage | None = None
    progress: Progress | None = None
    branch: Path | None = None
    facts: Mapping[str, Any] | None = None
    closes: bool = False
    ahead: int | None = None


class Aside(NamedTuple):
    """A part of a stream that clients skip, even before its first event: a comment or an event."""

    text: str


Sent: TypeAlias = Event | Aside
"""An event of a stream, or something that is not part of the answer."""


class Reply(Protocol):
    """The reply to one request, without I/O; used by one task."""

    def start(self) -> Sequence[Sent]:
        """The first events."""

    def take(self, news: Delivery) -> Sequence[Sent]:
        """Take news of a sequence; return the events to send."""

    def alive(self) -> Sequence[Sent]:
        """The events or comments that keep a silent stream alive."""

    def finish(self, usages: Sequence[Usage]) -> Sequence[Sent]:
        """The last events (before ``[DONE]``); ``usages`` in the order of sequences."""

    def fail(self, error: BaseException) -> Event:
        """The event that ends a failing stream."""

    def fold(self, event: Event) -> None:
        """Add an event to the whole answer, if the client does not stream."""

    def whole(self) -> Any:
        """The whole answer, after the last event."""


def name_of(kind: str, *where: object) -> str:
    """A globally unique name for a part of a reply: ``where`` begins with the reply's id."""
    seed = "/".join(map(str, where)).encode()
    return f"{kind}_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"


# ---- the tokens of an answer ---------------------------------------------------------------------


class Used(NamedTuple):
    """Token counts of an answer, of which each API reports some; ``cached`` is part of ``prompt``,
    and ``reasoning`` is part of ``completion``."""

    prompt: int
    cached: int
    completion: int
    reasoning: int
    drafted: int
    accepted: int


def used_of(
    usages: Sequence[Usage], *, choices: int = 1, given: int = 0, reasoning: int = 0
) -> Used:
    """The counts for sequences: a prompt that several ``choices`` share is counted once, and the
    ``given`` tokens that the client sent as already generated count as part of the prompt."""
    firsts = usages[::choices]
    return Used(
        prompt=sum(usage.prompt_tokens + given for usage in firsts),
        cached=sum(min(usage.cached_tokens, usage.prompt_tokens + given) for usage in firsts),
        completion=sum(usage.completion_tokens - given for usage in usages),
        reasoning=reasoning,
        drafted=sum(usage.drafted_tokens for usage in usages),
        accepted=sum(usage.accepted_draft_tokens for usage in usages),
    )


# ---- how fast answers came, and how far prompts are, by llama.cpp's names ----------------------


def timings(usages: Sequence[Usage], *, given: int = 0) -> dict[str, Any]:
    """Tokens and milliseconds of sequences that ran together; the ``given`` tokens of each count as
    part of the prompt.

    The prompt's time ends with the first generated token, and the rest is the time of the tokens
    after it. So ``predicted_per_second`` counts one token fewer than ``predicted_n``. No rate
    includes tokens from the prefix cache, nor the time in the queue. A branch's tokens from before
    its fork count only for its parent. ``loops``: how many loops were taken back, if any;
    ``looped``: the repeated text, if a loop ended a sequence.
    """
    cached = sum(usage.cached_tokens for usage in usages)
    prompt = sum(usage.prompt_tokens + given for usage in usages) - cached
    predicted = sum(usage.completion_tokens - max(given, usage.forked_tokens) for usage in usages)
    read = max(usage.prompt_seconds - usage.queued_seconds for usage in usages)
    wrote = max(usage.generation_seconds for usage in usages)
    drafted = sum(usage.drafted_tokens for usage in usages)
    found: dict[str, Any] = {
        "cache_n": cached,
        "prompt_n": prompt,
        **_rates("prompt", prompt, read),
        "predicted_n": predicted,
        **_rates("predicted", predicted - len(usages), wrote),
    }
    if drafted:
        found["draft_n"] = drafted
        found["draft_n_accepted"] = sum(usage.accepted_draft_tokens for usage in usages)
        found["drafts"] = {
            name: {"draft_n": count.proposed, "draft_n_accepted": count.accepted}
            for name, count in all_drafts(usage.drafts for usage in usages).items()
        }
    loops, looped = sum(usage.loops for usage in usages), [usage.looped for usage in usages]
    if loops or any(looped):
        found["loops"] = loops
        found["looped"] = next(filter(None, looped), None)
    return found


def prompt_progress(progress: Progress) -> dict[str, Any]:
    """The progress of a prompt; ``time_ms`` counts from the start of its prefill."""
    usage = progress.usage
    return {
        "total": usage.prompt_tokens,
        "cache": min(usage.cached_tokens, usage.prompt_tokens),
        "processed": progress.prefilled,
        "time_ms": round(1e3 * (usage.prompt_seconds - usage.queued_seconds), 3),
    }


def progress_of(news: Delivery, prompt_tokens: int) -> Iterator[dict[str, Any]]:
    """The progress of a prompt in news without chunks, or its place in the queue."""
    if news.progress is not None:
        yield {"prompt_progress": prompt_progress(news.progress)}
    elif news.ahead is not None:
        none = {"total": prompt_tokens, "cache": 0, "processed": 0, "time_ms": 0.0}
        yield {"prompt_progress": {**none, "queue": news.ahead}}


def _rates(name: str, tokens: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_ms": round(1e3 * seconds, 3),
        f"{name}_per_token_ms": round(1e3 * seconds / tokens, 3) if tokens > 0 else 0.0,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds > 0 and tokens > 0 else 0.0,
    }
