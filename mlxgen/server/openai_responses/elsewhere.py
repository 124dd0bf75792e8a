"""Fields of OpenAI's that have no effect here or are refused, and other APIs' names for ours.

Invariant: that of ``peers``: a name in the table is never ignored where it would have changed the
answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..openai.peers import THINKING, Neutral, Rule, SameAs

_TAKEN = Neutral(None)
_STATELESS = "this server is stateless and keeps no responses; send the whole conversation in input"
_LOGPROBS = "log-probabilities are reported by POST /v1/chat/completions; leave it out"


ELSEWHERE: Mapping[str, Rule] = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "background": Neutral((False,), "a response ends with its request; leave it out"),
    "prompt": "there are no stored prompts here; send instructions and input",
    "moderation": "there is no moderation here; leave it out",
    "top_logprobs": Neutral((0,), _LOGPROBS),
    # nothing is kept
    **dict.fromkeys(("access_programs", "background_options", "context_management"), _TAKEN),
    **dict.fromkeys(("prompt_cache_options", "prompt_cache_retention"), _TAKEN),
    **THINKING,
    **dict.fromkeys(("cache_control", "cache_salt"), _TAKEN),
    # of tools that are left out
    **dict.fromkeys(("max_tool_calls", "image"), _TAKEN),
    # the names of chat completions
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), SameAs("max_output_tokens")),
    "reasoning_effort": SameAs("reasoning.effort"),
    "verbosity": _TAKEN,
    "messages": "belongs to POST /v1/chat/completions; send input",
    "response_format": "belongs to POST /v1/chat/completions; send text: {format: ...}",
}
"""Fields that the model does not have, by name."""
