"""Text that cannot stay, because of a check, a ban or a loop: how far it is taken back.

Must never append a token: ``accept`` does. Invariant: what was delivered stays, unless the reader
is told what to delete.
"""

from __future__ import annotations

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

CHECKS = 10  # times that a finished text which does not fit is taken back
LOOPS = 3  # times that loops are taken back at one place
LOOPED = 256  # tokens that they may take back of a short text
DRAWS_FOR_BANS = 32  # draws that bans may take back for each token, and 32 times as many at first
BRIEFLY = 0.005  # seconds for a check, after which other requests go on meanwhile


def finish(request: Request, reason: FinishReason) -> None:
    """End the text here."""
    if request.closing is not None and not request.may_end:
        request.tally.incomplete = request.closing.why
    request.finish_reason = reason


def go_back(request: Request, to: int, drawn: int) -> None:
    """Keep the first ``to`` tokens of the history; the positions up to ``drawn`` were drawn."""
    target = max(0, to - request.base)
    request.tally.violates = ""
    request.rewind(to)
    request.retries.back(target, drawn)


def refuse(request: Request, target: int, why: Rejected, drawn: int) -> None:
    """Go back to ``target`` because of the token that was drawn there, as the last of the ``drawn``
    tokens cannot stay."""
    request.tally.redraws += 1
    request.tally.rewound_tokens += drawn - 1 - target
    go_back(request, request.base + target, drawn)
    request.retries.spend(why.reason, drawn - target)
    request.retries.reject(target, why)


def check(request: Request, constraint: Constraint, *, forced: bool) -> bool:
    """Have the filters check a text, or a part, that is complete, and take it back a few times if
    they object. Returns whether it stays, if only as the best that was found.

    Raises ``DeadEndError`` if it cannot stay and no other one was found.
    """
    position, retries, outbox = request.position - 1, request.retries, request.outbox
    found = constraint.objection()
    while isinstance(found, Work):
        if not found.wait(None if forced or outbox.is_pushed else BRIEFLY):
            request.rewind(request.base + position)
            request.checking = found  # the same token is drawn when it is over
            return False
        found = constraint.objection()
    if found is not None:
        reason, tokens, is_final = found
        # What a reader who went back has kept stays
        first = min(max(position + 1 - tokens, request.first, outbox.settled), position)
        if not tokens:
            retries.give_up(position)
        elif first >= outbox.floor and retries.again("check", first, first).times <= CHECKS:
            token, text = request.history[request.base + first], _text(request, first)
            refuse(request, first, Rejected(token, "check", reason, text), position + 1)
            return False
        elif is_final:
            request.rewind(len(request.history) - 1)
            raise DeadEndError(f"no answer was found that fits the whole schema: {reason}")
        request.tally.violates = reason
    retries.tries.pop("check", None)
    return True


def ban_at_end(request: Request, event: StopMatch | None) -> BanMatch | None:
    """The ban that matches only at the end of the text, which a stop may have cut."""
    try:
        return request.transcript.ban_at_end(None if event is None else event.start)
    except OptionError:  # an expression takes too long
        request.rewind(len(request.history) - 1)
        raise


def ban(request: Request, match: BanMatch) -> None:
    """Go back to the token that holds the match's first character, and exclude it there.

    What was delivered stays: if the match begins in it, the first token after it is excluded.

    The allowance of draws grows with the length of the text. Without a limit, an expression that
    every text matches would be tried on one text after the other.
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
    spent = retries.again("ban", target, drawn).tokens + drawn - target
    if not problem and spent > DRAWS_FOR_BANS * (drawn + DRAWS_FOR_BANS):
        problem = (
            f"bans have taken back {spent} draws of a text of {drawn} tokens, the last one "
            f"because of {match.pattern!r}: the model finds hardly any text without them; ban less"
        )
    if problem:
        request.rewind(len(request.history) - 1)
        raise DeadEndError(problem)
    token = request.history[request.base + target]
    refuse(request, target, Rejected(token, "ban", match.pattern), drawn)
    retries.exclude(target, token)


def loop(request: Request, repeat: Repeat) -> Sequence[Token] | None:
    """Go back to the second turn of a loop, or to an earlier turn if there was a loop here before,
    and exclude the token that began it. If that does not help, end the thinking or the text.

    What was delivered stays. Returns the run to append, which ends the thinking, and ``None`` if
    nothing was done, because the text may not end yet.
    """
    options, retries, drawn = request.options, request.retries, request.position
    start, period = drawn - repeat.run, repeat.period
    turn = request.vocabulary.decode(request.history[-period:])
    floor, tries = max(request.first, request.outbox.settled), retries.again("loop", start, drawn)
    target = max(start + repeat.kept - (tries.times - 1) * period, floor)
    if request.constraint is not None:  # what filters force is no choice: the newest token was one
        target += (drawn - 1 - target) % period
    while target > floor and request.transcript.is_open(target):
        target -= 1
    token, text = request.history[request.base + target], _text(request, target)
    why = Rejected(token, "loop", turn, text)
    # At most a quarter of the tokens that there are is taken back, and a few more
    spent = tries.tokens + drawn - target
    if options.loops == "stop" or tries.times > LOOPS or spent > drawn // 4 + LOOPED:
        if options.ignore_eos or drawn < options.min_tokens:
            return None
        refuse(request, target, why, drawn)
        request.tally.looped = turn
        finish(request, "stop" if request.may_end else "length")
        return ()
    thoughts = request.transcript.thoughts
    leaves = tries.times > 1 and thoughts is not None and thoughts.is_open
    refuse(request, target, why, drawn)
    request.tally.loops += 1
    run: Sequence[Token] = ()
    if thoughts is not None and leaves:  # by the mark that ends the thinking, if it is allowed
        limit = request.thinking or ThinkingLimit.of(0, thoughts.marks, request.vocabulary)
        run = limit.mark if limit is not None else ()
        if request.constraint is not None and request.constraint.validate(run) < len(run):
            run = ()
    if not run and leaves_any(request, {token}):
        retries.exclude(target, token)
    return run


def _text(request: Request, target: int) -> str:
    """The text after the first ``target`` generated tokens."""
    decoder = request.transcript.decoder
    return decoder.slice(decoder.end(target), decoder.end())
