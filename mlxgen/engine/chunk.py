"""What a generation hands out: chunks, and the result they fold into.

Invariant: a ``Result`` is a function of the chunks alone, so streaming and not streaming cannot
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ..tokens import Token
from ..words import counted, shortened

FinishReason: TypeAlias = Literal["stop", "length", "filter", "cancelled"]
Stop: TypeAlias = str | tuple[Token, ...]


class Alternative(NamedTuple):
    """A likely token of a position, with its natural log-probability."""

    token: Token
    logprob: float


class Candidate(NamedTuple):
    """A token that could be drawn at a position, with its probability."""

    token: Token
    prob: float


class Rejected(NamedTuple):
    """A token that was proposed for a position and is not there.

    ``reason``: ``"hook"`` (a hook declined or replaced it), ``"ban"`` (a banned text began with
    it), ``"length"`` (no valid end would have fitted after it, with ``close_json``), ``"check"``
    (the text that began with it violated its schema), ``"loop"`` (the text repeated itself from it
    on) or ``"draft"`` (it was drafted, and the model drew another one). ``by``: the banned string
    or expression, the violation, what was repeated, or the drafter.
    ``text``: what was taken back with the token, for a check or a loop.
    """

    token: Token
    reason: Literal["hook", "ban", "length", "check", "loop", "draft"]
    by: str = ""
    text: str = ""


class PromptScore(NamedTuple):
    """How likely the model finds a token of the prompt.

    ``logprob`` is its natural log-probability given the tokens before it, and ``rank`` its place
    among all tokens at that position, from 1 for the most likely one; both are ``None`` for the
    first token, which has none before it. ``top`` has the most likely tokens there, best first.
    """

    token: Token
    logprob: float | None = None
    rank: int | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One generated token and the text that became safe to deliver with it.

    - ``text``: the newly delivered characters, possibly none.
    - ``token``: the token's id; ``None`` only in a last chunk without a token (that of
      ``Session.finish()``, or of a filter that allows only the empty text).
    - ``index``: the token's place among the generated tokens, from 0.
    - ``logprob``: its natural log-probability under the model's own distribution (no
      temperature, no filters), and ``top``: the most likely tokens at its position, best first;
      ``None`` and empty without the option ``top_logprobs``.
    - ``prob``: the probability of the token in the distribution that it was drawn from, as in
      ``candidates``; ``None`` without ``top_logprobs`` or ``top_candidates``.
    - ``candidates``: the most likely tokens of the distribution that the token was drawn from,
      best first, with their probabilities: after penalties, filters, bans, truncation and
      temperature (for greedy draws: at temperature 1, without truncation). There may be fewer
      than asked for; a token that was not drawn is the only one, with 1.0. Empty without the
      option ``top_candidates``.
    - ``drafter``: who proposed the token before the model drew it: ``"text"`` (earlier text),
      ``"head"`` (the model's own) or ``"model"`` (a second model); empty if nobody did.
    - ``forced``: the filters or a controller left no other choice, so the token was not sampled
      (or only for its log-probability).
    - ``retract``: how many characters to delete from the end of the delivered text before adding
      ``text``; ``index`` has gone back then. Only with ``allow_retract``.
    - ``rewound``: how many tokens were taken back right after this one, itself included. Only
      ``Session`` returns such chunks; ``Stream`` never delivers them.
    - ``attempts``: how often the position was drawn again.
    - ``exhausted``: a hook still asked for another draw when ``max_resample`` was reached, or
      excluded every token that could be drawn.
    - ``finish_reason``: in the last chunk, why the generation ended: ``"stop"`` (an end token or a
      stop), ``"length"`` (``max_tokens`` or the context length), ``"filter"`` (the filters allow
      no continuation) or ``"cancelled"``.
    - ``stop``: the stop string or the stop tokens that ended the generation.
    - ``prompt``: in the first chunk, a score for each token of the prompt; empty without the
      option ``prompt_logprobs``.
    - ``forbidden``: the tokens of ``top`` that the filters do not allow at this position.
    - ``rejected``: the tokens that were proposed for this position before, in order, and why they
      are not there; those of drafts only with the option ``top_logprobs``.
    """

    text: str
    token: Token | None
    index: int
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    drafter: str = ""
    forced: bool = False
    retract: int = 0
    rewound: int = 0
    attempts: int = 0
    exhausted: bool = False
    finish_reason: FinishReason | None = None
    stop: Stop | None = None
    prompt: tuple[PromptScore, ...] = ()
    forbidden: tuple[Token, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    prob: float | None = None

    @property
    def from_draft(self) -> bool:
        """Whether the token was proposed by a draft."""
        return bool(self.drafter)


class DraftCount(NamedTuple):
    """How many drafted tokens were verified, and how many of them the model drew itself."""

    proposed: int
    accepted: int


def all_drafts(each: Iterable[Mapping[str, DraftCount]]) -> dict[str, DraftCount]:
    """The counts of several generations together."""
    sums: dict[str, DraftCount] = {}
    for counts in each:
        for name, (proposed, accepted) in counts.items():
            before = sums.get(name, DraftCount(0, 0))
            sums[name] = DraftCount(before.proposed + proposed, before.accepted + accepted)
    return sums


@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation has used so far.

    - ``prompt_tokens``, ``completion_tokens``: the tokens of the prompt, and the generated ones.
    - ``cached_tokens``: those of the prompt, and of the ``prefix`` after it, that came from the
      prefix cache.
    - ``forked_tokens``: generated tokens from the sequence that it was forked from, which counts
      them as well.
    - ``forward_passes``: how often the model ran, from the last pass of the prompt on.
    - ``forced_tokens``: accepted tokens that were not sampled, as ``Chunk.forced`` says.
    - ``rewound_tokens``: tokens that were accepted and later taken back.
    - ``redraws``: sampled tokens that were rejected at once.
    - ``incomplete``: why the text does not end validly in spite of ``close_json``; empty if it
      does.
    - ``violates``: what is wrong with a finished text that stands although it violates its schema.
    - ``loops``: how often a loop was taken back, or the thinking ended because of one. ``looped``:
      what the text repeated, if it ended because of that.
    - ``left_out``: parts of the filters' schemas that are not enforced: ``JsonSchema.left_out``.
    - ``prompt_seconds``, ``generation_seconds``: wall-clock time until the first token was known,
      and since then.
    - ``queued_seconds``: how much of ``prompt_seconds`` it waited before anything ran.
    - ``drafted_tokens``, ``accepted_draft_tokens``: the tokens that were drafted and verified, and
      those of them that were accepted. ``drafts``: the same by who drafted them, as in
      ``Chunk.drafter``.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forked_tokens: int = 0
    forward_passes: int = 0
    forced_tokens: int = 0
    rewound_tokens: int = 0
    redraws: int = 0
    incomplete: str = ""
    violates: str = ""
    loops: int = 0
    looped: str = ""
    left_out: tuple[str, ...] = ()
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    queued_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    drafts: Mapping[str, DraftCount] = field(default_factory=dict, hash=False)


class Progress(NamedTuple):
    """How far a generation has come.

    - ``usage``: what it has used so far.
    - ``prefilled``: how many tokens of the prompt are in the KV cache, including those that came
      from the prefix cache.
    """

    usage: Usage
    prefilled: int

    @property
    def is_prefilled(self) -> bool:
        """Whether the whole prompt has run."""
        return self.prefilled >= self.usage.prompt_tokens


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """A finished generation: its text, its tokens and why it ended."""

    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None
    stop: Stop | None
    usage: Usage
    chunks: tuple[Chunk, ...]

    def __repr__(self) -> str:
        count = counted(len(self.tokens), "token")
        return f"<Result {shortened(self.text)!r}, {count}, {self.finish_reason}>"


def fold(chunks: Iterable[Chunk], usage: Usage, prefix: tuple[Token, ...] = ()) -> Result:
    """Put chunks together; ``prefix`` are the tokens that were passed as already generated."""
    text: list[str] = []
    tokens = list(prefix)
    kept: list[Chunk] = []
    last: Chunk | None = None
    for chunk in chunks:
        if chunk.retract:
            whole = "".join(text)
            text = [whole[: len(whole) - chunk.retract]]
        if chunk.index < len(tokens):
            kept = [c for c in kept if c.index < chunk.index]
            del tokens[chunk.index :]
        text.append(chunk.text)
        if chunk.token is not None:
            tokens.append(chunk.token)
        kept.append(chunk)
        last = chunk
    return Result(
        text="".join(text),
        tokens=tuple(tokens),
        finish_reason=last.finish_reason if last is not None else None,
        stop=last.stop if last is not None else None,
        usage=usage,
        chunks=tuple(kept),
    )
