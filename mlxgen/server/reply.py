"""What answers a request: news of its sequences in, events of one API out.

A whole answer is what the events of a stream, put together, say. So there is one way from chunks to
JSON, and what a client reads does not depend on whether it streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..engine import Chunk, Path, Progress, Usage, all_drafts

Event: TypeAlias = dict[str, Any]


class Delivery(NamedTuple):
    """News of one sequence: chunks, and at its end ``usage``.

    ``progress`` comes without chunks while its prompt is run, and with them until that is done, or
    always if the sequence is watched. ``ahead``: it waits, and so many others begin before it.

    Of the branches of a program: ``branch`` is the name of a new one, whose ``chunks`` are those up
    to its fork; ``facts`` is what is known of it besides its text; ``closes``: there will be no
    more branches.
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
    """What clients skip in a stream, before its first event, too: a comment, or an event."""

    text: str


Sent: TypeAlias = Event | Aside
"""An event of a stream, or what is no part of the answer."""


class Reply(Protocol):
    """The reply to one request; sans-IO, and it belongs to one task."""

    def start(self) -> Sequence[Sent]:
        """The first events."""

    def take(self, news: Delivery) -> Sequence[Sent]:
        """What is known of a sequence now; returns the events to send."""

    def alive(self) -> Sequence[Sent]:
        """What a stream says if nothing else was said for a while."""

    def finish(self, usages: Sequence[Usage]) -> Sequence[Sent]:
        """The last events (before ``[DONE]``); ``usages`` in the order of sequences."""

    def fail(self, error: BaseException) -> Event:
        """The event that ends a stream which fails."""

    def fold(self, event: Event) -> None:
        """Add one of the events to the whole answer, if nobody streams them."""

    def whole(self) -> Any:
        """The whole answer, after the last event."""


def name_of(kind: str, *where: object) -> str:
    """A name for a part of a reply, unique among all: ``where`` begins with the id of the reply."""
    seed = "/".join(map(str, where)).encode()
    return f"{kind}_{hashlib.blake2b(seed, digest_size=12).hexdigest()}"


# ---- the tokens of an answer ---------------------------------------------------------------------


class Used(NamedTuple):
    """The tokens of an answer, of which each API tells some; ``cached`` are among those of the
    prompt, and ``reasoning`` among those of the completion."""

    prompt: int
    cached: int
    completion: int
    reasoning: int
    drafted: int
    accepted: int


def used_of(
    usages: Sequence[Usage], *, choices: int = 1, given: int = 0, reasoning: int = 0
) -> Used:
    """Those of sequences: a prompt that several ``choices`` share is counted once, and tokens that
    the client sent as generated, ``given`` to each choice, belong to it."""
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
    """Tokens and milliseconds of sequences that ran together; ``given`` tokens of each took none.

    The prompt's time ends with the first generated token, and the rest is the time of those after
    it. So ``predicted_per_second`` counts one token less than ``predicted_n``. No rate includes
    tokens from the prefix cache, nor the time before anything was run. What a branch has from
    another one is counted there. ``loops``, if there were any, are those that were taken back, and
    ``looped`` is what one of them repeated when it ended because of that.
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
    """How far a prompt is; ``time_ms`` counts from when it began to run."""
    usage = progress.usage
    return {
        "total": usage.prompt_tokens,
        "cache": min(usage.cached_tokens, usage.prompt_tokens),
        "processed": progress.prefilled,
        "time_ms": round(1e3 * (usage.prompt_seconds - usage.queued_seconds), 3),
    }


def progress_of(news: Delivery, prompt_tokens: int) -> Iterator[dict[str, Any]]:
    """What news without chunks say of a prompt, also while others begin before it."""
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
