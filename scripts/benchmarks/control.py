"""What a controller costs on the host for each token.

Owns the measurement of ``lm.control`` around the model. Must never run the model: tokens are
known, as in ``single.host_work``, so that what differs is the controller alone. Invariant: every
token is asked for, checked, drawn under its mask, settled and taken by the consumer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import mlxgen
from mlxgen.engine.request.accept import accept
from mlxgen.engine.request.leads import next_draw, warm
from mlxgen.engine.step.accepting import Event
from mlxgen.filters import words_of
from mlxgen.sampling import ForcedView

from .alternate import Comparison, compare
from .single import PROMPT, timed


class Trivial:
    """Gives the same answer every time."""

    def __init__(self, branch: mlxgen.Branch) -> None:
        self.answer = [branch]

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[mlxgen.Token]
    ) -> list[mlxgen.Branch]:
        return self.answer


def masks(lm: mlxgen.LanguageModel) -> dict[str, Any]:
    """The forms that a mask can have, each of half the vocabulary or of all of it."""
    half = range(0, lm.vocab_size, 2)
    flags = np.zeros(lm.vocab_size, dtype=bool)
    flags[half] = True
    return {
        "all tokens": range(lm.vocab_size),
        "packed words": words_of(half, lm.vocab_size),
        "flags": flags,
        "20 ids": list(half[:20]),
    }


def host_work(lm: mlxgen.LanguageModel, mask: Any, tokens: int = 10_000) -> float:
    """Microseconds a token on the host for a controller that allows ``mask``, row and all."""
    return _host_work(lm, Trivial(mlxgen.Branch(sample_mask=mask)), tokens)


def program_work(lm: mlxgen.LanguageModel, tokens: int = 10_000) -> float:
    """The same for a program that generates freely."""

    async def program(g: mlxgen.Guide) -> None:
        await g.gen()

    return _host_work(lm, mlxgen.Program(program), tokens)


def _host_work(lm: mlxgen.LanguageModel, controller: Any, tokens: int) -> float:
    run = lm.control(PROMPT, controller, max_tokens=tokens + 1, ignore_eos=True)
    (handle,) = run._live
    request = handle.request
    request.budget = tokens + 1  # whatever the context holds: no model runs here
    ordinary = [t for t in range(0, lm.vocabulary.size, 2) if lm.vocabulary.is_ordinary(t)][:256]
    view = ForcedView(0)
    start = time.thread_time()  # of this thread alone: nothing else counts here
    for i in range(tokens):
        run._decide()
        next_draw(request)
        accept(request, ordinary[i % len(ordinary)], view)
        warm(request)
        run._take(Event(handle, handle.take()))
        next(run)
    seconds = time.thread_time() - start
    run.close()
    return seconds / tokens * 1e6


def streams(lm: mlxgen.LanguageModel, tokens: int, turns: int) -> Comparison:
    """Seconds for the tokens after the first: controlled, and in a batch of one."""

    def ours() -> float:
        trivial = Trivial(mlxgen.Branch(sample_mask=range(lm.vocab_size)))
        return timed(lm.control(PROMPT, trivial, max_tokens=tokens, ignore_eos=True), tokens)

    def theirs() -> float:
        return timed(lm.batch([PROMPT], max_tokens=tokens, ignore_eos=True), tokens)

    return compare(ours, theirs, turns)
