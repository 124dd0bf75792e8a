"""One generation on the host's side: what a draw becomes.

Owns the rules of a sequence that is being generated: hooks, forced runs, bans, stops,
budget and delivery, in this fixed order. Must never run a model or evaluate an array:
a draw is shown to it as a ``DrawView``, and the KV cache is just one more part of the
sequence. Invariant: ``settle`` accepts a token and all that follows from it, or takes
tokens back in every part, or raises with the history as it was.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace

from ..errors import DeadEndError, FilterError, HookError, MlxgenError, OptionError, RewindError
from ..filters import Int32Words, without_tokens, words_of
from ..sampling import (
    DrawRow,
    DrawView,
    ForcedView,
    PostSamplingResult,
    Want,
    derive_seed,
)
from ..text import BanMatch, StopMatch
from ..tokens import Token, Vocabulary
from .chunk import Alternative, Chunk, FinishReason, Stop
from .closing import Closing
from .healing import healing_feed, healing_mask
from .options import Options
from .outbox import Accepted, Outbox
from .retries import Retries
from .sequence import Sequence

RARELY_FORCED = 32  # sampled tokens without a forced run after which none is expected


class Verdict(enum.Enum):
    """What a draw came to."""

    NEXT = "accepted"
    AGAIN = "declined, perhaps with tokens before it: draw again where the history ends"
    END = "accepted, and the generation has ended"


@dataclass(slots=True)
class Tally:
    """What happened so far, for ``Usage``."""

    forced: int = 0
    rewound: int = 0
    redraws: int = 0
    incomplete: bool = False


class Row:
    """The host's state of one generation; see the module.

    ``sequence`` holds the prompt; the row itself feeds it ``options.prefix``. ``budget``
    is the number of tokens that may be generated, the prefix included. ``outbox`` says
    how chunks are delivered.
    """

    __slots__ = (
        "_closing",
        "_forks",
        "_match",
        "_retries",
        "_strayed",
        "_tail",
        "_text_start",
        "_unforced",
        "budget",
        "finish_reason",
        "first",
        "options",
        "outbox",
        "seed",
        "sequence",
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
        self.seed = seed
        self.finish_reason: FinishReason | None = None
        self.tally = Tally()
        self.first = len(options.prefix)
        # What a draw has to report; hooks add to it what they look at.
        self.want = Want(logprob=options.top_logprobs is not None, top=options.top_logprobs or 0)
        self._retries = Retries()
        self._forks = 0
        # Sampled tokens since the last forced run; none is forced where log-probabilities
        # are wanted, as these need a forward pass for each position.
        self._unforced = 0 if options.top_logprobs is None else RARELY_FORCED
        self._strayed = False  # whether the filters were kept from the last token
        self._match: StopMatch | None = None
        self._tail = ""  # what the flush put behind the text
        self._take_prefix(options.prefix)
        self._text_start = sequence.transcript.end(self.first)
        self.outbox = Outbox.for_options(options, queued, self._text_start)
        self._closing: Closing | None = None
        if options.close_json and sequence.constraint is not None:
            self._closing = Closing(sequence.constraint)

    def _take_prefix(self, prefix: Tokens[Token]) -> None:
        for i, token in enumerate(prefix):
            try:
                event = self.sequence.advance(token, self._feed(token))
            except FilterError as error:
                raise OptionError(
                    "prefix", f"the filters do not allow token {token} at {i}: {error}"
                ) from error
            ends = token in self.vocabulary.eos and not self.options.ignore_eos
            if event is not None or ends:
                raise OptionError(
                    "prefix", f"token {token} at {i} ends the text; give only the tokens before it"
                )

    # What the loop asks before a draw

    @property
    def position(self) -> int:
        """Index of the next token among the generated ones."""
        return self.sequence.generated

    @property
    def attempt(self) -> int:
        """How often the next position was drawn before."""
        return self._retries.attempts.get(self.position, 0)

    def request(self) -> DrawRow:
        """The next draw. Raises ``DeadEndError`` where no token is left for it."""
        return DrawRow(
            self.options.sampling,
            self.seed,
            self.position,
            self.attempt,
            self.mask(),
            self.sequence.counts,
            self._retries.temperature,
        )

    @property
    def may_decline(self) -> bool:
        """Whether tokens may be taken back as soon as they are sampled."""
        options = self.options
        return bool(options.hooks or options.banned or options.close_json)

    def blind_request(self) -> DrawRow | None:
        """The draw behind the next one, where it does not depend on what that gives."""
        sequence = self.sequence
        position = self.position + 1
        steered = sequence.constraint is not None or sequence.counts is not None
        healing = sequence.healer is not None and not sequence.healer.done
        if steered or healing or self.may_decline or position < self.options.min_tokens:
            return None
        attempt = self._retries.attempts.get(position, 0)
        return DrawRow(self.options.sampling, self.seed, position, attempt)

    @property
    def expects_forced(self) -> bool:
        """Whether a forced run is likely behind the next token.

        Then a look-ahead would waste a forward pass: token and run go through in one.
        """
        return self.sequence.constraint is not None and self._unforced < RARELY_FORCED

    @property
    def is_last(self) -> bool:
        """Whether the budget ends with the next token."""
        return self.position + 1 >= self.budget

    @property
    def delivered_text(self) -> str:
        """The text of all chunks handed out by ``take`` so far."""
        return self.sequence.transcript.slice(self._text_start, self.outbox.delivered) + self._tail

    def mask(self) -> Int32Words | None:
        """The allowed next tokens as packed bits; ``None``: all of them.

        Raises ``DeadEndError`` where nothing is left.
        """
        sequence = self.sequence
        position = self.position
        constraint = sequence.constraint
        words: Int32Words | None
        if sequence.healer is not None and not sequence.healer.done:
            words = healing_mask(sequence.healer, constraint, self.vocabulary, self.vocab_size)
        else:
            words = constraint.mask() if constraint is not None else None
        exclude = self._retries.excluded(position)
        if self._closing is not None and self._closing.forcing:
            step = self._closing.way[:1] if self._closing.way else sorted(self.vocabulary.eos)
            if step and exclude.isdisjoint(step):
                return words_of(step, self.vocab_size)
            self._closing.give_up()
        if position < self.options.min_tokens:
            singles = (s[0] for s in self.options.stop_tokens if len(s) == 1)
            exclude = exclude.union(self.vocabulary.eos, singles)
        elif self.options.ignore_eos and constraint is not None:
            exclude = exclude.union(self.vocabulary.eos)
        if not exclude:
            return words
        words = without_tokens(words, exclude, self.vocab_size)
        if not words.any():
            by = "excluded, banned" + (" or refused by the filters" if constraint else "")
            raise DeadEndError(
                f"position {position} is given up after {self.attempt} more attempts: "
                f"every token there is {by}; allow more, or rewind further"
            )
        return words

    def warm(self) -> None:
        """Compute the filters' next mask now, while the model runs; the draw will ask for it."""
        if self.sequence.constraint is not None:
            with contextlib.suppress(FilterError):  # raised again by the draw that needs it
                self.sequence.constraint.mask()

    # What a draw becomes

    def start(self, *, forced: bool = True) -> Verdict:
        """Take what is certain before the first draw: an end, or a run that filters force."""
        self._keeps_end_in_reach(None)
        if self.sequence.constraint is not None and self.sequence.constraint.ended():
            return self._finish("filter")
        return self.fast_forward() if forced else Verdict.NEXT

    def settle(self, token: Token, view: DrawView) -> Verdict:
        """Decide on a sampled token."""
        return self._offer(token, view)

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
            excluded = self._retries.excluded(self.position)
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

    def rewind(self, target: int) -> None:
        """Keep the first ``target`` generated tokens, delivered or not; draw on from there."""
        drawn = self.position
        if target == drawn:
            self.sequence.rewind(len(self.sequence))  # parts that an interrupt left ahead
            self.outbox.forgive()
            return
        self._rewind_parts(target, drawn)
        self.outbox.forgive()
        self._retries.asked.pop(target, None)
        self.finish_reason, self._match, self._tail = None, None, ""
        self.tally.rewound += drawn - target

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
        twin._retries = self._retries.fork()
        twin.seed = seed
        twin._forks = 0
        return twin

    def _offer(self, token: Token, view: DrawView, *, forced: bool = False) -> Verdict:
        position = self.position
        feed: Tokens[Token] | None = None
        exhausted = False
        if self.options.hooks:
            wish = self._consult(token, view)
            back = wish.rewind or int(wish.resample)
            if back:
                target = position + 1 - back
                self._check_reach(target, back)
                if self._retries.asked.get(target, 0) < self.options.max_resample:
                    self._rewind_parts(target, position + 1)
                    self._retries.ask(target, wish.exclude, wish.temperature)
                    self.tally.redraws += 1
                    self.tally.rewound += back - 1
                    return Verdict.AGAIN
                exhausted = True
            if wish.sampled_token != token:
                token, forced = wish.sampled_token, False
                if token in self._retries.banned.get(position, ()):
                    raise HookError(
                        f"a hook put token {token} at position {position}, where a ban excludes "
                        "it; choose another, or look at attempt"
                    )
                if self.sequence.kv is not None:  # the look-ahead ran with the other token
                    self.sequence.kv.rewind(len(self.sequence))
            if not wish.feed_filters:
                feed = ()
        self._strayed = feed is not None
        attempts = self.attempt
        event = self.sequence.advance(token, self._feed(token) if feed is None else feed)
        ends = self._end_after(token, event)
        if event is None and ends is not None:  # a ban may have waited for the end of the text
            event = self.sequence.transcript.ban_at_end()
        if isinstance(event, BanMatch):
            return self._ban(event)
        if not self._keeps_end_in_reach(token if feed is None else None):
            self.sequence.rewind(self.sequence.base + position)
            self.tally.redraws += 1
            return Verdict.AGAIN  # and then nothing but the way to the end
        self._retries.accepted()
        wanted = self.options.top_logprobs is not None
        logprob, top = self._report(token, view) if wanted else (None, ())
        self.outbox.push(Accepted(token, position, logprob, top, forced, attempts, exhausted))
        if isinstance(event, StopMatch):
            self._match = event
        return self._finish(ends) if ends is not None else Verdict.NEXT

    def _report(self, token: Token, view: DrawView) -> tuple[float | None, tuple[Alternative, ...]]:
        logprob, top = view.report(token)
        return logprob, tuple(Alternative(*pair) for pair in top)

    def _end_after(self, token: Token, event: BanMatch | StopMatch | None) -> FinishReason | None:
        """Why the generation ends with the token just taken in, if it does; in fixed order."""
        if isinstance(event, StopMatch):
            return "stop"
        if token in self.vocabulary.eos and not self.options.ignore_eos:
            return "stop"
        if self.sequence.constraint is not None and self.sequence.constraint.ended():
            return "filter"
        closing = self._closing
        if closing is not None and closing.forcing and len(closing.way or ()) == 1:
            return "filter"  # this token was the last step of the way to a valid end
        return "length" if self.position >= self.budget else None

    def _feed(self, token: Token) -> Tokens[Token] | None:
        """The tokens that the filters take for ``token``; ``None``: the token itself."""
        sequence = self.sequence
        if token in self.vocabulary.eos:
            ends = not self.options.ignore_eos and sequence.constraint is not None
            if ends and not sequence.constraint.can_end():  # type: ignore[union-attr]
                raise FilterError(
                    f"the end token {token} is not allowed at position {self.position}: "
                    "the filters do not let the text end there"
                )
            return ()
        if sequence.healer is not None and not sequence.healer.done:
            return healing_feed(sequence.healer, self.vocabulary, token)
        return None

    def _consult(self, token: Token, view: DrawView) -> PostSamplingResult:
        wish = PostSamplingResult(
            view,
            token,
            position=self.position,
            attempt=self.attempt,
            text=self._text_so_far,
            text_after=self._text_with,
        )
        for hook in self.options.hooks:
            try:
                hook(wish)
                wish.check(self.vocab_size)
            except MlxgenError:
                raise
            except Exception as error:
                name = getattr(hook, "__qualname__", type(hook).__name__)
                raise HookError(
                    f"hook {name} failed at position {self.position}: {error!r}"
                ) from error
            if wish.resample or wish.rewind:
                break
        if not isinstance(view, ForcedView):
            self.want = view.looked_for
        return wish

    def _text_so_far(self) -> str:
        transcript = self.sequence.transcript
        return transcript.slice(0, transcript.end(len(transcript)))

    def _text_with(self, token: Token) -> str:
        return self.sequence.transcript.text_with(token)

    def _run(self, run: Iterable[Token]) -> Verdict:
        for token in run:
            verdict = self.push(token)
            if verdict is Verdict.AGAIN:
                return verdict
            self.tally.forced += 1
            if verdict is Verdict.END or self._strayed or self.sequence.history[-1] != token:
                return verdict
        return Verdict.NEXT

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
        self._rewind_parts(target, drawn)
        self._retries.ban(target, token)
        self.tally.redraws += 1
        self.tally.rewound += drawn - 1 - target
        return Verdict.AGAIN

    def _rewind_parts(self, target: int, drawn: int) -> None:
        self.sequence.rewind(self.sequence.base + target)
        self._retries.back(target, drawn)
        self.outbox.rewind(target, self.sequence.transcript)
        if self._closing is not None:
            self._closing.restart(self.budget - target)

    def _check_reach(self, target: int, back: int) -> None:
        floor = max(self.first, self.outbox.floor)
        if target < floor:
            possible = self.position + 1 - floor
            raise RewindError(
                f"a hook asked at position {self.position} to take back {back} tokens, but only "
                f"{possible} are not delivered yet; use hold_tokens={back - 1} to delay delivery, "
                "or allow_retract=True",
                possible=possible,
            )

    def _keeps_end_in_reach(self, taken: Token | None) -> bool:
        """Whether a valid end still fits, as far as ``close_json`` was asked for."""
        closing, healer = self._closing, self.sequence.healer
        if closing is None or (healer is not None and not healer.done):
            return True
        return closing.look(self.budget - self.position, taken)

    def _finish(self, reason: FinishReason) -> Verdict:
        constraint = self.sequence.constraint
        if self.options.close_json and constraint is not None and not constraint.can_end():
            self.tally.incomplete = True
        self.finish_reason = reason
        return Verdict.END
