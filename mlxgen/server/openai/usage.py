"""Token counts in replies.

Owns the sum over the rows of a call. Must never know the engine's other counts. Invariant:
a prompt that several choices share is counted once, and tokens that the client sent as generated
belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine import Usage


def usage_json(
    usages: Sequence[Usage], *, choices: int, given: int, reasoning: int
) -> dict[str, Any]:
    """``usages`` in the order of jobs, ``choices`` for each prompt; ``given`` tokens of each
    completion came from the client."""
    firsts = usages[::choices]
    prompt = sum(usage.prompt_tokens + given for usage in firsts)
    completion = sum(usage.completion_tokens - given for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in firsts),
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
