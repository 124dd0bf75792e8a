"""What hooks ask for, and what of that can be done.

Owns the order in which a hook's requests are considered: taking back, another token, withholding it
from the filters. Invariant: the token that hooks are asked about has not been taken in.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ...errors import HookError
from ...sampling import DrawView, PostSamplingResult, Want, run_hooks
from ...tokens import Token
from .leads import leaves_any
from .request import Request


class Heard(NamedTuple):
    """A token as the hooks leave it.

    - ``target``: how many of the generated tokens to keep if this one is not taken in; ``exclude``
      and ``temperature`` are for the next draw then.
    - ``withheld``: the filters do not see the token.
    - ``hold``: how many of the newest tokens, this one included, not to deliver yet.
    - ``ends``: the text ends with the token. ``run``: what follows it at once.
    - ``exhausted``: a hook wanted another draw, but there were too many, or no other token is left.
    """

    token: Token
    target: int | None = None
    exclude: frozenset[Token] = frozenset()
    temperature: float | None = None
    withheld: bool = False
    exhausted: bool = False
    hold: int = 0
    ends: bool = False
    run: tuple[Token, ...] = ()


def hear(request: Request, token: Token, view: DrawView) -> Heard:
    """Ask the hooks of a request; ``RewindError`` if they take back what was delivered."""
    position, retries = request.position, request.retries
    wish = _consult(request, token, view)
    back = wish.rewind or int(wish.resample)
    if back:
        target = position + 1 - back
        request.outbox.check_reach(back, position, request.first)
        exclude = frozenset(wish.exclude)
        in_vain = target == position and exclude and not leaves_any(request, exclude)
        if not in_vain and retries.asked.get(target, 0) < request.options.max_resample:
            return Heard(token, target, exclude, wish.temperature)
    sampled = wish.sampled_token
    if sampled != token and sampled in retries.banned.get(position, ()):
        raise HookError(
            f"a hook chose token {sampled} at position {position}, where a ban excludes it; choose "
            "another one if attempt is above 0"
        )
    withheld, exhausted = not wish.feed_filters, bool(back) or retries.unmet
    return Heard(
        sampled,
        withheld=withheld,
        exhausted=exhausted,
        hold=wish.hold,
        ends=wish.end,
        run=tuple(wish.put),
    )


def _consult(request: Request, token: Token, view: DrawView) -> PostSamplingResult:
    wish = PostSamplingResult(
        view,
        token,
        position=request.position,
        attempt=request.attempt,
        can_rewind=partial(request.outbox.reach, request.position, request.first),
        text=request.transcript.so_far,
        text_after=request.transcript.text_with,
    )
    run_hooks(request.options.hooks, wish, request.vocab_size)
    if view.looked_for is not None:  # what a hook looked at once is reported with every draw
        request.want = Want.common([request.want, view.looked_for])
    return wish
