"""Fields of Anthropic's that have no effect here or are refused.

Invariant: that of ``peers``: a name in the table is never ignored where it would have changed the
answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..openai.peers import THINKING, Neutral, Refused, Rule

_TAKEN = Neutral(None)

ELSEWHERE: Mapping[str, Rule] = {
    "compaction": "this server makes no summaries of its own; leave it out",
    "thread": Refused(
        "this server is stateless and keeps no messages; send the whole conversation",
        "thread_unsupported_request",
    ),
    # who pays, where it runs and how fast
    **dict.fromkeys(("billing_policy", "fallback_credit_token", "fallbacks"), _TAKEN),
    **dict.fromkeys(("inference_geo", "speed", "workspace_id", "user_profile_id"), _TAKEN),
    **dict.fromkeys(("betas", "diagnostics"), _TAKEN),
    **THINKING,
    "cache_salt": _TAKEN,
    # of tools that are left out
    **dict.fromkeys(("container", "mcp_servers"), _TAKEN),
}
"""Fields that the model does not have, by name."""
