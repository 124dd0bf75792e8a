"""What a reader may ask of a text while it is generated, between two steps.

The scheduler tries each order on a copy first, so that it is done whole or not at all. Must never
take back what was delivered, unless the reader is told what to delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import StateError
from .accept import end, put, take_back
from .assembly import change, may_append_forced
from .request import Request
from .ways import ThinkingLimit

__all__ = ["change_options", "end_thinking", "finish", "keep_only", "put"]


def keep_only(request: Request, tokens: int | None, to: int | None) -> None:
    """Take back the newest ``tokens``, or all after the first ``to``; they are drawn anew.

    Raises ``RewindError`` for more than was generated here and may be taken back.
    """
    have = request.position
    take_back(request, have - request.target_of(tokens, to, have, request.outbox.shown))


def end_thinking(request: Request) -> None:
    """Have the answer begin as if the budget of the thinking were spent now.

    Raises ``StateError`` if the text does not end inside the thinking.
    """
    thoughts = request.transcript.thoughts
    if thoughts is None or not thoughts.is_open:
        raise StateError("the answer is not in its thinking now, which could end")
    limit = request.thinking or ThinkingLimit.of(1, thoughts.marks, request.vocabulary)
    if limit is None:
        raise StateError("no mark ends the thinking of this model")
    if request.thinking is None or not limit.left(request.transcript):
        request.thinking = limit._replace(budget=request.position - thoughts.began)
        request.appends_forced = may_append_forced(request)


def change_options(request: Request, given: Mapping[str, Any]) -> None:
    """Let other sampling, filters and stops hold from here on; raises ``OptionError`` or
    ``FilterError`` for what is wrong with them, and ``StateError`` for filters of an answer that
    has not begun."""
    thoughts = request.transcript.thoughts
    if given.get("filters") and thoughts is not None and not thoughts.is_over:
        raise StateError(
            "what the text must match holds for the answer, which has not begun; end the thinking "
            "first, or wait"
        )
    options = request.options.changed(given)
    options.check_vocabulary(request.vocab_size)
    change(request, options)


def finish(request: Request) -> None:
    """End the text here: with ``stop``, or with ``length`` if filters want more of it."""
    constraint = request.constraint
    end(request, "stop" if constraint is None or constraint.can_end() else "length")
