"""One generation on the host's side: its state, and the questions about it.

Owns the token history of a sequence and the parts that were built from it: filters, text, healing,
token counts, the way to a valid end, what was delivered, and what repeated draws depend on. Must
never know why a token was chosen or taken back (``accept`` does), or what runs a model. Invariant:
every part is at the same length of the history; a rewind happens in all of them or in none.

Nothing else in mlxgen undoes a token. The KV cache is not a part: it is aligned to the history
before a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...errors import FilterError, OptionError, RewindError
from ...filters import Constraint
from ...forks import forked
from ...sampling import Aim, Repetitions, TokenCounts, Want, derive_seed
from ...text import BanMatch, Healer, StopMatch, Transcript
from ...tokens import Token, Vocabulary
from ...workers import Work
from ..branches import Steering
from ..chunk import FinishReason, Usage
from ..history import History, rewind_all
from ..options import Options
from .loops import UNKNOWN, Repeat, goes_on, repeated
from .outbox import Outbox
from .retries import Retries
from .ways import Closing, ThinkingLimit

RECENT = 0.25  # the weight of the latest token in the share of tokens that force a run
LIKELY = 0.1  # the share from which on one is expected


@dataclass(slots=True)
class Tally:
    """Tokens that were ``forced``, taken back (``rewound``) or declined at once (``redraws``).

    ``forked``: the tokens that a fork shares with the request it was made of. ``incomplete``: why
    the text does not end validly, although ``close_json`` asked for that. ``violates``: how it
    violates its schema. ``loops``: how often a loop was taken back. ``looped``: what the text
    repeated, if it ended because of that.
    """

    forced: int = 0
    rewound: int = 0
    redraws: int = 0
    forked: int = 0
    incomplete: str = ""
    violates: str = ""
    loops: int = 0
    looped: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """See the module.

    - ``vocab_size``: the width of the logits.
    - ``budget``: how many tokens may be generated, including ``options.prefix``.
    - ``history``: the ``base`` tokens of the prompt, then the generated ones; the ``first`` of
      these are ``options.prefix``. ``position`` is the index of the next one among them.
    - ``constraint`` to ``retries``: the parts. ``counts`` and ``repetitions`` cover the prompt as
      well.
    - ``thinking``: how long to think before the answer; None: without a limit.
    - ``looks_back``: whether a draw depends on the tokens before it, through penalties or
      adaptive-p.
    - ``want``: what a draw has to report; hooks add to it what they look at.
    - ``steering``: how a controller wants the next token drawn.
    - ``finish_reason``, ``match``: why it has ended, and the stop that it ended with.
    - ``forks``: how many seeds were given to forks so far.
    - ``appends_forced``: whether runs that must come are appended at once. That is so if there may
      be any, unless the caller pushes the tokens or wants their log-probabilities.
    - ``forcing``: the share of the tokens sampled lately that were followed by a forced run.
    - ``strayed``: whether the last token was withheld from the filters.
    - ``checking``: the check that it waits for; once it is over, the last token is drawn again,
      with the same result.
    - ``repeat``: how the text repeated itself at the last look.
    """

    options: Options
    vocabulary: Vocabulary
    vocab_size: int
    budget: int
    seed: int
    history: History
    base: int
    first: int
    transcript: Transcript
    healer: Healer | None
    thinking: ThinkingLimit | None
    outbox: Outbox
    want: Want
    constraint: Constraint | None = None
    counts: TokenCounts | None = None
    repetitions: Repetitions | None = None
    aim: Aim | None = None
    looks_back: bool = False
    appends_forced: bool = False
    position: int = 0
    closing: Closing | None = None
    retries: Retries = field(default_factory=Retries)
    tally: Tally = field(default_factory=Tally)
    steering: Steering | None = None
    finish_reason: FinishReason | None = None
    match: StopMatch | None = None
    forks: int = 0
    forcing: float = 0.0
    strayed: bool = False
    repeat: Repeat = UNKNOWN
    checking: Work | None = None

    # ---- the history and its parts ---------------------------------------------------------

    def advance(self, token: Token, *, withheld: bool = False) -> BanMatch | StopMatch | None:
        """Append one token; returns the ban or the stop that its text completed.

        The filters do not see one that is ``withheld`` from them. Raises ``FilterError`` if the
        filters do not allow the token, and ``OptionError`` if a banned expression takes too long;
        then nothing has changed.
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
                    self._check_end(constraint, token)
                    constraint.advance()
                elif rest is not None:  # they see exactly the bytes after the prompt
                    constraint.advance(*spelled(self.vocabulary, rest))
                else:
                    constraint.advance(token)
            except FilterError:
                if healer is not None:
                    healer.rewind(self.position)
                raise
        if self.counts is not None:
            self.counts.advance(token)
        if self.repetitions is not None:
            self.repetitions.advance(token)
        if self.aim is not None:
            self.aim.advance(token)
        self.history.append(token)
        self.position += 1
        try:
            return self.transcript.advance(token)
        except OptionError:
            self.rewind(len(self.history) - 1)
            raise

    def _check_end(self, constraint: Constraint, token: Token) -> None:
        if not self.options.ignore_eos and not constraint.can_end():
            raise FilterError(
                f"the end token {token} is not allowed at position {self.position}: "
                "the filters do not let the text end there"
            )

    def rewind(self, to: int) -> None:
        """Keep the first ``to`` tokens of the history, in every part or in none.

        Parts that an interrupt left ahead of the history go back to it as well.
        """
        count = max(0, to - self.base)
        # The filters first: only their rewind can fail
        parts = self.constraint, self.transcript, self.healer, self.closing, self.aim
        rewind_all((*parts, self.outbox, self.retries), count)
        rewind_all((self.counts, self.repetitions), to)  # which cover the prompt as well
        if to < len(self.history):
            self.history.cut(to)
            self.finish_reason = self.match = None
            self.repeat, self.checking = UNKNOWN, None
            self.base, self.first = min(self.base, to), min(self.first, count)
            self.position = count
            self.tally.forked = min(self.tally.forked, count)

    def drop(self, to: int) -> None:
        """Forget what follows the first ``to`` tokens, after a part failed to go back there: it is
        ahead of the history, and the next draw has it go back again."""
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
            tally=replace(self.tally, forked=self.position),
            forks=0,
            checking=None,
        )

    # ---- questions -------------------------------------------------------------------------

    @property
    def tokens(self) -> list[Token]:
        """The generated tokens."""
        return self.history[self.base :]

    @property
    def usage(self) -> Usage:
        """The tokens so far; passes and times are not known here."""
        tally = self.tally
        return Usage(
            prompt_tokens=self.base,
            completion_tokens=self.position,
            forked_tokens=tally.forked,
            forced_tokens=tally.forced,
            rewound_tokens=tally.rewound,
            redraws=tally.redraws,
            incomplete=tally.incomplete,
            violates=tally.violates,
            loops=tally.loops,
            looped=tally.looped,
            left_out=self.constraint.left_out if self.constraint is not None else (),
        )

    @property
    def attempt(self) -> int:
        """How often the next position was drawn before."""
        return self.retries.attempts.get(self.position, 0)

    def ends(self, token: Token) -> bool:
        """Whether a token ends the text."""
        return token in self.vocabulary.eos and not self.options.ignore_eos

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

    @property
    def waits(self) -> bool:
        """Whether it waits for a check of its text."""
        return self.checking is not None and not self.checking.is_over

    def wait(self, timeout: float) -> None:
        """Wait for that check."""
        if self.checking is not None:
            self.checking.wait(timeout)

    def repeats(self) -> Repeat:
        """How the text repeats itself at its end."""
        known = self.repeat = repeated(
            self.repeat, self.history, self.base, self.transcript, self.vocabulary
        )
        return goes_on(known, self.history, self.base)

    def target_of(self, tokens: int | None, to: int | None, have: int, shown: int = 0) -> int:
        """The number of tokens that a rewind keeps, for a caller who has seen ``have`` tokens, the
        first ``shown`` of which have to stay.

        Raises ``RewindError`` if that is less than these or the prefix, or more than ``have``.
        """
        if (tokens is None) == (to is None):
            raise TypeError("expected either tokens=n or to=length; pass one of them")
        target, least = have - tokens if tokens is not None else to, max(self.first, shown)
        assert target is not None
        if not least <= target <= have:
            why = "are the prefix" if least == self.first else "stay, without allow_retract"
            stays = f"; the first {least} {why}" if least else ""
            raise RewindError(
                f"cannot go back to {target} tokens: there are {have}, of which {have - least} can "
                f"be taken back{stays}",
                possible=have - least,
            )
        return target

    def fork_seeds(self, count: int) -> list[int]:
        """Seeds for ``count`` forks, derived from this one's; none is given twice."""
        if count < 1:
            raise OptionError("n", f"expected at least 1 fork, got {count}")
        start = self.forks
        self.forks += count
        return [derive_seed(self.seed, start + i + 1) for i in range(count)]

    def check_integrity(self) -> None:
        """Assert that all parts are at the same length; for tests."""
        assert self.position == len(self.history) - self.base
        assert len(self.transcript) == self.position
        assert self.constraint is None or len(self.constraint) == self.position
        assert self.healer is None or len(self.healer) == self.position
        assert self.counts is None or len(self.counts) == len(self.history)
        assert self.repetitions is None or len(self.repetitions) == len(self.history)
        assert self.aim is None or len(self.aim) == self.position


def spelled(vocabulary: Vocabulary, data: bytes) -> list[Token]:
    """Bytes as tokens: a single one, if there is one of exactly these."""
    if not data:
        return []
    single = vocabulary.token_of(data)
    return [single] if single is not None else vocabulary.continue_with(data)
