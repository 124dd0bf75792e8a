"""From a prompt and options to a request that is ready to run.

Options that are not used cost nothing: a request gets only the parts that it needs. Invariant:
everything that can be wrong with filters, stops and prefix is raised before ``assemble`` returns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ...errors import FilterError, OptionError
from ...filters import Constraint
from ...images import plain
from ...sampling import Aim, Repetitions, TokenCounts, Want
from ...text import (
    BanMatch,
    BanMatcher,
    Healer,
    StopMatcher,
    TextDecoder,
    Thoughts,
    Transcript,
    heal_plan,
)
from ...tokens import Token, Vocabulary
from ..history import History
from ..options import Options
from .outbox import Outbox
from .prompt import Prompt
from .request import Request
from .ways import Closing, ThinkingLimit


def xtc_special(vocabulary: Vocabulary) -> list[Token]:
    """The tokens that XTC spares, as mlx-lm does: the end tokens and the newline."""
    newline = vocabulary.token_of(b"\n")
    return sorted(vocabulary.eos.union(() if newline is None else (newline,)))


def assemble(
    prompt: Prompt,
    options: Options,
    vocabulary: Vocabulary,
    vocab_size: int,
    *,
    budget: int,
    seed: int,
    queued: bool = True,
) -> Request:
    """A request with the parts that ``options`` need; ``vocab_size`` is the width of the logits.

    Raises ``GrammarError`` if a filter cannot be compiled, and ``OptionError`` if the filters do
    not allow the prefix.
    """
    tokens, removed = list(prompt.tokens), b""
    if options.heal:
        tokens, removed = heal_plan(vocabulary, tokens)
    thinking, marks = None, prompt.thinking
    if options.thinking_budget is not None and (marks := prompt.marks(vocabulary)) is not None:
        thinking = ThinkingLimit.of(options.thinking_budget, marks, vocabulary)
    transcript = Transcript(
        TextDecoder(vocabulary, strip=prompt.opens_text, skip=len(removed)),
        _stops(options),
        BanMatcher(options.banned, _standing(options, seed)) if options.banned else None,
        Thoughts(marks) if marks is not None else None,
        stop_in_thoughts=options.stop_in_reasoning,
    )
    request = Request(
        options=options,
        vocabulary=vocabulary,
        vocab_size=vocab_size,
        budget=budget,
        seed=seed,
        history=History(tokens),
        base=len(tokens),
        first=len(options.prefix),
        transcript=transcript,
        healer=Healer(vocabulary, removed) if removed else None,
        thinking=thinking,
        outbox=Outbox(transcript, "at once"),
        want=Want(
            prob=options.top_logprobs is not None or options.top_candidates > 0,
            candidates=options.top_candidates,
            logprob=options.top_logprobs is not None,
            top=options.top_logprobs or 0,
        ),
    )
    _count(request)
    constraint = request.constraint = _constraint(request, options, opens=prompt.opens_text)
    request.appends_forced = queued and may_append_forced(request)
    _take_prefix(request)
    request.outbox = Outbox.for_options(
        options, transcript, queued, constraint is not None and constraint.checks
    )
    if options.close_json and constraint is not None:
        request.closing = Closing(constraint, budget)
    return request


def may_append_forced(request: Request) -> bool:
    """Whether there may be runs that must come, and none of them is to have its log-probability."""
    leads = request.constraint is not None or request.thinking is not None
    return leads and request.options.top_logprobs is None


def check_change(request: Request, options: Options) -> None:
    """Raise what ``change`` would."""
    options.check_vocabulary(request.vocab_size)
    if options.filters and options.filters is not request.options.filters:
        if not all(hasattr(each, "bind") for each in options.filters):
            raise OptionError("filters", "expected specifications, as a rewind may bind them anew")
        _constraint(request, options, opens=False)


def change(request: Request, options: Options) -> None:
    """Let the sampling, the filters and the stops of other ``options`` hold from here on.

    Filters and stops see only the text that is yet to come.
    """
    before, position = request.options, request.position
    if options.filters is not before.filters:
        opens = request.constraint is not None and request.constraint.strips_space and not position
        constraint = request.constraint = _constraint(request, options, opens=opens)
        request.closing = None
        if constraint is not None:
            for _ in range(position):
                constraint.advance()
            if options.close_json:
                request.closing = Closing(constraint, request.budget)
                request.closing.restart(position)
            if constraint.checks:
                request.outbox.wait_for_checks()
        request.appends_forced = may_append_forced(request)
    request.options = options
    if options.sampling != before.sampling:
        _count(request)
    if (options.stop, options.stop_tokens) != (before.stop, before.stop_tokens):
        request.transcript.look_for(_stops(options))


def _stops(options: Options) -> StopMatcher | None:
    wanted = options.stop or options.stop_tokens
    return StopMatcher(options.stop, options.stop_tokens) if wanted else None


def _constraint(request: Request, options: Options, *, opens: bool) -> Constraint | None:
    """The filters of a text that ``opens`` at their beginning, or goes on."""
    if not options.filters:
        return None
    strips, size = opens and request.vocabulary.strips_space, request.vocab_size
    return Constraint(options.filters, request.vocabulary, size, strips_space=strips)


def _count(request: Request) -> None:
    """What draws depend on beside the logits: the tokens so far, as the sampling counts them."""
    sampling, tokens, base = request.options.sampling, plain(request.history), request.base
    request.counts = request.repetitions = request.aim = None
    request.looks_back = sampling.penalises or sampling.avoids_repetitions or sampling.aims
    if sampling.penalises:
        request.counts = TokenCounts(tokens[:base], window=sampling.repetition_context_size)
        for token in tokens[base:]:
            request.counts.advance(token)
    if sampling.avoids_repetitions:
        request.repetitions = Repetitions(tokens, sampling, request.vocabulary.piece)
    if sampling.aims:
        request.aim = Aim(sampling.adaptive_target, sampling.adaptive_decay)
        for token in tokens[base:]:
            request.aim.advance(token)


def _standing(options: Options, seed: int) -> Callable[[BanMatch], bool]:
    """Which matches of bans stand: a share of them, by what they are and where they begin."""
    if options.ban_strength == 1:
        return lambda match: False

    def stands(match: BanMatch) -> bool:
        told = f"{seed}/{match.start}/{match.pattern}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(told, digest_size=8, person=b"ban").digest()
        return int.from_bytes(digest) >= options.ban_strength * 2**64

    return stands


def _take_prefix(request: Request) -> None:
    """Feed a request the tokens that count as already generated."""
    for i, token in enumerate(request.options.prefix):
        try:
            event = request.advance(token)
        except FilterError as error:
            problem = f"the filters do not allow token {token} at index {i}: {error}; pass tokens"
            code = "end_not_allowed" if request.ends(token) else "token_not_allowed"
            problem += " that the same filters generated"
            raise OptionError("prefix", problem, code=code, index=i) from error
        if isinstance(event, BanMatch):
            problem = f"token {token} at index {i} completes {event.pattern!r}, which is banned;"
            problem += " pass tokens without it"
            raise OptionError("prefix", problem, code="text_banned", index=i)
        if event is not None or request.ends(token):
            problem = f"token {token} at index {i} ends the text; pass only the tokens before it"
            raise OptionError("prefix", problem, code="text_ended", index=i)
