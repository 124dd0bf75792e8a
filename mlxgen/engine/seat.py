"""A row in the step loop, with where the logits for its next position are.

Owns what the loop remembers of one sequence between two steps, and its account of passes
and times. Must never decide what a token means: that is the row's. Invariant: ``logits``
belong to the position where the history ends, or are ``None``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import mlx.core as mx

from ..errors import StateError
from ..tokens import Token
from .appetite import Appetite
from .chunk import Chunk, Progress, Usage
from .guess import Guess
from .kv import KVPart
from .row import Row
from .scores import PromptScores
from .slots import SlotKV

Places: TypeAlias = Sequence[int]


class Seat:
    """See the module. A seat is hashable by identity: it is also the handle of its sequence.

    - ``logits`` [n, vocab] and ``at``: the rows of them that are this sequence's: one, and
      one more for each drafted token of ``guess``.
    - ``ahead``: the same behind tokens that are not known yet.
    - ``flat``: draws left that sort the vocabulary at once, after one whose candidates fell
      short: a flat distribution rarely stands alone.
    - ``cached``: prompt tokens that were taken from the prefix cache.
    - ``retried``: the model failed with it, and it was given another chance.
    - ``scores``: of the prompt's tokens, until they are delivered, if they are wanted.
    - ``closed``: it has given back what it held, and nothing more will come.
    """

    __slots__ = (
        "_began",
        "_first_token",
        "_started",
        "ahead",
        "appetite",
        "at",
        "cached",
        "closed",
        "flat",
        "guess",
        "logits",
        "passes",
        "retried",
        "row",
        "scores",
    )

    def __init__(self, row: Row) -> None:
        self.row = row
        self.logits: mx.array | None = None
        self.at: Places = (0,)
        self.ahead: tuple[mx.array, Places] | None = None
        most = row.drafter.most if row.drafter is not None else 1
        self.appetite = Appetite(row.options.num_draft_tokens or most)
        self.guess: Guess | None = None
        self.flat = 0
        self.passes = 0
        self.cached = 0
        self.closed = self.retried = False
        wanted = row.options.prompt_logprobs
        self.scores: PromptScores | None = None
        if wanted is not None:
            prompt = row.sequence.history[: row.sequence.base]
            self.scores = PromptScores(prompt, wanted)
        self._started: float | None = None
        self._began = time.perf_counter()
        self._first_token: float | None = None

    @property
    def kv(self) -> KVPart:
        """Its KV cache, alone or in a batch; raises ``StateError`` for a closed sequence."""
        kv = self.row.sequence.kv
        if kv is None:
            raise StateError("this generation is closed; make a new one")
        return kv

    @property
    def slot(self) -> SlotKV | None:
        """Its place in a batch, if it is in one."""
        kv = self.row.sequence.kv
        return kv if isinstance(kv, SlotKV) else None

    @property
    def pending(self) -> list[Token]:
        """What the model has to run before the next draw: at least one token."""
        kv, sequence = self.kv, self.row.sequence
        if kv.length == len(sequence):  # nothing is missing, but its logits are not at hand
            kv.rewind(kv.length - 1)
        return sequence.pending

    @property
    def is_scored(self) -> bool:
        """Whether the tokens of the prompt that are run next are to be scored."""
        return self.scores is not None and not self.scores.is_complete

    @property
    def usage(self) -> Usage:
        """Tokens, passes and seconds so far."""
        row, first = self.row, self._first_token
        now = time.perf_counter()
        return Usage(
            prompt_tokens=row.sequence.base,
            cached_tokens=self.cached,
            completion_tokens=row.position,
            forward_passes=self.passes,
            forced_tokens=row.tally.forced,
            rewound_tokens=row.tally.rewound,
            redraws=row.tally.redraws,
            incomplete=row.tally.incomplete,
            prompt_seconds=(first if first is not None else now) - self._began,
            generation_seconds=now - first if first is not None else 0.0,
        )

    @property
    def progress(self) -> Progress:
        """How far it is, the prompt included."""
        kv, usage = self.row.sequence.kv, self.usage
        ran = kv.length if kv is not None else usage.completion_tokens and usage.prompt_tokens
        started = self._started if self._started is not None else time.perf_counter()
        return Progress(usage, min(ran, usage.prompt_tokens), started - self._began)

    def start(self) -> bool:
        """Take what is certain before the first draw; returns whether that is done anew now."""
        if self._started is not None:
            return False
        if self.row.may_decline:
            self.kv.expect_rewinds()
        self.row.start()
        self._started = time.perf_counter()  # not before: what an interrupt cut off is done again
        return True

    def take(self) -> list[Chunk]:
        """The chunks that may be delivered now."""
        if self._first_token is None and self.row.position > self.row.first:
            self._first_token = time.perf_counter()
        chunks = self.row.take()
        if self.scores is not None and chunks and self.scores.is_complete:
            chunks[0] = replace(chunks[0], prompt=self.scores.read())
            self.scores = None
        return chunks

    def arrive(self) -> None:
        """What was submitted becomes what is drawn from."""
        if self.ahead is not None:
            (self.logits, self.at), self.ahead = self.ahead, None

    def forget(self) -> None:
        """Back to where the history ends, whatever was submitted."""
        self.row.sequence.rewind(len(self.row.sequence))
        self.logits = self.ahead = self.guess = None

    def restart(self) -> None:
        """Hold nothing on the device any more: the whole history is to be run again."""
        row = self.row
        row.sequence.kv = self.kv.fresh()
        if row.drafter is not None:
            row.drafter.restart()
        if row.may_decline:
            row.sequence.kv.expect_rewinds()
        self.cached = 0
        self.logits = self.ahead = self.guess = None

    def rewind(self, target: int, seen: int | None = None) -> None:
        """Keep the first ``target`` generated tokens; see ``Row.rewind``."""
        self.row.rewind(target, seen)
        self.forget()

    def fork(self, seed: int) -> Seat:
        """An independent copy outside of a batch that draws from ``seed``."""
        twin = Seat(self.row.fork(seed))
        twin.appetite = self.appetite.fork()
        if self.guess is None:
            twin.logits, twin.at = self.logits, self.at
        else:  # what is drafted stays with this one
            twin.kv.rewind(len(twin.row.sequence))
        twin._started = self._started and twin._began
        twin.scores = None  # they are delivered once
        return twin

    def forks(self, seeds: Iterable[int]) -> list[Seat]:
        """Independent copies, one for each seed, that share one KV until they write."""
        slot = self.slot
        if slot is None:
            return [self.fork(seed) for seed in seeds]
        self.row.sequence.kv = slot.fork()  # copied out of the batch once, for all of them
        try:
            return [self.fork(seed) for seed in seeds]
        finally:
            self.row.sequence.kv = slot

    def close(self) -> None:
        """End the generation and free its cache."""
        self.row.end("cancelled")
        self.logits = self.ahead = self.guess = None
        self.row.sequence.kv = None
        self.closed = True

    def check_integrity(self) -> None:
        """Assert what holds between two steps; for tests."""
        sequence, kv = self.row.sequence, self.kv
        sequence.check_integrity()
        if self.guess is not None:
            assert kv.length == len(sequence) + self.guess.count
        elif self.logits is not None:
            assert kv.length == len(sequence), (kv.length, len(sequence))
        else:
            assert kv.length <= len(sequence)


def logits_of(seats: Iterable[Seat]) -> mx.array:
    """The logits [draws, vocab] that seats draw from; no copy where they are one array in order."""
    runs: list[tuple[mx.array, int, int]] = []  # an array, and where a run in it starts and ends
    for seat in seats:
        assert seat.logits is not None
        places = seat.at if seat.guess is None else seat.at[: len(seat.guess.requests)]
        for place in places:
            if runs and runs[-1][0] is seat.logits and runs[-1][2] == place:
                runs[-1] = (seat.logits, runs[-1][1], place + 1)
            else:
                runs.append((seat.logits, place, place + 1))
    parts = [
        array if end - start == array.shape[0] else array[start:end] for array, start, end in runs
    ]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)
