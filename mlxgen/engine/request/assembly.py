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
from .closing import Closing
from .ending import ends
from .leads import fed
from .outbox import Outbox
from .prompt import Prompt
from .request import Request
from .thinking import ThinkingLimit


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
    healer = Healer(vocabulary, removed) if removed else None
    decoder = TextDecoder(vocabulary, strip=prompt.opens_text, skip=len(removed))
    stops = None
    if options.stop or options.stop_tokens:
        stops = StopMatcher(options.stop, options.stop_tokens)
    marks = prompt.thinking if options.thinking_budget is None else prompt.marks(vocabulary)
    thinking = thoughts = None
    if marks is not None and options.thinking_budget is not None:
        thinking = ThinkingLimit.of(options.thinking_budget, marks, vocabulary)
    if marks is not None:
        thoughts = Thoughts(marks)
    constraint = None
    if options.filters:
        strips = prompt.opens_text and vocabulary.strips_space
        constraint = Constraint(options.filters, vocabulary, vocab_size, strips_space=strips)
    sampling = options.sampling
    counts = None
    if sampling.penalises:
        counts = TokenCounts(plain(tokens), window=sampling.repetition_context_size)
    repetitions = None
    if sampling.avoids_repetitions:
        repetitions = Repetitions(plain(tokens), sampling, vocabulary.piece)
    aim = Aim(sampling.adaptive_target, sampling.adaptive_decay) if sampling.aims else None
    transcript = Transcript(
        decoder,
        stops,
        BanMatcher(options.banned, _standing(options, seed)) if options.banned else None,
        thoughts,
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
        constraint=constraint,
        transcript=transcript,
        healer=healer,
        counts=counts,
        repetitions=repetitions,
        aim=aim,
        thinking=thinking,
        outbox=Outbox(transcript, "at once"),
        want=Want(
            prob=options.top_logprobs is not None or options.top_candidates > 0,
            candidates=options.top_candidates,
            logprob=options.top_logprobs is not None,
            top=options.top_logprobs or 0,
        ),
        appends_forced=(
            queued
            and options.top_logprobs is None
            and (constraint is not None or thinking is not None)
        ),
    )
    _take_prefix(request)
    request.outbox = Outbox.for_options(
        options, transcript, queued, constraint is not None and constraint.checks
    )
    if options.close_json and constraint is not None:
        request.closing = Closing(constraint, budget)
    return request


def check_change(request: Request, options: Options) -> None:
    """Raise what ``change`` would."""
    options.check_vocabulary(request.vocab_size)
    if options.filters and options.filters is not request.options.filters:
        if not all(hasattr(each, "bind") for each in options.filters):
            raise OptionError("filters", "expected specifications, as a rewind may bind them anew")
        Constraint(options.filters, request.vocabulary, request.vocab_size)


def change(request: Request, options: Options) -> None:
    """Let the sampling, the filters and the stops of other ``options`` hold from here on.

    Filters and stops see only the text that is yet to come.
    """
    base, position, piece = request.base, request.position, request.vocabulary.piece
    history, sampling, constraint = plain(request.history), options.sampling, request.constraint
    if options.filters is not request.options.filters:
        constraint = None
        if options.filters:
            before = request.constraint
            strips = before is not None and before.strips_space and not position
            constraint = Constraint(
                options.filters, request.vocabulary, request.vocab_size, strips_space=strips
            )
            for _ in range(position):
                constraint.advance_as(())
        request.closing = None
        if options.close_json and constraint is not None:
            request.closing = Closing(constraint, request.budget)
            request.closing.restart(position)
        if constraint is not None and constraint.checks:
            request.outbox.wait_for_checks()
        request.constraint = constraint
        request.appends_forced = options.top_logprobs is None and (
            constraint is not None or request.thinking is not None
        )
    if sampling != request.options.sampling:
        request.counts = request.repetitions = request.aim = None
        if sampling.penalises:
            request.counts = TokenCounts(history[:base], window=sampling.repetition_context_size)
            for token in history[base:]:
                request.counts.advance(token)
        if sampling.avoids_repetitions:
            request.repetitions = Repetitions(history, sampling, piece)
        if sampling.aims:
            request.aim = Aim(sampling.adaptive_target, sampling.adaptive_decay)
            for token in history[base:]:
                request.aim.advance(token)
    if (options.stop, options.stop_tokens) != (request.options.stop, request.options.stop_tokens):
        stops = StopMatcher(options.stop, options.stop_tokens)
        request.transcript.look_for(stops if options.stop or options.stop_tokens else None)
    request.options = options


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
            event = request.advance(token, fed(request, token))
        except FilterError as error:
            raise OptionError(
                "prefix",
                f"the filters do not allow token {token} at index {i}: {error}; pass tokens that "
                "the same filters generated",
                code="end_not_allowed" if ends(request, token) else "token_not_allowed",
                index=i,
            ) from error
        if isinstance(event, BanMatch):
            raise OptionError(
                "prefix",
                f"token {token} at index {i} completes {event.pattern!r}, which is banned; pass "
                "tokens without it",
                code="text_banned",
                index=i,
            )
        if event is not None or ends(request, token):
            raise OptionError(
                "prefix",
                f"token {token} at index {i} ends the text; pass only the tokens before it",
                code="text_ended",
                index=i,
            )
