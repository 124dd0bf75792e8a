"""Where a text may end, and why it has: all rules about that.

Must never end a request: ``accept`` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Set

from ...errors import FilterError
from ...text import BanMatch, StopMatch
from ...tokens import Token
from ..chunk import FinishReason
from .request import Request


def ends(request: Request, token: Token) -> bool:
    """Whether a token ends the text."""
    return token in request.vocabulary.eos and not request.options.ignore_eos


def check_end(request: Request, token: Token) -> None:
    """Raise ``FilterError`` if a token ends the text where the filters do not let it end."""
    constraint = request.constraint
    if constraint is not None and ends(request, token) and not constraint.can_end():
        raise FilterError(
            f"the end token {token} is not allowed at position {request.position}: "
            "the filters do not let the text end there"
        )


def too_early(request: Request) -> Set[Token]:
    """The tokens that must not come next because they would end the text."""
    options = request.options
    if request.position >= options.min_tokens:
        return frozenset()
    return request.vocabulary.eos.union(s[0] for s in options.stop_tokens if len(s) == 1)


def is_over(request: Request) -> bool:
    """Whether the filters allow only the end."""
    return request.constraint is not None and request.constraint.ended()


def reason(
    request: Request, token: Token, event: BanMatch | StopMatch | None
) -> FinishReason | None:
    """Why the text ends with the token just taken in, if it does; checked in a fixed order."""
    if isinstance(event, StopMatch):
        return "stop"
    if token in request.vocabulary.eos and not request.options.ignore_eos:
        return "stop"
    if request.constraint is not None:
        with contextlib.suppress(Exception):  # the next draw raises it again, and should
            if request.constraint.ended():
                return "filter"
    closing = request.closing
    if closing is not None and closing.forcing and len(closing.way or ()) == 1:
        return "filter"  # this token was the last step of the way to a valid end
    return "length" if request.position >= request.budget else None


def ban_at_end(request: Request, event: BanMatch | StopMatch | None) -> BanMatch | None:
    """The ban that matches only at the end of the text, which a stop may have cut."""
    cut = event.start if isinstance(event, StopMatch) else None
    return request.transcript.ban_at_end(cut)
