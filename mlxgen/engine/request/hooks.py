"""What hooks wish of a token, and what of it is carried out.

Owns the order in which a hook's wishes are looked at: taking back, another token, keeping it
from the filters. Must never accept a token: the row does. Invariant: a token that comes out was
not taken in yet, and one that was declined is in no part of the sequence.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ...errors import HookError
from ...sampling import DrawView, PostSamplingResult, Want, run_hooks
from ...tokens import Token

if TYPE_CHECKING:
    from .row import Row


class Heard(NamedTuple):
    """A token as the hooks leave it.

    ``withheld``: the filters do not see it. ``exhausted``: a hook wanted another draw, and there
    were too many, or there is nothing else to draw.
    """

    token: Token
    withheld: bool
    exhausted: bool


def hear(row: Row, token: Token, view: DrawView) -> Heard | None:
    """Ask the hooks of a row; ``None``: tokens were taken back, and the row draws again."""
    position, exhausted = row.position, False
    wish = _consult(row, token, view)
    back = wish.rewind or int(wish.resample)
    if back:
        target = position + 1 - back
        row.outbox.check_reach(back, position, row.first)
        in_vain = target == position and len(wish.exclude) and not row.leaves_any(wish.exclude)
        if not in_vain and row.retries.asked.get(target, 0) < row.options.max_resample:
            row.rewind_parts(target, position + 1)
            row.retries.ask(target, wish.exclude, wish.temperature)
            if len(wish.exclude) and not row.leaves_any(()):
                row.retries.admit_all()
            row.tally.redraws += 1
            row.tally.rewound += back - 1
            return None
        exhausted = True
    banned = row.retries.banned.get(position, ())
    if wish.sampled_token != token and wish.sampled_token in banned:
        raise HookError(
            f"a hook put token {wish.sampled_token} at position {position}, where a ban "
            "excludes it; choose another, or look at attempt"
        )
    return Heard(wish.sampled_token, not wish.feed_filters, exhausted or row.retries.unmet)


def _consult(row: Row, token: Token, view: DrawView) -> PostSamplingResult:
    wish = PostSamplingResult(
        view,
        token,
        position=row.position,
        attempt=row.attempt,
        can_rewind=partial(row.outbox.reach, row.position, row.first),
        text=row.sequence.transcript.so_far,
        text_after=row.sequence.transcript.text_with,
    )
    run_hooks(row.options.hooks, wish, row.vocab_size)
    if view.looked_for is not None:  # once looked at, it is reported with every draw
        row.want = Want.common([row.want, view.looked_for])
    return wish
