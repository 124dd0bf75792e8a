"""Acceptance: what happens to a token once it is drawn.

Owns the verbs of a request: taking in tokens that were sampled, forced or chosen elsewhere, hooks,
bans, stops, the end and delivery, in this fixed order, and taking tokens back. Must never run a
model or evaluate an array: a draw is shown to it as a ``DrawView``. Invariant: ``accept`` takes in
a token and all that follows from it, or takes tokens back in every part, or raises and leaves the
history as it was.

Verbs that append return whether the text goes on from where they left it. If not, it has ended, or
a token was declined, possibly with tokens before it: the next draw is where the history ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import FilterError, HookError, StateError
from ...filters import Int32Words, allows
from ...sampling import DrawView, ForcedView, PostSamplingResult, Want, run_hooks
from ...text import BanMatch, StopMatch
from ...tokens import Token
from ..chunk import Alternative, Candidate, Chunk, FinishReason, Rejected
from .leads import forced_run, has_choice, lead, leaves_any
from .objections import ban, ban_at_end, check, finish, go_back, loop, refuse, repeated, too_long
from .parts import NOTHING, ThinkingLimit
from .request import RECENT, Request

LONGEST_CHECKED = 4096
"""The longest text, in tokens, that is held back until its check; a longer one is not."""


def start(request: Request) -> bool:
    """Do what is certain before the first draw: end, or append the run that must come first; not
    before a prompt that is scored has run."""
    if request.closing is not None:
        _keeps_end(request, None)
    if request.constraint is not None and request.constraint.ended():
        finish(request, "filter")
        return False
    return request.options.prompt_logprobs is not None or fast_forward(request)


def accept(
    request: Request,
    token: Token,
    view: DrawView,
    *,
    pushed: bool = False,
    drafter: str = "",
    missed: Rejected | None = None,
) -> bool:
    """Take a token in, with all that follows from it, or take back what does not stand; then append
    the run that must come next.

    ``pushed``: it was chosen elsewhere, and nothing is appended after it. ``drafter``: who proposed
    it; ``missed``: what was proposed instead.
    """
    steering = request.steering
    after: Sequence[Token] = ()
    if steering is not None and not pushed:
        request.steering = None  # it is used up
        back, run = steering.outcome(token)
        if back or run[:1] != (token,):
            return _replace(request, back, run)
        after = run[1:]
    options, position, retries = request.options, request.position, request.retries
    wanted, wish = options.top_logprobs, None
    aiming = request.lookback if request.lookback is not None and options.sampling.aims else None
    forced = pushed
    if not pushed and (wanted is not None or aiming is not None):  # drawn, but perhaps forced
        forced = not has_choice(request, token)
    if options.hooks:
        wish = _consult(request, token, view)
        if _declines(request, token, wish):
            return False
        if wish.sampled_token != token:
            retries.reject(position, Rejected(token, "hook"))
            token, forced, drafter = wish.sampled_token, False, ""
    request.strayed = wish is not None and not wish.feed_filters
    attempts = retries.attempts.get(position, 0)
    mask = None  # of the filters, for the report; not before healing is done
    if wanted and request.constraint is not None and not request.is_healing:
        mask = request.constraint.mask()
    if aiming is not None and not forced:
        aiming.drew(view.share(token))

    event = request.advance(token, withheld=request.strayed)
    reason = _reason(request, token, event, ends=wish is not None and wish.end)
    if reason is not None and not isinstance(event, BanMatch):
        event = ban_at_end(request, event) or event
    if isinstance(event, BanMatch):
        ban(request, event)
        return False
    hold = _held(request, token, forced, ends=reason is not None)
    if hold is None:
        if request.checking is not None:
            request.steering = steering  # for the same draw, once the check is over
        return False

    request.tally.forced_tokens += forced
    decided = retries.at(position) if retries.decided else NOTHING
    chunk = Chunk(
        "",
        token,
        position,
        drafter=drafter,
        forced=forced,
        attempts=attempts,
        exhausted=decided.unmet or (wish is not None and bool(wish.rewind or wish.resample)),
        rejected=decided.rejected,
    )
    if wanted is not None or options.top_candidates:
        chunk = _reported(chunk, request, view, mask, missed)
    request.outbox.push(chunk, hold if wish is None else max(hold, wish.hold))
    if reason is not None:
        request.match = event
        finish(request, reason)
        return False
    if wish is not None and wish.put and not _put_of_hook(request, wish.put):
        return False
    if pushed:
        return True
    if after:
        return append(request, after)
    return fast_forward(request) if request.appends_forced else True


def _replace(request: Request, back: int, run: Sequence[Token]) -> bool:
    """Do what a controller wants instead of the token that was drawn."""
    take_back(request, back, drawn=1)
    request.tally.redraws += 1
    return bool(run) and append(request, run)


def _held(request: Request, token: Token, forced: bool, *, ends: bool) -> int | None:
    """How many of the newest tokens to hold back, as the text may still be taken back; ``None`` if
    it just was: a check, the way to a valid end, or a loop objected."""
    constraint, hold = request.constraint, 0
    if constraint is not None and (constraint.checks or ends):
        unchecked, is_due = constraint.unchecked() if constraint.checks else (0, False)
        is_valid = ends and constraint.can_end()
        is_due = is_due or is_valid
        if is_due and not check(request, constraint, forced=forced, ends=is_valid):
            return None
        if ends and not is_due and too_long(request):
            return None
        if unchecked <= LONGEST_CHECKED:
            hold = unchecked
    if request.closing is not None and not _keeps_end(request, token):
        position = request.position - 1
        request.rewind(request.base + position)
        request.retries.reject(position, Rejected(token, "length"))
        request.tally.redraws += 1
        return None  # from now on only the way to the end is allowed
    if request.options.loops == "off" or ends:
        return hold
    repeat = request.repeat = repeated(
        request.repeat, request.history, request.base, request.transcript, request.vocabulary
    )
    if repeat.is_loop and not forced and lead(request) is None:
        out = loop(request, repeat)
        if out is not None:
            append(request, out)
            return None
    return max(hold, repeat.held)


def push(request: Request, token: Token) -> bool:
    """Put a token that was chosen elsewhere at the next position; hooks see it."""
    return accept(request, token, ForcedView(token), pushed=True)


def append(request: Request, tokens: Sequence[Token]) -> bool:
    """Append a run, and then what must come after it.

    Raises ``FilterError`` for a token that the filters do not allow; those before it stay.
    """
    if request.finish_reason is not None:
        return False
    return all(push(request, token) for token in tokens) and fast_forward(request)


def put(request: Request, tokens: Sequence[Token]) -> None:
    """Append a run that stays as it is, whatever is forced after it.

    Raises ``FilterError`` if something does not allow it, and ``StateError`` if the text ends
    within it; then all is as before, unless a ban has taken back more.

    Draws after it count as first attempts.
    """
    start, retries = len(request.history), request.retries.fork()
    if tokens:
        request.retries.begin_at(request.position)
    try:
        _put(request, tokens)
    except BaseException:
        request.rewind(start)
        request.retries = retries
        if request.closing is not None:
            request.closing.restart(request.position)
        raise


def _put(request: Request, tokens: Sequence[Token]) -> None:
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


def fast_forward(request: Request) -> bool:
    """Append the runs that must come next; they go through the model together."""
    if not request.appends_forced:
        return True
    run = forced_run(request)
    request.forcing += RECENT * (bool(run) - request.forcing)
    while run and run[0] not in request.retries.at(request.position).excluded:
        for token in run:
            if not push(request, token):
                return False
            if request.strayed or request.history[-1] != token:  # a hook interfered
                break
        run = forced_run(request)
    return True


def take(request: Request) -> list[Chunk]:
    """The chunks that may be delivered now; after the end, all that are left."""
    if request.finish_reason is None:
        return request.outbox.release()
    match = request.match
    if match is None:
        return request.outbox.finish(request.finish_reason)
    return request.outbox.finish(request.finish_reason, match.stop, match.start)


def end(request: Request, reason: FinishReason | None = None) -> None:
    """End the generation because the caller asks for it, unless it has ended; without a reason,
    with ``stop``, or with ``length`` if the filters require more text."""
    if request.finish_reason is None:
        finish(request, reason or ("stop" if request.may_end else "length"))


# ---- what a consumer may ask -------------------------------------------------------------------


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
        request.tally.rewound_tokens += known - target


def take_back(request: Request, count: int, *, drawn: int = 0) -> None:
    """Take back the newest ``count`` tokens, including the prompt's, delivered or not.

    ``drawn``: how many more were drawn after them and never taken in.
    """
    before = request.position
    go_back(request, len(request.history) - count, before + drawn)
    request.tally.rewound_tokens += before - request.position


def keep_only(request: Request, tokens: int | None, to: int | None) -> None:
    """Take back the newest ``tokens``, or all after the first ``to``, for a reader who is told of
    it; their positions are drawn anew.

    Raises ``RewindError`` for more than was generated here and may be taken back.
    """
    have = request.position
    take_back(request, have - request.target_of(tokens, to, have, request.outbox.shown))


def end_thinking(request: Request) -> None:
    """Have the answer begin as if the thinking budget were spent now.

    Raises ``StateError`` if the text does not end inside the thinking.
    """
    thoughts = request.transcript.thoughts
    if thoughts is None or not thoughts.is_open:
        raise StateError("the answer is not in its thinking now, which could end")
    limit = request.thinking or ThinkingLimit.of(1, thoughts.marks, request.vocabulary)
    if limit is None:
        raise StateError("no mark ends the thinking of this model")
    if request.thinking is None or not limit.left(request.transcript, request.history):
        request.thinking = limit._replace(budget=request.position - thoughts.began)
        request.appends_forced = request.may_append_forced


def change_options(request: Request, given: Mapping[str, Any]) -> None:
    """Apply other sampling, filters and stops from here on; raises ``OptionError`` or
    ``FilterError`` if they are wrong, and ``StateError`` for filters of an answer that has not
    begun."""
    thoughts = request.transcript.thoughts
    if given.get("filters") and thoughts is not None and not thoughts.is_over:
        raise StateError(
            "what the text must match holds for the answer, which has not begun; end the thinking "
            "first, or wait"
        )
    request.change(request.options.changed(given))


# ---- questions about a token -------------------------------------------------------------------


def _keeps_end(request: Request, taken: Token | None) -> bool:
    """Whether a valid end still fits the budget, as ``close_json`` requires."""
    closing, taken = request.closing, None if request.strayed else taken
    return closing is None or request.is_healing or closing.look(request.position, taken)


def _reason(
    request: Request, token: Token, event: BanMatch | StopMatch | None, *, ends: bool
) -> FinishReason | None:
    """Why the text ends with the token just taken in, or None; checked in a fixed order. ``ends``:
    a hook wants it to end, whatever follows."""
    if isinstance(event, StopMatch) or (
        token in request.vocabulary.eos and not request.options.ignore_eos
    ):
        return "stop"
    if request.constraint is not None:
        with contextlib.suppress(Exception):  # the next draw raises it again, and should
            if request.constraint.ended():
                return "filter"
    closing = request.closing
    if closing is not None and closing.forcing and len(closing.way or ()) == 1:
        return "filter"  # this token was the last step of the way to a valid end
    if request.position >= request.budget:
        return "length"
    if ends:
        return "stop" if request.may_end else "length"
    return None


def _reported(
    chunk: Chunk,
    request: Request,
    view: DrawView,
    mask: Int32Words | None,
    missed: Rejected | None,
) -> Chunk:
    """The chunk with the parts of its draw's report that the options ask for."""
    token, options = request.history[-1], request.options
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    if options.top_logprobs is not None:
        logprob, pairs = view.report(token, options.top_logprobs)
        top = tuple([Alternative(*pair) for pair in pairs])
    if options.top_candidates:
        ids, probs = view.best(options.top_candidates)
        candidates = tuple(map(Candidate, ids.tolist(), probs.tolist()))
    return replace(
        chunk,
        logprob=logprob,
        top=top,
        candidates=candidates,
        forbidden=() if mask is None else tuple([t for t, _ in top if not allows(mask, t)]),
        rejected=chunk.rejected if missed is None else (*chunk.rejected, missed),
        prob=view.probability(token) if options.top_logprobs is not None or candidates else None,
    )


