"""The pull interface: an iterator of chunks that can be stepped back.

Owns the order of events between a consumer and one lane. Must never know how a token
is drawn. Invariant: between two ``next()`` calls everything stands at the same token:
text, filters, stops, cache and what ``tokens`` shows.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType

from ..errors import StateError
from ..tokens import Token
from .chunk import Chunk, FinishReason, Usage
from .lane import Lane


class Stream:
    """An iterator of ``Chunk`` and a context manager; made by ``LanguageModel.stream``.

    It belongs to the thread that made it. Errors of hooks and filters come out of
    ``next()``; after one, only ``rewind`` makes the stream usable again.
    """

    __slots__ = ("_closed", "_failed", "_lane", "_ready", "_text")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._ready: deque[Chunk] = deque()
        self._text: list[str] = []
        self._closed = False
        self._failed: BaseException | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        ready = self._ready
        while not ready:
            if self._closed or self._lane.row.finish_reason is not None:
                raise StopIteration
            if self._failed is not None:
                raise StateError(
                    "the stream stopped with an error; rewind it or make a new one"
                ) from self._failed
            try:
                ready.extend(self._lane.step())
            except BaseException as error:
                self._failed = error
                raise
        chunk = ready.popleft()
        if chunk.retract:
            text = self.text
            self._text = [text[: len(text) - chunk.retract]]
        if chunk.text:
            self._text.append(chunk.text)
        return chunk

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The text delivered so far."""
        return "".join(self._text)

    @property
    def tokens(self) -> list[Token]:
        """The tokens generated so far, ``prefix`` included; those that wait are not."""
        row = self._lane.row
        count = self._ready[0].index if self._ready else row.outbox.released
        return row.sequence.history[row.sequence.base :][:count]

    @property
    def seed(self) -> int:
        """The seed of the draws, also where none was given."""
        return self._lane.row.seed

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; ``None`` while it goes on."""
        return None if self._ready else self._lane.row.finish_reason

    @property
    def usage(self) -> Usage:
        """Tokens, passes and seconds so far."""
        return self._lane.usage

    def rewind(self, tokens: int | None = None, *, to: int | None = None) -> None:
        """Take back the last ``tokens`` delivered tokens, or all after the first ``to``.

        The next draws at these positions are new ones (another attempt of the same seed);
        greedy decoding gives the same token again. Text that a stop or a ban could claim
        again leaves ``text`` until that is settled anew, and a ban may then reach back behind
        the place of the rewind: ``Chunk.index`` says where it goes on.

        Raises ``RewindError`` for more tokens than were generated here; then nothing has
        changed.
        """
        if self._closed:
            raise StateError("the stream is closed; a rewind has nothing to go on from")
        target = self._lane.row.target_of(tokens, to, len(self.tokens))
        self._ready.clear()
        self._lane.rewind(target)
        self._text = [self._lane.row.delivered_text]
        self._failed = None

    def fork(self, n: int = 1) -> list[Stream]:
        """``n`` independent streams that go on from here; this one is not changed.

        They share the KV cache of the common history until they write. Each draws from a
        seed of its own, derived from this stream's.
        """
        if self._closed or self._failed is not None:
            raise StateError("a stream that is closed or failed cannot be forked")
        twins = []
        for seed in self._lane.row.fork_seeds(n):
            twin = Stream(self._lane.fork(seed))
            twin._ready.extend(self._ready)
            twin._text = list(self._text)
            twins.append(twin)
        return twins

    def close(self) -> None:
        """Stop generating and free the cache; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._ready.clear()
            self._lane.close()
