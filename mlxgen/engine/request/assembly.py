"""From a prompt and options to a row that is ready to run.

Owns which parts a sequence gets, so that what is not asked for costs nothing. Must never
know whether the row is pulled by a lane or pushed by a session. Invariant: all that can
be wrong with filters, stops and prefix has been raised when ``assemble`` returns.
"""

from __future__ import annotations

from ...errors import FilterError, OptionError
from ...filters import Constraint
from ...sampling import TokenCounts
from ...text import BanMatcher, Healer, StopMatcher, TextDecoder, Transcript, heal_plan
from ...tokens import Token, Vocabulary
from ..options import Options
from .healing import fed
from .prompt import Prompt
from .row import Row
from .sequence import Sequence


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
) -> Row:
    """A row with the parts that ``options`` need; ``vocab_size`` is the logits' width.

    Raises ``GrammarError`` for filters that cannot be compiled and ``OptionError`` for a
    prefix that they do not allow.
    """
    tokens, removed = list(prompt.tokens), b""
    if options.heal:
        tokens, removed = heal_plan(vocabulary, tokens)
    healer = Healer(vocabulary, removed) if removed else None
    decoder = TextDecoder(vocabulary, strip=prompt.opens_text, skip=len(removed))
    stops = None
    if options.stop or options.stop_tokens:
        stops = StopMatcher(options.stop, options.stop_tokens)
    constraint = None
    if options.filters:
        strips = prompt.opens_text and vocabulary.strips_space
        constraint = Constraint(options.filters, vocabulary, vocab_size, strips_space=strips)
    sampling = options.sampling
    sequence = Sequence(
        tokens,
        Transcript(decoder, stops, BanMatcher(options.banned) if options.banned else None),
        constraint=constraint,
        healer=healer,
        counts=TokenCounts(tokens, window=sampling.repetition_context_size)
        if sampling.penalises
        else None,
    )
    _take_prefix(sequence, options, vocabulary)
    return Row(sequence, options, vocabulary, vocab_size, budget=budget, seed=seed, queued=queued)


def _take_prefix(sequence: Sequence, options: Options, vocabulary: Vocabulary) -> None:
    """Feed a sequence the tokens that count as generated."""
    ignore_eos = options.ignore_eos
    for i, token in enumerate(options.prefix):
        try:
            event = sequence.advance(token, fed(sequence, token, vocabulary, ignore_eos=ignore_eos))
        except FilterError as error:
            raise OptionError(
                "prefix", f"the filters do not allow token {token} at {i}: {error}"
            ) from error
        if event is not None or (token in vocabulary.eos and not ignore_eos):
            raise OptionError(
                "prefix", f"token {token} at {i} ends the text; give only the tokens before it"
            )
