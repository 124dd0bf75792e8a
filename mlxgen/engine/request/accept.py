"""Acceptance: what happens to a token once it is drawn.

Owns the verbs of a request: taking in tokens that were sampled, forced or chosen elsewhere, hooks,
bans, stops, the end and delivery, in this fixed order, and taking tokens back. Must never run a
model or evaluate an array: a draw is shown to it as a ``DrawView``. Invariant: ``accept`` takes in
a token and all that follows from it, or takes tokens back in every part, or raises and leaves the
history as it was.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from ...errors import DeadEndError, FilterError, HookError, OptionError, StateError
from ...filters import Constraint, allows
from ...sampling import DrawView, ForcedView
from ...text import BanMatch, StopMatch
from ...tokens import Token
from ..chunk import Alternative, Candidate, Chunk, FinishReason, Rejected
from . import ending
from .hooks import hear
from .leads import fed, forced_run, has_choice, is_led, leaves_any
from .loops import Repeat
from .request import RECENT, Request
from .thinking import ThinkingLimit

BRIEFLY = 0.005  # seconds for a check, after which other requests go on meanwhile
LONGEST_CHECKED = 4096
"""Tokens of a text that is not delivered before it is checked; a longer one is, as it comes."""


class Verdict(enum.Enum):
    """The outcome of a draw."""

    NEXT = "accepted"
    AGAIN = "declined, possibly with tokens before it: draw again where the history ends"
    END = "accepted, and the generation has ended"


def start(request: Request) -> Verdict:
    """Do what is certain before the first draw: end, or append the run that must come first."""
    if request.closing is not None:
        _keeps_end(request, None)
    if ending.is_over(request):
        return _finish(request, "filter")
    return fast_forward(request)


def accept(
    request: Request,
    token: Token,
    view: DrawView,
    *,
    drafter: str = "",
    missed: Rejected | None = None,
) -> Verdict:
    """Accept or decline a sampled token, and append the run that must come after it.

    ``drafter``: who had proposed it, or ``missed``: what was proposed instead.
    """
    steering = request.steering
    if steering is None:
        verdict = _offer(request, token, view, drafter=drafter, missed=missed)
        if verdict is Verdict.NEXT and request.appends_forced:
            return fast_forward(request)
        return verdict
    request.steering = None  # it is used up
    back, run = steering.outcome(token)
    if not back and run[:1] == (token,):
        verdict = _offer(request, token, view, drafter=drafter, missed=missed)
        return append(request, run[1:]) if verdict is Verdict.NEXT else verdict
    take_back(request, back, drawn=1)
    request.tally.redraws += 1
    return append(request, run) if run else Verdict.AGAIN


def push(request: Request, token: Token) -> Verdict:
    """Put a token that was chosen elsewhere at the next position; hooks see it."""
    return _offer(request, token, ForcedView(token), forced=True)


def append(request: Request, tokens: Sequence[Token]) -> Verdict:
    """Append a run, and then what must come after it.

    Raises ``FilterError`` for a token that the filters do not allow; those before it stay.
    """
    if request.finish_reason is not None:
        return Verdict.END
    for token in tokens:
        verdict = push(request, token)
        if verdict is not Verdict.NEXT:
            return verdict
    return fast_forward(request)


def put(request: Request, tokens: Sequence[Token]) -> None:
    """Append a run that stays as it is, whatever is forced after it.

    Raises ``FilterError`` if something does not allow it, and ``StateError`` if the text ends
    within it; the caller takes back what was appended.

    What is drawn after it is drawn for the first time, as far as attempts go.
    """
    if tokens:
        request.retries.begin_at(request.position)
    for i, token in enumerate(tokens):
        if request.finish_reason is not None:
            raise StateError(
                f"the text ends ({request.finish_reason}) after {i} of these {len(tokens)} tokens; "
                "leave out the rest"
            )
        before = request.position
        push(request, token)
        if request.position != before + 1 or request.history[-1] != token:
            raise FilterError(
                f"token {token} cannot stand at position {before}: a ban, a hook or close_json "
                "takes it back"
            )


def fast_forward(request: Request) -> Verdict:
    """Append the runs that must come next; they go through the model together."""
    if not request.appends_forced:
        return Verdict.NEXT
    run = forced_run(request)
    request.forcing += RECENT * (bool(run) - request.forcing)
    while run and run[0] not in request.retries.excluded(request.position):
        for token in run:
            verdict = push(request, token)
            if verdict is not Verdict.NEXT:
                return verdict
            if request.strayed or request.history[-1] != token:  # a hook interfered
                break
        run = forced_run(request)
    return Verdict.NEXT


def take(request: Request) -> list[Chunk]:
    """The chunks that may be delivered now; after the end, all that are left."""
    if request.finish_reason is None:
        return request.outbox.release()
    match = request.match
    if match is None:
        return request.outbox.finish(request.finish_reason)
    return request.outbox.finish(request.finish_reason, match.stop, match.start)


def end(request: Request, reason: FinishReason) -> None:
    """End the generation because the caller asks for it, unless it has ended."""
    if request.finish_reason is None:
        _finish(request, reason)


def rewind(request: Request, target: int, seen: int | None = None) -> None:
    """Keep the first ``target`` generated tokens, for a consumer's rewind.

    The consumer has seen ``seen`` tokens, by default all of them. Tokens generated after these
    leave no trace.
    """
    drawn = request.position
    request.tally.violates = ""
    request.rewind(request.base + target)
    request.outbox.forgive()
    if target < drawn:
        known = drawn if seen is None else seen
        request.retries.back_for(target, known)
        request.retries.asked.pop(target, None)
        request.tally.rewound += known - target


def take_back(request: Request, count: int, *, drawn: int = 0) -> None:
    """Take back the newest ``count`` tokens, of the prompt as well, delivered or not.

    ``drawn`` more were drawn after them and never taken in.
    """
    before, to = request.position, len(request.history) - count
    _go_back(request, max(0, to - request.base), before + drawn)
    request.rewind(to)
    request.tally.rewound += before - request.position


# ---- one token ---------------------------------------------------------------------------------


def _offer(
    request: Request,
    token: Token,
    view: DrawView,
    *,
    forced: bool = False,
    drafter: str = "",
    missed: Rejected | None = None,
) -> Verdict:
    constraint, options, position = request.constraint, request.options, request.position
    retries = request.retries
    if options.top_logprobs is not None and not forced:  # drawn for its log-probability
        forced = not has_choice(request, token)
    withheld, exhausted, hold = False, False, 0
    run: tuple[Token, ...] = ()
    if options.hooks:
        heard = hear(request, token, view)
        if heard.target is not None:
            there = (
                token if heard.target == position else request.history[request.base + heard.target]
            )
            _go_back(request, heard.target, position + 1)
            retries.reject(heard.target, Rejected(there, "hook"))
            retries.ask(heard.target, heard.exclude, heard.temperature)
            if heard.exclude and not leaves_any(request, frozenset()):
                retries.admit_all()
            return _declined(request, position - heard.target)
        if heard.token != token:
            retries.reject(position, Rejected(token, "hook"))
            token, forced, drafter = heard.token, False, ""
        withheld, exhausted, hold, run = heard.withheld, heard.exhausted, heard.hold, heard.run
    request.strayed = withheld
    attempts, wanted = retries.attempts.get(position, 0), options.top_logprobs
    mask = None  # of the filters, for what is reported; they have not come to a healed token
    if wanted and constraint is not None and not request.is_healing:
        mask = constraint.mask()
    if request.aim is not None and has_choice(request, token):
        request.aim.drew(view.share(token))
    event = request.advance(token, () if withheld else fed(request, token))
    reason = ending.reason(request, token, event)
    if reason is None and options.hooks and heard.ends:
        reason = "stop" if constraint is None or constraint.can_end() else "length"
    if reason is not None and not isinstance(event, BanMatch):
        event = _ban_at_end(request, event) or event
    if isinstance(event, BanMatch):
        return _ban(request, event)
    if constraint is not None and (constraint.due or (reason and constraint.can_end())):
        checking = None if forced or request.outbox.is_pushed else constraint.checking()
        if checking is not None and not checking.wait(BRIEFLY):
            request.rewind(request.base + position)
            request.checking = checking  # the same token is drawn when it is over
            return Verdict.AGAIN
        verdict = _checked(request, constraint)
        if verdict is Verdict.NEXT:
            exhausted = True
        elif verdict is not None:
            return verdict
    if constraint is not None and 0 < constraint.unchecked <= LONGEST_CHECKED:
        hold = max(hold, constraint.unchecked)
    if request.closing is not None and not _keeps_end(request, None if withheld else token):
        request.rewind(request.base + position)
        retries.reject(position, Rejected(token, "length"))
        return _declined(request)  # from now on only the way to the end is allowed
    if options.loops != "off" and reason is None:
        repeat = request.repeats()
        if repeat.is_loop and not forced and not is_led(request):
            verdict = _loop(request, repeat)
            if verdict is not None:
                return verdict
        hold = max(hold, repeat.held)
    if options.hooks:
        retries.accepted()
    request.tally.forced += forced
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    if wanted is not None:
        logprob, pairs = view.report(token, wanted)
        top = tuple([Alternative(*pair) for pair in pairs])
    if options.top_candidates:
        ids, probs = view.best(options.top_candidates)
        candidates = tuple(map(Candidate, ids.tolist(), probs.tolist()))
    rejected = retries.rejected.get(position, ())
    if missed is not None:
        rejected = (*rejected, missed)
    chunk = Chunk(
        "",
        token,
        position,
        logprob,
        top,
        candidates,
        drafter,
        forced,
        attempts=attempts,
        exhausted=exhausted,
        forbidden=() if mask is None else tuple([t for t, _ in top if not allows(mask, t)]),
        rejected=rejected,
        prob=view.probability(token) if wanted is not None or candidates else None,
    )
    request.outbox.push(chunk, hold)
    if reason is None:
        return _put_for_hook(request, run) if run else Verdict.NEXT
    request.match = event
    return _finish(request, reason)


def _put_for_hook(request: Request, run: Sequence[Token]) -> Verdict:
    """Append what a hook puts after a token, which hooks see as well."""
    constraint = request.constraint
    if constraint is not None and constraint.validate(run) < len(run):
        raise HookError(
            f"a hook put {list(run)} after position {request.position - 1}, which the filters do "
            "not allow; put what they allow"
        )
    return append(request, run)


def _declined(request: Request, rewound: int = 0) -> Verdict:
    """A token was not taken in; ``rewound`` others were taken back with it."""
    request.tally.redraws += 1
    request.tally.rewound += rewound
    return Verdict.AGAIN


def _keeps_end(request: Request, taken: Token | None) -> bool:
    """Whether a valid end still fits the budget, as ``close_json`` wants it."""
    closing = request.closing
    return closing is None or request.is_healing or closing.look(request.position, taken)


def _finish(request: Request, reason: FinishReason) -> Verdict:
    constraint, closing = request.constraint, request.closing
    if closing is not None and constraint is not None and not constraint.can_end():
        request.tally.incomplete = closing.why
    request.finish_reason = reason
    return Verdict.END


# ---- back --------------------------------------------------------------------------------------


def _go_back(request: Request, target: int, drawn: int) -> None:
    """Keep the first ``target`` generated tokens; the positions up to ``drawn`` were drawn."""
    closing = request.closing
    request.tally.violates = ""
    anew = closing is not None and closing.at <= target
    request.rewind(request.base + target)
    if closing is not None and anew:  # new exclusions there may change the way to the end
        closing.restart(target)
    request.retries.back(target, drawn)


def _checked(request: Request, constraint: Constraint) -> Verdict | None:
    """Take a text, or a part, back that the filters object to, a few times; ``None``: it stands,
    and ``NEXT``: it stands as the best that was found.

    Raises ``DeadEndError`` if no other one was found and it must not stand.
    """
    position = request.position - 1
    found = constraint.objection()
    if found is None:
        request.retries.settle()
        return None
    reason, target, is_final = found
    if target > position:
        request.tally.violates = reason
        request.retries.settle()
        return Verdict.NEXT
    target = max(target, position + 1 - request.outbox.reach(position, request.first))
    target = min(target, position)  # what a reader who went back has kept stays
    first = request.history[request.base + target]
    if target >= request.outbox.floor and request.retries.take_back(target):
        text = _text(request, target)
        _go_back(request, target, position + 1)
        request.retries.reject(target, Rejected(first, "check", reason, text))
        return _declined(request, position - target)
    if is_final and constraint.checks:
        request.rewind(len(request.history) - 1)
        raise DeadEndError(f"no answer was found that fits the whole schema: {reason}")
    request.tally.violates = reason
    request.retries.settle()
    return None


def _ban_at_end(request: Request, event: StopMatch | None) -> BanMatch | None:
    try:
        return ending.ban_at_end(request, event)
    except OptionError:  # an expression takes too long
        request.rewind(len(request.history) - 1)
        raise


def _ban(request: Request, match: BanMatch) -> Verdict:
    """Go back to the token that holds the match's first character, and exclude it there.

    What was delivered stays: if the match begins in it, the first token after it is excluded.
    """
    target = request.transcript.token_at(match.start)
    drawn, retries = request.position, request.retries
    if target < request.first:
        request.rewind(len(request.history) - 1)
        raise DeadEndError(
            f"the banned {match.pattern!r} begins inside the prefix, at token {target}, which "
            "cannot be taken back; shorten the prefix, or drop the ban"
        )
    target = max(target, request.outbox.floor)
    token = request.history[request.base + target]
    if not retries.spend(target, drawn):
        request.rewind(len(request.history) - 1)
        raise DeadEndError(
            f"bans have taken back {retries.spent} draws of a text of {drawn} tokens, the last one "
            f"because of {match.pattern!r}: the model finds hardly any text without them; ban less"
        )
    _go_back(request, target, drawn)
    retries.ban(target, token)
    retries.reject(target, Rejected(token, "ban", match.pattern))
    return _declined(request, drawn - 1 - target)


def _loop(request: Request, repeat: Repeat) -> Verdict | None:
    """Go back to the second turn of a loop, or the next time at one place to an earlier one, and
    exclude the token that began it; if that is of no use, end the thinking or the text.

    What was delivered stays. ``None``: the text must be as long as it gets.
    """
    options, retries, drawn = request.options, request.retries, request.position
    start, period, turn = drawn - repeat.run, repeat.period, request.history[-repeat.period :]
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
            return None
        _go_back(request, target, drawn)
        _declined(request, drawn - 1 - target)
        request.tally.looped = request.vocabulary.decode(turn)
        may_end = request.constraint is None or request.constraint.can_end()
        return _finish(request, "stop" if may_end else "length")
    token, text = request.history[request.base + target], _text(request, target)
    _go_back(request, target, drawn)
    request.tally.loops += 1
    if leaves and _leave_thinking(request):
        return _declined(request, drawn - 1 - target)
    if leaves_any(request, {token}):
        retries.ban(target, token)
    retries.reject(target, Rejected(token, "loop", request.vocabulary.decode(turn), text))
    return _declined(request, drawn - 1 - target)


def _text(request: Request, target: int) -> str:
    """The text after the first ``target`` generated tokens."""
    decoder = request.transcript.decoder
    return decoder.slice(decoder.end(target), decoder.end())


def _leave_thinking(request: Request) -> bool:
    """Append the mark that ends the thinking, if there is one that is allowed."""
    thoughts, constraint = request.transcript.thoughts, request.constraint
    assert thoughts is not None
    limit = request.thinking or ThinkingLimit.of(0, thoughts.marks, request.vocabulary)
    if limit is None or (
        constraint is not None and constraint.validate(limit.mark) < len(limit.mark)
    ):
        return False
    append(request, limit.mark)
    return True
