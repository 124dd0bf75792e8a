"""One generation on the host's side: what a draw becomes.

Owns the rules of a sequence that is being generated: hooks, forced runs, bans, stops,
budget and delivery, in this fixed order. Must never run a model or evaluate an array:
a draw is shown to it as a ``DrawView``, and the KV cache is just one more part of the
sequence. Invariant: ``settle`` accepts a token and all that follows from it, or takes
tokens back in every part, or raises with the history as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import DeadEndError, OptionError, RewindError
from ...filters import Int32Words
from ...sampling import (
    DrawRow,
    DrawView,
    ForcedView,
    Want,
    derive_seed,
)
from ...text import BanMatch, StopMatch
from ...tokens import Token, Vocabulary
from ..chunk import Alternative, Candidate, Chunk, FinishReason, Stop
from ..options import Options
from .closing import Closing
from .healing import fed
from .hooks import hear
from .masking import next_mask
from .outbox import Accepted, Outbox
from .retries import Retries
from .sequence import Sequence
from .steering import Steering, follow
from .verdict import Tally, Verdict

if TYPE_CHECKING:
    from ..speculation.drafting import Drafter

RARELY_FORCED = 32  # sampled tokens without a forced run after which none is expected


class Row:
    """The host's state of one generation; see the module.

    ``sequence`` holds the prompt, and behind it ``options.prefix``. ``budget`` is the number
    of tokens that may be generated, the prefix included. ``outbox`` says
    how chunks are delivered.
    """

    __slots__ = (
        "_closing",
        "_forks",
        "_match",
        "_strayed",
        "_tail",
        "_unforced",
        "budget",
        "drafter",
        "finish_reason",
        "first",
        "options",
        "outbox",
        "retries",
        "seed",
        "sequence",
        "steering",
        "tally",
        "vocab_size",
        "vocabulary",
        "want",
    )

    def __init__(
        self,
        sequence: Sequence,
        options: Options,
        vocabulary: Vocabulary,
        vocab_size: int,
        *,
        budget: int,
        seed: int,
        queued: bool = True,
    ) -> None:
        self.sequence = sequence
        self.options = options
        self.vocabulary = vocabulary
        self.vocab_size = vocab_size
        self.budget = budget
        self.drafter: Drafter | None = None  # names tokens that may come next
        self.steering: Steering | None = None  # how a controller wants the next token drawn
        self.seed = seed
        self.finish_reason: FinishReason | None = None
        self.tally = Tally()
        self.first = len(options.prefix)
        # What a draw has to report; hooks add to it what they look at.
        self.want = Want(
            candidates=options.top_candidates,
            logprob=options.top_logprobs is not None,
            top=options.top_logprobs or 0,
        )
        self.retries = Retries()
        self._forks = 0
        # Sampled tokens since the last forced run; none is forced where log-probabilities
        # are wanted, as these need a forward pass for each position.
        self._unforced = 0 if options.top_logprobs is None else RARELY_FORCED
        self._strayed = False  # whether the filters were kept from the last token
        self._match: StopMatch | None = None
        self._tail = ""  # what the flush put behind the text
        self.outbox = Outbox.for_options(options, queued, sequence.transcript.end(self.first))
        self._closing: Closing | None = None
        if options.close_json and sequence.constraint is not None:
            self._closing = Closing(sequence.constraint)

    # What the loop asks before a draw

    @property
    def position(self) -> int:
        """Index of the next token among the generated ones."""
        return self.sequence.generated

    @property
    def attempt(self) -> int:
        """How often the next position was drawn before."""
        return self.retries.attempts.get(self.position, 0)

    def request(self) -> DrawRow:
        """The next draw. Raises ``DeadEndError`` where no token is left for it."""
        steering = self.steering
        return DrawRow(
            self.options.sampling,
            self.seed,
            self.position,
            self.attempt,
            self.mask(),
            self.sequence.counts,
            self.retries.temperature if steering is None else steering.temperature,
        )

    @property
    def may_decline(self) -> bool:
        """Whether tokens may be taken back as soon as they are sampled."""
        options, steering = self.options, self.steering
        if steering is not None and steering.splices:
            return True
        return bool(options.hooks or options.banned or options.close_json)

    def blind_request(self) -> DrawRow | None:
        """The draw behind the next one, where it does not depend on what that gives."""
        sequence = self.sequence
        position = self.position + 1
        steered = sequence.constraint is not None or sequence.counts is not None
        steered = steered or self.steering is not None
        healing = sequence.healer is not None and not sequence.healer.done
        if steered or healing or self.may_decline or position < self.options.min_tokens:
            return None
        return self.plain_request(position)

    def plain_request(self, position: int) -> DrawRow:
        """The draw of a later position, if nothing but the position goes into it."""
        attempt = self.retries.attempts.get(position, 0)
        return DrawRow(self.options.sampling, self.seed, position, attempt)

    @property
    def expects_forced(self) -> bool:
        """Whether a forced run is likely behind the next token.

        Then a look-ahead would waste a forward pass: token and run go through in one.
        """
        if self.steering is not None and self.steering.expects_run:
            return True
        return self.sequence.constraint is not None and self._unforced < RARELY_FORCED

    @property
    def may_draft(self) -> bool:
        """Whether drafted tokens make sense here: not where the next draw is one of its kind."""
        return not self._is_led and not self.retries.differs

    @property
    def _is_led(self) -> bool:
        """Whether the healing of the prompt or a way to the end says what comes next."""
        healer, closing = self.sequence.healer, self._closing
        return (healer is not None and not healer.done) or (closing is not None and closing.forcing)

    @property
    def is_last(self) -> bool:
        """Whether the budget ends with the next token."""
        return self.position + 1 >= self.budget

    def has_exclusions(self, start: int, stop: int) -> bool:
        """Whether bans or hooks have ruled tokens out at positions from ``start`` to ``stop``."""
        return any(self.retries.excluded(position) for position in range(start, stop))

    def ends(self, token: Token) -> bool:
        """Whether a token is an end of the text."""
        return token in self.vocabulary.eos and not self.options.ignore_eos

    @property
    def delivered_text(self) -> str:
        """The text of all chunks handed out by ``take`` so far."""
        return self.sequence.transcript.slice(self.outbox.given, self.outbox.delivered) + self._tail

    def mask(self) -> Int32Words | None:
        """The allowed next tokens as packed bits; ``None``: all of them.

        Raises ``DeadEndError`` where nothing is left.
        """
        return self._mask(self._closing, self.retries.excluded(self.position))

    def leaves_any(self, exclude: Iterable[Token]) -> bool:
        """Whether any token could come next if a hook excluded these."""
        excluded = self.retries.excluded(self.position).union(exclude)
        try:
            self._mask(None, excluded)  # a way to the end is given up for another token
        except DeadEndError:
            return False
        return True

    def warm(self) -> None:
        """Compute the filters' next mask now, while the model runs; the draw will ask for it."""
        if self.sequence.constraint is not None:
            with contextlib.suppress(Exception):  # raised again by the draw that needs it
                self.sequence.constraint.mask()

    # What a draw becomes

    def start(self, *, forced: bool = True) -> Verdict:
        """Take what is certain before the first draw: an end, or a run that filters force."""
        self._keeps_end_in_reach(None)
        if self.sequence.constraint is not None and self.sequence.constraint.ended():
            return self._finish("filter")
        return self.fast_forward() if forced else Verdict.NEXT

    def settle(self, token: Token, view: DrawView, *, from_draft: bool = False) -> Verdict:
        """Decide on a sampled token; ``from_draft``: a draft had proposed it."""
        if self.steering is not None:
            return follow(self, self.steering, token, view)
        return self._offer(token, view, from_draft=from_draft)

    def push(self, token: Token) -> Verdict:
        """Put a token that was chosen elsewhere at the next position; hooks see it."""
        return self._offer(token, ForcedView(token), forced=True)

    def fast_forward(self) -> Verdict:
        """Append the tokens that the filters force; they go through the model together."""
        constraint, healer = self.sequence.constraint, self.sequence.healer
        if constraint is None or self.options.top_logprobs is not None:
            return Verdict.NEXT
        self._unforced += 1
        while healer is None or healer.done:
            excluded = self.retries.excluded(self.position)
            run = constraint.forced()
            if not run and self._closing is not None and self._closing.forcing:
                run = list(self._closing.way or ())
            if not run or run[0] in excluded:
                break
            self._unforced = 0
            verdict = self._run(run)
            if verdict is not Verdict.NEXT:
                return verdict
        return Verdict.NEXT

    def take(self) -> list[Chunk]:
        """The chunks that may be delivered now; at the end, all that are left."""
        transcript = self.sequence.transcript
        if self.finish_reason is None:
            return self.outbox.release(transcript)
        cut = self._match.start if self._match is not None else None
        self._tail = transcript.flush() if cut is None else ""
        stop: Stop | None = self._match.stop if self._match is not None else None
        return self.outbox.finish(transcript, self.finish_reason, stop, cut)

    def end(self, reason: FinishReason) -> None:
        """End the generation for the caller's reasons, unless it has ended."""
        if self.finish_reason is None:
            self._finish(reason)

    def target_of(self, tokens: int | None, to: int | None, have: int) -> int:
        """What a caller who has seen ``have`` tokens wants kept, if that can be done.

        Raises ``RewindError`` for less than the prefix or more than there is.
        """
        if (tokens is None) == (to is None):
            raise TypeError("give either tokens=n or to=length")
        target = have - tokens if tokens is not None else to
        assert target is not None
        if not self.first <= target <= have:
            raise RewindError(
                f"cannot rewind to {target} of {have} generated tokens, the first {self.first} of "
                f"which were given; at most {have - self.first} can be taken back",
                possible=have - self.first,
            )
        return target

    def rewind(self, target: int, seen: int | None = None) -> None:
        """Keep the first ``target`` generated tokens, delivered or not; draw on from there.

        The caller has seen ``seen`` tokens, all of them by default: what was generated behind
        these is as if it never was.
        """
        drawn = self.position
        if target == drawn:
            self.sequence.rewind(len(self.sequence))  # parts that an interrupt left ahead
            self.outbox.forgive()
            return
        self._rewind_parts(target)
        self.retries.back_for(target, drawn if seen is None else seen)
        self.outbox.forgive()
        self.retries.asked.pop(target, None)
        self.finish_reason, self._match, self._tail = None, None, ""
        self.tally.rewound += drawn - target

    def take_back(self, count: int, *, drawn: int = 0) -> None:
        """Take back the newest ``count`` tokens, the prompt's included, delivered or not.

        ``drawn`` more were drawn behind them and never taken in.
        """
        before, to = self.position, len(self.sequence) - count
        self.rewind_parts(max(0, to - self.sequence.base), before + drawn)
        self.sequence.rewind(to)
        self.first = min(self.first, self.position)
        self.tally.rewound += before - self.position

    def fork_seeds(self, count: int) -> list[int]:
        """Seeds for ``count`` forks, derived from this row's and never given twice."""
        if count < 1:
            raise OptionError("n", f"{count} is out of range, give 1 or more")
        start = self._forks
        self._forks += count
        return [derive_seed(self.seed, start + i + 1) for i in range(count)]

    def fork(self, seed: int) -> Row:
        """An independent copy that draws from ``seed``."""
        twin = Row.__new__(Row)
        for name in Row.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.options = self.options.fork()
        twin.sequence = self.sequence.fork()
        if self._closing is not None and twin.sequence.constraint is not None:
            twin._closing = self._closing.fork(twin.sequence.constraint)
        twin.outbox = self.outbox.fork()
        twin.tally = replace(self.tally)
        twin.retries = self.retries.fork()
        twin.drafter = self.drafter.fork() if self.drafter is not None else None
        twin.seed = seed
        twin._forks = 0
        return twin

    def _mask(self, closing: Closing | None, excluded: frozenset[Token]) -> Int32Words | None:
        return next_mask(
            self.sequence,
            self.options,
            closing,
            excluded,
            self.steering.words if self.steering is not None else None,
            self.vocabulary,
            self.vocab_size,
        )

    def _offer(
        self, token: Token, view: DrawView, *, forced: bool = False, from_draft: bool = False
    ) -> Verdict:
        constraint = self.sequence.constraint
        if self.options.top_logprobs is not None and constraint is not None and not self._is_led:
            forced = forced or constraint.only() is not None  # drawn for its log-probability
        position = self.position
        withheld = exhausted = False
        if self.options.hooks:
            heard = hear(self, token, view)
            if heard is None:
                return Verdict.AGAIN
            if heard.token != token:
                token, forced, from_draft = heard.token, False, False
            withheld, exhausted = heard.withheld, heard.exhausted
        self._strayed = withheld
        attempts = self.attempt
        event = self.sequence.advance(token, () if withheld else self.feed(token))
        ends = self._end_after(token, event)
        if event is None and ends is not None:  # a ban may have waited for the end of the text
            event = self._ban_at_end(position)
        if isinstance(event, BanMatch):
            return self._ban(event)
        if not self._keeps_end_in_reach(None if withheld else token):
            self.sequence.rewind(self.sequence.base + position)
            self.tally.redraws += 1
            return Verdict.AGAIN  # and then nothing but the way to the end
        self.retries.accepted()
        self.tally.forced += forced
        wanted = self.options.top_logprobs
        logprob, top = self._report(token, view, wanted) if wanted is not None else (None, ())
        others = self._candidates(view) if self.options.top_candidates else ()
        self.outbox.push(
            Accepted(token, position, logprob, top, others, from_draft, forced, attempts, exhausted)
        )
        if isinstance(event, StopMatch):
            self._match = event
        return self._finish(ends) if ends is not None else Verdict.NEXT

    def _report(
        self, token: Token, view: DrawView, wanted: int
    ) -> tuple[float | None, tuple[Alternative, ...]]:
        logprob, top = view.report(token, wanted)
        return logprob, tuple(Alternative(*pair) for pair in top)

    def _candidates(self, view: DrawView) -> tuple[Candidate, ...]:
        tokens, probs = view.best(self.options.top_candidates)
        return tuple(map(Candidate, tokens.tolist(), probs.tolist()))

    def _end_after(self, token: Token, event: BanMatch | StopMatch | None) -> FinishReason | None:
        """Why the generation ends with the token just taken in, if it does; in fixed order."""
        if isinstance(event, StopMatch):
            return "stop"
        if self.ends(token):
            return "stop"
        if self.sequence.constraint is not None:
            with contextlib.suppress(Exception):  # raised again by the next draw, not for this one
                if self.sequence.constraint.ended():
                    return "filter"
        closing = self._closing
        if closing is not None and closing.forcing and len(closing.way or ()) == 1:
            return "filter"  # this token was the last step of the way to a valid end
        return "length" if self.position >= self.budget else None

    def feed(self, token: Token) -> Tokens[Token] | None:
        """The tokens that the filters take for ``token``; ``None``: the token itself."""
        return fed(self.sequence, token, self.vocabulary, ignore_eos=self.options.ignore_eos)

    def _run(self, run: Iterable[Token]) -> Verdict:
        for token in run:
            verdict = self.push(token)
            if verdict is Verdict.AGAIN:
                return verdict
            if verdict is Verdict.END or self._strayed or self.sequence.history[-1] != token:
                return verdict
        return Verdict.NEXT

    def _ban_at_end(self, position: int) -> BanMatch | None:
        try:
            return self.sequence.transcript.ban_at_end()
        except OptionError:  # an expression takes too long
            self.sequence.rewind(self.sequence.base + position)
            raise

    def _ban(self, match: BanMatch) -> Verdict:
        """Go back to the token that holds the match's first character, and exclude it there."""
        target = self.sequence.transcript.token_at(match.start)
        drawn = self.position
        token = self.sequence.history[self.sequence.base + target]
        if target < self.first:
            self.sequence.rewind(len(self.sequence) - 1)
            raise DeadEndError(
                f"the banned {match.pattern!r} begins inside the given prefix, at token {target}"
            )
        if not self.retries.spend(target, drawn):
            self.sequence.rewind(len(self.sequence) - 1)
            raise DeadEndError(
                f"bans have taken back {self.retries.spent} draws of a text that has come to"
                f" {self.retries.furthest} tokens, {match.pattern!r} the last of them: there is"
                " hardly a text without them; ban less"
            )
        self.rewind_parts(target, drawn)
        self.retries.ban(target, token)
        self.tally.redraws += 1
        self.tally.rewound += drawn - 1 - target
        return Verdict.AGAIN

    def rewind_parts(self, target: int, drawn: int) -> None:
        """Keep the first ``target`` of the generated tokens, of which ``drawn`` were drawn."""
        self._rewind_parts(target)
        self.retries.back(target, drawn)

    def _rewind_parts(self, target: int) -> None:
        self.sequence.rewind(self.sequence.base + target)
        self.outbox.rewind(target, self.sequence.transcript)
        if self._closing is not None:
            self._closing.restart(self.budget - target)

    def _keeps_end_in_reach(self, taken: Token | None) -> bool:
        """Whether a valid end still fits, as far as ``close_json`` was asked for."""
        closing, healer = self._closing, self.sequence.healer
        if closing is None or (healer is not None and not healer.done):
            return True
        return closing.look(self.budget - self.position, taken)

    def _finish(self, reason: FinishReason) -> Verdict:
        constraint = self.sequence.constraint
        if self._closing is not None and constraint is not None and not constraint.can_end():
            self.tally.incomplete = self._closing.why
        self.finish_reason = reason
        return Verdict.END
