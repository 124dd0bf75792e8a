"""What a generation hands out: chunks, and the result they fold into.

Owns the frozen values ``Chunk``, ``Alternative``, ``Usage`` and ``Result``. Must never
know how they came about. Invariant: a ``Result`` is a function of the chunks alone, so
that not streaming cannot differ from streaming.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ..tokens import Token

FinishReason: TypeAlias = Literal["stop", "length", "filter", "cancelled"]
Stop: TypeAlias = str | tuple[Token, ...]

_SHOWN = 60  # characters of a text in its result's repr


class Alternative(NamedTuple):
    """A token that was likely at a position, with its natural log-probability."""

    token: Token
    logprob: float


class Candidate(NamedTuple):
    """A token that could be drawn at a position, with the probability that it was."""

    token: Token
    prob: float


class PromptScore(NamedTuple):
    """What the model thinks of a token of the prompt.

    ``logprob`` is its natural log-probability behind those before it (``None`` for the first one,
    which has none before it), ``rank`` its place among all tokens there, from 1; ``top`` are the
    likeliest tokens there, best first.
    """

    token: Token
    logprob: float | None = None
    rank: int | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One generated token and the text that became safe to deliver with it.

    - ``text``: the newly delivered characters, possibly none.
    - ``token``: the token's id; ``None`` only in a last chunk that came without one (of
      ``Session.finish()``, or of a filter that allows nothing but the empty text).
    - ``index``: the token's place among the generated ones, from 0.
    - ``logprob``: its natural log-probability under the model's own distribution (no
      temperature, no filters), and ``top``: the most likely tokens there, best first;
      ``None`` and empty unless ``top_logprobs`` was asked for.
    - ``candidates``: the likeliest tokens of the distribution that it was drawn from, best
      first: after penalties, filters, bans, truncation and temperature (of greedy draws: at
      temperature 1, without truncation), with those probabilities. Fewer where there are fewer;
      a token that was not drawn stands alone, with 1.0. Empty unless ``top_candidates`` was
      asked for.
    - ``from_draft``: the token was proposed by a draft. ``forced``: the filters, or a
      controller, left no other choice, so it was not sampled (or only for its log-probability).
    - ``retract``: characters to delete from the end of what was delivered before adding
      ``text``; the index then has gone back. Only with ``allow_retract``.
    - ``rewound``: tokens that were taken back right after this one, itself included; only
      ``Session`` reports such chunks, ``Stream`` never delivers them.
    - ``attempts``: how often this position was drawn again; ``exhausted``: a hook still
      wanted another draw when ``max_resample`` was reached, or excluded all that could be drawn.
    - ``finish_reason``: set in the last chunk. ``"stop"``: an end token or a stop;
      ``"length"``: ``max_tokens`` or the context; ``"filter"``: the filters allow no
      continuation; ``"cancelled"``.
    - ``stop``: the stop string, or stop tokens, that ended it.
    - ``prompt``: in the first chunk, what ``prompt_logprobs`` asked for: a score for each token of
      the prompt.
    """

    text: str
    token: Token | None
    index: int
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    from_draft: bool = False
    forced: bool = False
    retract: int = 0
    rewound: int = 0
    attempts: int = 0
    exhausted: bool = False
    finish_reason: FinishReason | None = None
    stop: Stop | None = None
    prompt: tuple[PromptScore, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation used so far.

    ``cached_tokens`` of the prompt, and of the ``prefix`` behind it, were taken from the prefix
    cache. ``forward_passes`` counts runs of the model from the prompt's last one on;
    ``forced_tokens`` were accepted as ``Chunk.forced`` says; ``rewound_tokens`` were accepted
    and taken back; ``redraws`` were declined at once. ``incomplete`` says why the text does not
    end validly although ``close_json`` was asked for; it is empty where it does. Times are
    wall-clock seconds: ``prompt_seconds`` until the first token was known,
    ``generation_seconds`` since then.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forward_passes: int = 0
    forced_tokens: int = 0
    rewound_tokens: int = 0
    redraws: int = 0
    incomplete: str = ""
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0


class Progress(NamedTuple):
    """How far a generation is: its ``usage``, and what its prompt took until now.

    ``prefilled`` tokens of the prompt, the cached ones included, are in the KV cache. It has waited
    for ``queued_seconds`` of ``usage.prompt_seconds`` before anything of it was run.
    """

    usage: Usage
    prefilled: int
    queued_seconds: float


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
        text = self.text if len(self.text) <= _SHOWN else self.text[: _SHOWN - 1] + "…"
        return f"<Result {text!r}, {len(self.tokens)} tokens, {self.finish_reason}>"


def fold(chunks: Iterable[Chunk], usage: Usage, prefix: tuple[Token, ...] = ()) -> Result:
    """Put chunks together; ``prefix`` are the tokens that were given as generated."""
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
