"""One generation on the host's side: its state, and the questions about it.

Owns the token history of a sequence and the parts built from it: filters, text, healing, what draws
look back at, the way to a valid end, what was delivered, and what repeated draws depend on. Unused
options cost nothing: only the needed parts exist. Must never know why a token was chosen or taken
back (``accept`` does), or what runs a model. Invariant: every part is at the same length of the
history; a rewind happens in all of them or in none.

Nothing else in mlxgen undoes a token. The KV cache is not a part: it is aligned to the history
before a pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index

from ...errors import FilterError, OptionError, RewindError
from ...filters import Constraint
from ...forks import forked
from ...images import plain
from ...options.rule import integer
from ...sampling import Lookback, Want, derive_seed
from ...text import (
    BanMatch,
    BanMatcher,
    Healer,
    StopMatch,
    StopMatcher,
    TextDecoder,
    Thoughts,
    Transcript,
    heal_plan,
)
from ...tokens import Token, Vocabulary
from ...workers import Work
from ..branches import Steering
from ..chunk import FinishReason, Usage
from ..history import History, rewind_all
from ..options import Options
from .outbox import Outbox
from .parts import Closing, Repeat, Retries, ThinkingLimit
from .prompt import Prompt

RECENT = 0.25  # the weight of the latest token in the share of tokens that force a run
LIKELY = 0.1  # the share from which on a forced run is expected


@dataclass
class Tally:
    """What ``Usage`` reports of a text besides its length; see there."""

    forced_tokens: int = 0
    rewound_tokens: int = 0
    redraws: int = 0
    forked_tokens: int = 0
    incomplete: str = ""
    violates: str = ""
    loops: int = 0
    looped: str = ""


class Request:
    """See the module.

    - ``vocab_size``: the width of the logits.
    - ``budget``: how many tokens may be generated, including ``options.prefix``.
    - ``history``: the ``base`` tokens of the prompt, then the generated ones, the ``first`` of
      which are ``options.prefix``. ``position`` is the index of the next one among them.
    - ``healer`` to ``retries``: the parts. ``lookback`` covers the prompt as well; it exists if
      draws depend on the tokens before them.
    - ``thinking``: how long to think before the answer; None: without a limit.
    - ``want``: what a draw has to report; what hooks look at is added.
    - ``steering``: how a controller wants the next token drawn.
    - ``finish_reason``, ``match``: why it has ended, and the stop that ended it.
    - ``forks``: how many seeds were given to forks so far.
    - ``appends_forced``: whether runs that must come are appended at once. That is so if there may
      be any, unless the caller pushes the tokens or wants their log-probabilities.
    - ``forcing``: the share of the tokens sampled lately that were followed by a forced run.
    - ``strayed``: whether the last token was withheld from the filters.
    - ``checking``: the check that it waits for; once that is over, the last token is drawn again,
      with the same result.
    - ``repeat``: how the text repeated itself at the last look.
    """

    def __init__(
        self,
        prompt: Prompt,
        options: Options,
        vocabulary: Vocabulary,
        vocab_size: int,
        *,
        budget: int,
        seed: int,
        queued: bool = True,
    ) -> None:
        """Raises ``GrammarError`` if a filter cannot be compiled, and ``OptionError`` if the text
        cannot go on after the prefix. Without ``queued``, the caller pushes the tokens."""
        self.options = options
        self.vocabulary, self.vocab_size = vocabulary, vocab_size
        self.budget, self.seed = budget, seed
        tokens, removed = list(prompt.tokens), b""
        if options.heal:
            tokens, removed = heal_plan(vocabulary, tokens)
        self.history = History(tokens)
        self.base, self.first, self.position = len(tokens), len(options.prefix), 0

        marks = prompt.thinking
        self.thinking: ThinkingLimit | None = None
        if options.thinking_budget is not None and (marks := prompt.marks(vocabulary)) is not None:
            self.thinking = ThinkingLimit.of(options.thinking_budget, marks, vocabulary)
        self.healer = Healer(vocabulary, removed) if removed else None
        self.transcript = Transcript(
            TextDecoder(vocabulary, strip=prompt.opens_text, skip=len(removed)),
            _stops(options),
            BanMatcher(options.banned, _standing(options, seed)) if options.banned else None,
            Thoughts(marks) if marks is not None else None,
            stop_in_thoughts=options.stop_in_reasoning,
        )
        self.lookback: Lookback | None = None
        self._look_back()
        self._opens = prompt.opens_text and self.healer is None  # as for the decoder
        constraint = self.constraint = self._bound(options, opens=self._opens)
        self.closing: Closing | None = None
        checked = constraint is not None and constraint.checks
        self.outbox = Outbox(self.transcript, options, queued=queued, checked=checked)
        self.retries = Retries()

        self.want = Want(
            prob=options.top_logprobs is not None or options.top_candidates > 0,
            candidates=options.top_candidates,
            logprob=options.top_logprobs is not None,
            top=options.top_logprobs or 0,
        )
        self.tally = Tally()
        self.steering: Steering | None = None
        self.finish_reason: FinishReason | None = None
        self.match: StopMatch | None = None
        self.checking: Work | None = None
        self.appends_forced = queued and self.may_append_forced
        self.forks, self.forcing, self.strayed = 0, 0.0, False
        self.repeat: Repeat | None = None
        self._take_prefix()
        if options.close_json and constraint is not None:
            self.closing = Closing(constraint, budget)

    # ---- its parts -------------------------------------------------------------------------

    @property
    def may_append_forced(self) -> bool:
        """Whether there may be runs that must come, and none needs a log-probability."""
        leads = self.constraint is not None or self.thinking is not None
        return leads and self.options.top_logprobs is None

    def _bound(self, options: Options, *, opens: bool) -> Constraint | None:
        """The filters for a text, which starts anew if it ``opens``, or continues the prompt's."""
        if not options.filters:
            return None
        strips = opens and self.vocabulary.strips_space
        return Constraint(options.filters, self.vocabulary, self.vocab_size, strips_space=strips)

    def _look_back(self) -> None:
        """Remember the tokens so far, if draws depend on them."""
        sampling, tokens, base = self.options.sampling, plain(self.history), self.base
        self.lookback = None
        if sampling.looks_back:
            self.lookback = Lookback(tokens[:base], sampling, self.vocabulary.piece)
            for token in tokens[base:]:
                self.lookback.advance(token)

    def _take_prefix(self) -> None:
        """Take in the tokens that count as already generated."""
        for i, token in enumerate(self.options.prefix):
            try:
                event = self.advance(token)
            except FilterError as error:
                problem = f"the filters do not allow token {token} at index {i}: {error}; pass"
                problem += " tokens that the same filters generated"
                code = "end_not_allowed" if self.ends(token) else "token_not_allowed"
                raise OptionError("prefix", problem, code=code, index=i) from error
            if isinstance(event, BanMatch):
                problem = f"token {token} at index {i} completes {event.pattern!r}, which is"
                problem += " banned; pass tokens without it"
                raise OptionError("prefix", problem, code="text_banned", index=i)
            if event is not None or self.ends(token):
                problem = f"token {token} at index {i} ends the text; pass only the tokens before"
                raise OptionError("prefix", f"{problem} it", code="text_ended", index=i)
        self.outbox.skip()

    def check_change(self, options: Options) -> None:
        """Raise what ``change`` would raise."""
        options.check_vocabulary(self.vocab_size)
        if options.filters and options.filters is not self.options.filters:
            if not all(hasattr(each, "bind") for each in options.filters):
                problem = "expected specifications, as a rewind may bind them anew"
                raise OptionError("filters", problem)
            self._bound(options, opens=False)

    def change(self, options: Options) -> None:
        """Apply the sampling, the filters and the stops of other ``options`` from here on.

        Filters and stops see only the text that is yet to come. Raises ``OptionError`` or
        ``FilterError`` if they are wrong.
        """
        options.check_vocabulary(self.vocab_size)
        before, position = self.options, self.position
        if options.filters is not before.filters:
            constraint = self.constraint = self._bound(options, opens=self._opens and not position)
            self.closing = None
            if constraint is not None:
                for _ in range(position):
                    constraint.advance()
                if options.close_json:
                    self.closing = Closing(constraint, self.budget)
                    self.closing.restart(position)
                if constraint.checks:
                    self.outbox.wait_for_checks()
            self.appends_forced = self.may_append_forced
        self.options = options
        if options.sampling != before.sampling:
            self._look_back()
        if (options.stop, options.stop_tokens) != (before.stop, before.stop_tokens):
            self.transcript.look_for(_stops(options))

    # ---- the history -----------------------------------------------------------------------

    def advance(self, token: Token, *, withheld: bool = False) -> BanMatch | StopMatch | None:
        """Append one token; returns the ban or the stop that its text completed.

        The filters do not see a ``withheld`` one. Raises ``FilterError`` if they do not allow the
        token, and ``OptionError`` if a banned expression takes too long; then nothing has changed.
        """
        constraint, healer, rest = self.constraint, self.healer, None
        if healer is not None:
            rest = None if healer.done else healer.suffix(token)
            healer.advance(token)
        if constraint is not None:
            try:
                if withheld:
                    constraint.advance()
                elif token in self.vocabulary.eos:
                    if not self.options.ignore_eos and not constraint.can_end():
                        raise FilterError(
                            f"the end token {token} is not allowed at position {self.position}: "
                            "the filters do not let the text end there"
                        )
                    constraint.advance()
                elif rest is not None:  # they see exactly the bytes after the prompt
                    constraint.advance(*spelled(self.vocabulary, rest))
                else:
                    constraint.advance(token)
            except FilterError:
                if healer is not None:
                    healer.rewind(self.position)
                raise
        if self.lookback is not None:
            self.lookback.advance(token)
        self.history.append(token)
        self.position += 1
        try:
            return self.transcript.advance(token)
        except OptionError:
            self.rewind(len(self.history) - 1)
            raise

    def rewind(self, to: int) -> None:
        """Keep the first ``to`` tokens of the history, in every part or in none.

        Parts that an interrupt left ahead of the history go back to it as well.
        """
        count = max(0, to - self.base)
        # The filters first: only their rewind can fail
        parts = self.constraint, self.transcript, self.healer, self.closing
        rewind_all((*parts, self.outbox, self.retries), count)
        if self.lookback is not None:
            self.lookback.rewind(to)  # it covers the prompt as well
        if to < len(self.history):
            self.history.cut(to)
            self.finish_reason = self.match = None
            self.tally.incomplete = self.tally.looped = ""  # of an end that is no more
            self.repeat = self.checking = None
            self.base, self.first = min(self.base, to), min(self.first, count)
            self.position = count
            self.tally.forked_tokens = min(self.tally.forked_tokens, count)

    def drop(self, to: int) -> None:
        """Forget what follows the first ``to`` tokens, after a part failed to go back there: that
        part is ahead of the history until the next draw takes it back."""
        self.history.cut(to)
        self.position = len(self.history) - self.base
        self.finish_reason = self.match = None

    def fork(self, seed: int) -> Request:
        """An independent copy that draws from ``seed``."""
        constraint = self.constraint.fork() if self.constraint is not None else None
        transcript = self.transcript.fork()
        closing, retries = self.closing, self.retries.fork()
        retries.back_for(self.position, self.position)  # what its first draws were is not known
        return forked(
            self,
            shared=("vocabulary",),
            seed=seed,
            constraint=constraint,
            transcript=transcript,
            closing=None if closing is None or constraint is None else closing.fork(constraint),
            outbox=self.outbox.fork(transcript),
            retries=retries,
            tally=replace(self.tally, forked_tokens=self.position),
            forks=0,
            checking=None,
        )

    def fork_seeds(self, count: int) -> list[int]:
        """Seeds for ``count`` forks, derived from this one's; none is given twice."""
        integer(None, 1).check("n", count)
        start = self.forks
        self.forks += count
        return [derive_seed(self.seed, start + i + 1) for i in range(count)]

    # ---- questions -------------------------------------------------------------------------

    @property
    def tokens(self) -> list[Token]:
        """The generated tokens."""
        return self.history[self.base :]

    @property
    def usage(self) -> Usage:
        """The tokens so far; passes and times are not known here."""
        return Usage(
            prompt_tokens=self.base,
            completion_tokens=self.position,
            left_out=self.constraint.left_out if self.constraint is not None else (),
            **vars(self.tally),
        )

    def ends(self, token: Token) -> bool:
        """Whether a token ends the text."""
        return token in self.vocabulary.eos and not self.options.ignore_eos

    @property
    def may_end(self) -> bool:
        """Whether the filters let the text end here."""
        return self.constraint is None or self.constraint.can_end()

    @property
    def is_healing(self) -> bool:
        """Whether the end of the prompt is still being spelled anew."""
        return self.healer is not None and not self.healer.done

    @property
    def may_decline(self) -> bool:
        """Whether a sampled token may be taken back at once."""
        options, steering = self.options, self.steering
        if options.hooks or options.banned or options.close_json:
            return True
        return steering is not None and bool(steering.splices)

    @property
    def expects_forced(self) -> bool:
        """Whether a forced run is likely after the next token.

        Then a look-ahead would waste a forward pass: token and run go through in one pass.
        """
        if self.steering is not None and self.steering.expects_run:
            return True
        if self.thinking is not None and not self.thinking.allows(self.transcript, 2):
            return True
        return self.forcing > LIKELY

    def target_of(self, tokens: int | None, to: int | None, have: int, shown: int = 0) -> int:
        """The number of tokens that a rewind keeps, for a caller who has seen ``have`` tokens, the
        first ``shown`` of which must stay.

        Raises ``RewindError`` if that is fewer than these or the prefix, or more than ``have``.
        """
        if tokens is not None and to is None:
            target = have - index(tokens)
        elif to is not None and tokens is None:
            target = index(to)
        else:
            raise TypeError("expected either tokens=n or to=length; pass one of them")
        least = max(self.first, shown)
        if not least <= target <= have:
            why = "are the prefix" if least == self.first else "stay, without allow_retract"
            stays = f"; the first {least} {why}" if least else ""
            raise RewindError(
                f"cannot go back to {target} tokens: there are {have}, of which {have - least} can "
                f"be taken back{stays}",
                possible=have - least,
            )
        return target

    def check_integrity(self) -> None:
        """Assert that all parts are at the same length; for tests."""
        assert self.position == len(self.history) - self.base
        for part in (self.transcript, self.constraint, self.healer):
            assert part is None or len(part) == self.position
        assert self.lookback is None or len(self.lookback) == len(self.history)


def spelled(vocabulary: Vocabulary, data: bytes) -> list[Token]:
    """Bytes as tokens: a single token if one has exactly these bytes."""
    if not data:
        return []
    single = vocabulary.token_of(data)
    return [single] if single is not None else vocabulary.continue_with(data)


def _stops(options: Options) -> StopMatcher | None:
    wanted = options.stop or options.stop_tokens
    return StopMatcher(options.stop, options.stop_tokens) if wanted else None


def _standing(options: Options, seed: int) -> Callable[[BanMatch], bool]:
    """Which matches of bans are let stand: a share, by what they are and where they begin."""
    if options.ban_strength == 1:
        return lambda match: False

    def stands(match: BanMatch) -> bool:
        told = f"{seed}/{match.start}/{match.pattern}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(told, digest_size=8, person=b"ban").digest()
        return int.from_bytes(digest) >= options.ban_strength * 2**64

    return stands
