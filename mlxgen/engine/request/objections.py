"""Text that cannot stay, because of a check, a ban or a loop: how far it is taken back.

Must never append a token: ``accept`` does. Invariant: what was delivered stays, unless the reader
is told what to delete.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from ...errors import DeadEndError, OptionError
from ...filters import Constraint
from ...text import BanMatch, StopMatch
from ...tokens import Token
from ...workers import Work
from ..chunk import FinishReason, Rejected
from .leads import leaves_any
from .loops import Repeat
from .request import Request
from .ways import ThinkingLimit

BRIEFLY = 0.005  # seconds for a check, after which other requests go on meanwhile


class Verdict(enum.Enum):
    """The outcome of a draw."""

    NEXT = "accepted"
    AGAIN = "declined, possibly with tokens before it: draw again where the history ends"
    END = "accepted, and the generation has ended"


def finish(request: Request, reason: FinishReason) -> Verdict:
    constraint, closing = request.constraint, request.closing
    if closing is not None and constraint is not None and not constraint.can_end():
        request.tally.incomplete = closing.why
    request.finish_reason = reason
    return Verdict.END


def go_back(request: Request, target: int, drawn: int) -> None:
    """Keep the first ``target`` generated tokens; the positions up to ``drawn`` were drawn."""
    closing = request.closing
    request.tally.violates = ""
    anew = closing is not None and closing.at <= target
    request.rewind(request.base + target)
    if closing is not None and anew:  # new exclusions there may change the way to the end
        closing.restart(target)
    request.retries.back(target, drawn)


def retreat(request: Request, target: int, drawn: int) -> Verdict:
    """Go back, because the last of the ``drawn`` tokens cannot stay."""
    go_back(request, target, drawn)
    request.tally.redraws += 1
    request.tally.rewound += drawn - 1 - target
    return Verdict.AGAIN


def check(request: Request, constraint: Constraint, *, forced: bool) -> Verdict | None:
    """Have the filters check a text, or a part, that is complete, and take it back a few times if
    they object. ``None``: it stays; ``NEXT``: it stays as the best that was found.

    Raises ``DeadEndError`` if it cannot stay and no other one was found.
    """
    position, retries, outbox = request.position - 1, request.retries, request.outbox
    found = constraint.objection()
    while isinstance(found, Work):
        if not found.wait(None if forced or outbox.is_pushed else BRIEFLY):
            request.rewind(request.base + position)
            request.checking = found  # the same token is drawn when it is over
            return Verdict.AGAIN
        found = constraint.objection()
    if found is None:
        retries.checks = 0, 0
        return None
    reason, tokens, is_final = found
    is_best, target = not tokens, position + 1 - tokens
    if not is_best:
        # What a reader who went back has kept stays
        target = min(max(target, position + 1 - outbox.reach(position, request.first)), position)
        if target >= outbox.floor and retries.take_back(target):
            first, text = request.history[request.base + target], _text(request, target)
            verdict = retreat(request, target, position + 1)
            retries.reject(target, Rejected(first, "check", reason, text))
            return verdict
        if is_final:
            request.rewind(len(request.history) - 1)
            raise DeadEndError(f"no answer was found that fits the whole schema: {reason}")
    request.tally.violates = reason
    retries.checks = 0, 0
    return Verdict.NEXT if is_best else None


def ban_at_end(request: Request, event: StopMatch | None) -> BanMatch | None:
    """The ban that matches only at the end of the text, which a stop may have cut."""
    try:
        return request.transcript.ban_at_end(None if event is None else event.start)
    except OptionError:  # an expression takes too long
        request.rewind(len(request.history) - 1)
        raise


def ban(request: Request, match: BanMatch) -> Verdict:
    """Go back to the token that holds the match's first character, and exclude it there.

    What was delivered stays: if the match begins in it, the first token after it is excluded.
    """
    target = request.transcript.token_at(match.start)
    drawn, retries = request.position, request.retries
    problem = ""
    if target < request.first:
        problem = (
            f"the banned {match.pattern!r} begins inside the prefix, at token {target}, which "
            "cannot be taken back; shorten the prefix, or drop the ban"
        )
    target = max(target, request.outbox.floor)
    if not problem and not retries.spend(target, drawn):
        problem = (
            f"bans have taken back {retries.spent} draws of a text of {drawn} tokens, the last one "
            f"because of {match.pattern!r}: the model finds hardly any text without them; ban less"
        )
    if problem:
        request.rewind(len(request.history) - 1)
        raise DeadEndError(problem)
    token = request.history[request.base + target]
    verdict = retreat(request, target, drawn)
    retries.reject(target, Rejected(token, "ban", match.pattern), ban=True)
    return verdict


def loop(request: Request, repeat: Repeat) -> tuple[Verdict | None, Sequence[Token]]:
    """Go back to the second turn of a loop, or to an earlier turn if there was a loop here before,
    and exclude the token that began it. If that does not help, end the thinking or the text.

    What was delivered stays. Returns also the run to append, which ends the thinking. The verdict
    is ``None`` if nothing was done, because the text may not end yet.
    """
    options, retries, drawn = request.options, request.retries, request.position
    start, period = drawn - repeat.run, repeat.period
    turn = request.vocabulary.decode(request.history[-period:])
    target, floor = start + repeat.kept, max(request.first, request.outbox.settled)
    if request.constraint is not None:  # what filters force is no choice: this token was one
        target += (drawn - 1 - target) % period
    times = retries.loop(start, drawn)
    target = max(target - times * period, floor)
    while target > floor and request.transcript.is_open(target):
        target -= 1
    thoughts = request.transcript.thoughts
    leaves = times > 0 and thoughts is not None and thoughts.is_open
    if options.loops == "stop" or not retries.may_loop(target, drawn):
        if options.ignore_eos or drawn < options.min_tokens:
            return None, ()
        retreat(request, target, drawn)
        request.tally.looped = turn
        may_end = request.constraint is None or request.constraint.can_end()
        return finish(request, "stop" if may_end else "length"), ()
    token, text = request.history[request.base + target], _text(request, target)
    verdict = retreat(request, target, drawn)
    request.tally.loops += 1
    run = _out_of_thinking(request) if leaves else ()
    if not run:
        ban = leaves_any(request, {token})
        retries.reject(target, Rejected(token, "loop", turn, text), ban=ban)
    return verdict, run


def _text(request: Request, target: int) -> str:
    """The text after the first ``target`` generated tokens."""
    decoder = request.transcript.decoder
    return decoder.slice(decoder.end(target), decoder.end())


def _out_of_thinking(request: Request) -> Sequence[Token]:
    """The mark that ends the thinking, if there is one that is allowed."""
    thoughts, constraint = request.transcript.thoughts, request.constraint
    assert thoughts is not None
    limit = request.thinking or ThinkingLimit.of(0, thoughts.marks, request.vocabulary)
    mark = limit.mark if limit is not None else ()
    return () if constraint is not None and constraint.validate(mark) < len(mark) else mark
