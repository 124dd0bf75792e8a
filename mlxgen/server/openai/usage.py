"""Token counts in replies, and how far prompts are.

Invariant: a prompt that several choices share is counted once, and tokens that the client sent as
generated belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine import Progress, Usage
from ..call import Aside, Event
from ..timings import timings
from .plan import ReplyPlan


def usage_json(
    usages: Sequence[Usage], *, choices: int, given: int, reasoning: int
) -> dict[str, Any]:
    """``usages`` in the order of jobs, ``choices`` for each prompt; ``given`` tokens of each
    completion came from the client."""
    firsts = usages[::choices]
    prompt = sum(usage.prompt_tokens + given for usage in firsts)
    completion = sum(usage.completion_tokens - given for usage in usages)
    drafted = sum(usage.drafted_tokens for usage in usages)
    accepted = sum(usage.accepted_draft_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in firsts),
        },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "timings": timings(usages, given=given),
    }


def still_alive(plan: ReplyPlan, sequences: Sequence[Progress | None]) -> Aside:
    """A sign of life, with how much of the prompts was run, as mlx-lm has it."""
    run = sum(one.prefilled for one in sequences if one is not None)
    return Aside(f": keepalive {run}/{sum(len(each.prompt.tokens) for each in plan.questions)}")


def timed(event: Event, plan: ReplyPlan, sequences: Sequence[Progress | None]) -> Event:
    """An event with the timings of these sequences, if they are wanted and known."""
    known = [one.usage for one in sequences if one is not None]
    if plan.timings and known:
        queued = max(usage.queued_seconds for usage in known)
        event["timings"] = timings(known, given=plan.given) | {"queued_ms": round(1e3 * queued, 3)}
    return event
