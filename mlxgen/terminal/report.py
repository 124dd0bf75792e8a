"""What the command line says about a generation: lines for people, and for programs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ..words import broken, counted, shortened

if TYPE_CHECKING:
    from ..engine import Chunk, Usage
    from ..tokens import Token, Vocabulary

NAME = "mlxgen.generate"


def say(line: str) -> None:
    """Print one line on standard error."""
    if sys.stderr is not None:  # print() would use standard output instead
        line = f"{NAME}: {line}"
        columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else len(line)
        print(broken(line, columns), file=sys.stderr, flush=True)


def report(usage: Usage, last: Chunk | None) -> Iterable[str]:
    """The lines about a generation that ended with the chunk ``last``, or without any."""
    import mlx.core as mx

    known = min(usage.cached_tokens, usage.prompt_tokens)  # some of the answer may be cached, too
    cached = f" ({known} of them cached)" if known else ""
    run = usage.prompt_tokens - known
    yield f"prompt:      {_speed(usage.prompt_tokens, run, usage.prompt_seconds, cached)}"
    # The prompt's time includes the first token.
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
    """Lines about a schema that was not wholly enforced or is violated, and about a loop."""
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


def json_line(chunk: Chunk, usage: Usage | None, vocabulary: Vocabulary) -> str:
    """A JSON object, always with the same keys; only the last chunk comes with its ``usage``.

    ``text`` is what was delivered with the chunk; ``token_text`` is the token's own text.
    """

    def named(token: Token) -> dict[str, Any]:
        text = vocabulary.piece(token).decode("utf-8", "replace")
        return {"token": token, "token_text": text}

    shown = {f.name: getattr(chunk, f.name) for f in fields(chunk)}
    shown["from_draft"] = chunk.from_draft
    shown["token_text"] = None if chunk.token is None else named(chunk.token)["token_text"]
    shown["logprob"] = _finite(chunk.logprob)
    shown["top"] = [{**named(token), "logprob": _finite(logprob)} for token, logprob in chunk.top]
    shown["rejected"] = [{**named(each.token), **each._asdict()} for each in chunk.rejected]
    shown["candidates"] = [{**named(each.token), **each._asdict()} for each in chunk.candidates]
    if usage is not None:
        drafts = {name: count._asdict() for name, count in usage.drafts.items()}
        shown["usage"] = asdict(usage) | {"drafts": drafts}
    return json.dumps(shown)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
