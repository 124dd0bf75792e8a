"""How fast a generation was, and what it took, in lines for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..words import counted, shortened

if TYPE_CHECKING:
    from ..engine import Chunk, Usage


def report(usage: Usage, last: Chunk | None) -> Iterable[str]:
    """The lines about a generation that ended with the chunk ``last``, or before there was any."""
    import mlx.core as mx

    run = usage.prompt_tokens - usage.cached_tokens
    cached = f" ({usage.cached_tokens} of them cached)" if usage.cached_tokens else ""
    yield f"prompt:      {_speed(usage.prompt_tokens, run, usage.prompt_seconds, cached)}"
    # The first token is known at the end of the prompt's time.
    after_first = usage.completion_tokens - 1
    yield f"generation:  {_speed(usage.completion_tokens, after_first, usage.generation_seconds)}"
    passes = f"{usage.forward_passes} pass{'' if usage.forward_passes == 1 else 'es'}"
    yield f"drafted:     {_drafts(usage)}, in {passes}"
    reason = last.finish_reason if last is not None and last.finish_reason else "interrupted"
    yield f"finished:    {reason}" + (
        f" at {last.stop!r}" if last is not None and last.stop else ""
    )
    yield f"peak memory: {mx.get_peak_memory() / 1e9:.3f} GB"


def unheld(usage: Usage) -> Iterable[str]:
    """What of a schema was not enforced, or is violated, and why a text ended without saying so."""
    if usage.left_out:
        yield f"not enforced, because it is only a note: {', '.join(usage.left_out)}"
    if usage.violates:
        yield f"the text does not fit its schema: {usage.violates}"
    if usage.looped:
        yield f"ended because the text repeated itself: {shortened(usage.looped)!r}"


def _drafts(usage: Usage) -> str:
    """How many tokens were drafted and accepted, and by whom."""
    each = [f"{name} {c.accepted} of {c.proposed}" for name, c in usage.drafts.items()]
    if not each:
        return "nothing"
    proposed, accepted = usage.drafted_tokens, usage.accepted_draft_tokens
    return f"{counted(proposed, 'token')}, {accepted} of them accepted ({', '.join(each)})"


def _speed(tokens: int, timed: int, seconds: float, cached: str = "") -> str:
    rate = f", {timed / seconds:.1f} tokens per second" if timed > 0 and seconds > 0 else ""
    return f"{counted(tokens, 'token')}{cached}{rate}"