# ---- hooks -------------------------------------------------------------------------------------


def _consult(request: Request, token: Token, view: DrawView) -> PostSamplingResult:
    """What the hooks ask for, before the token is taken in."""
    position, transcript = request.position, request.transcript
    wish = PostSamplingResult(
        view,
        token,
        position=position,
        attempt=request.retries.attempts.get(position, 0),
        can_rewind=partial(request.outbox.reach, position, request.first),
        text=transcript.so_far,
        text_after=transcript.text_with,
    )
    run_hooks(request.options.hooks, wish, request.vocab_size)
    if view.looked_for is not None:  # what a hook looked at once is reported with every draw
        request.want = Want.common([request.want, view.looked_for])
    return wish


def _declines(request: Request, token: Token, wish: PostSamplingResult) -> bool:
    """Take back what the hooks want back, unless that is pointless; returns whether it did.

    Raises ``RewindError`` if they want delivered tokens back.
    """
    position, retries, sampled = request.position, request.retries, wish.sampled_token
    if back := wish.rewind or int(wish.resample):
        target, exclude = position + 1 - back, frozenset(wish.exclude)
        request.outbox.check_reach(back, position, request.first)
        in_vain = target == position and exclude and not leaves_any(request, exclude)
        if not in_vain and retries.at(target).asked < request.options.max_resample:
            there = token if target == position else request.history[request.base + target]
            refuse(request, target, Rejected(there, "hook"), position + 1)
            retries.ask(target, exclude, wish.temperature)
            if exclude and not leaves_any(request):
                retries.give_up(target)
            return True
    if sampled != token and sampled in retries.at(position).banned:
        raise HookError(
            f"a hook chose token {sampled} at position {position}, where a ban excludes it; choose "
            "another one if attempt is above 0"
        )
    return False


def _put_of_hook(request: Request, run: Sequence[Token]) -> bool:
    """Append the run that a hook put after the token; ``HookError`` if filters do not allow it."""
    constraint = request.constraint
    if constraint is not None and constraint.validate(run) < len(run):
        raise HookError(
            f"a hook put {list(run)} after position {request.position - 1}, which the filters do "
            "not allow; put what they allow"
        )
    return append(request, run)
