"""The pull interface: an iterator of chunks that can be rewound.

Invariant: between two ``next()`` calls everything is at the same token: text, filters, stops,
cache and what ``tokens`` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack
from weakref import ref

from ..errors import StateError
from ..options.table import ChangingOptions
from ..tokens import Token
from ..words import counted, shortened
from .branches import token_ids
from .chunk import Chunk, FinishReason, Usage
from .drafts.drafts import WIDEST
from .kv.kv import KV
from .kv.runner import Fault
from .pulled import Pulled
from .request.accept import put, rewind
from .request.request import Request
from .runtime import ModelRuntime
from .scheduling.memory import check_pieces, fit
from .scheduling.prefill import places_ahead, take_prefix
from .step.drawn import Event
from .step.handle import Handle
from .step.step import Loop


class Stream(Pulled[Chunk, Chunk]):
    """An iterator of ``Chunk`` and a context manager; made by ``LanguageModel.stream``.

    A stream and its forks belong to the thread that uses the stream first: it may be handed to
    another thread before its first ``next()``, but not after. Calls from other threads raise
    ``StateError``, except for ``close`` and the properties (``text``, ``tokens``, ``usage``, ...).

    Errors of hooks and filters are raised by ``next()``. After an error, only ``rewind`` makes the
    stream usable again.
    """

    def __init__(self, loop: Loop, handle: Handle, places: Sequence[int] = ()) -> None:
        self._loop = loop
        self._handle = handle
        self._places = places  # in the prompt at which its KV is kept
        # It and its forks, once it was forked, each with its KV, whose slot must be freed
        self._family: list[tuple[ref[Stream], KV]] = []
        self._asked = False  # the caller waits for a token that no other stream's step gave
        super().__init__("stream")
        self._text: list[str] = []
        self._tokens: list[Token] = list(handle.request.options.prefix)
        self._failed: BaseException | None = None
        self._error: Exception | None = None  # to be raised after the chunks that are ready
        self._left = False  # it was closed before its last chunk was taken
        self._put: list[Token] = []  # the newest tokens that the caller has put
        self._put_end = 0  # how many tokens there were after them

    @classmethod
    def of(cls, lm: ModelRuntime, request: Request) -> Stream:
        """The stream of a request, with nothing else running."""
        length, activations = len(request.history), lm.activations
        drafts = lm.drafts_for(request.options)
        room = lm.memory.left - lm.footprint.alone(length + 1) - drafts.nbytes_at(length + 1)
        check_pieces(activations, length, room)
        runner = lm.runner()
        runner.piece = partial(activations.most, min(room, lm.memory.activations))
        handle = Handle(request, KV(runner), drafts)
        # The cache is made when somebody first asks for it. What is taken from it is computed here,
        # as the stream may be handed to another thread, which could not do that.
        places: list[int] = []
        if lm.keeps:
            cache = lm.prefix_cache
            if not handle.is_scored:
                cache.restore(handle.history, do=runner.do)
            if take_prefix(handle, cache):
                handle.kv.wait()
            # At least where the prompt ends, as the answer may fill a window
            places = places_ahead(handle, cache, lm.places) or [length - 1]
        return cls(lm.loop(runner), handle, places)

    def _move(self) -> bool:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._closed or self._handle.request.finish_reason is not None:
            return False
        if self._failed is not None:
            raise StateError(
                "the stream stopped with an error; rewind it or make a new one"
            ) from self._failed
        self._asked = True
        rows = [self]
        if self._family:
            members = self._members()
            if self._joins and self._loop.runner.slots.batches:
                rows = [each for each in members if each is self or each._joins]
        events: list[Event] = []
        try:
            while self._places:
                place, *self._places = self._places
                self.keep(place)
            if self._family or not self._loop.handles:
                self._loop.gather([each._handle for each in rows])
            self._loop.step(events)
        except Fault as fault:
            if len(rows) == 1:
                self._failed = self._error = fault.error()
            self._restart(rows)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            for event in events:
                for each in rows:
                    if each._handle is event.handle:
                        each._asked, each._handle.faults = False, 0
                        each._ready.extend(event.chunks)
                        if event.error is not None:
                            each._failed = each._error = event.error
        return True

    def _restart(self, rows: Sequence[Stream]) -> None:
        """Go on after a pass of these has failed: each by itself until it makes progress."""
        for each in rows:
            each._handle.faults = 1
        self._handle.distrust()
        for each in self._members():
            each._handle.restart()  # what they held was dropped with the others

    def _members(self) -> list[Stream]:
        """This stream and those of its forks that are still in use, if there are any."""
        for member in [each for each in self._family if each[0]() is None]:
            member[1].close()
            self._family.remove(member)
        return [stream for each, _ in self._family if (stream := each()) is not None]

    @property
    def _joins(self) -> bool:
        """Whether its next token may come in a step of another stream: its caller has asked for
        one, and there is little to run."""
        handle = self._handle
        if not self._asked or self._ready or self._failed is not None or self._closed:
            return False
        if handle.started is None or handle.faults or handle.has_ended:
            return False
        return handle.missing <= WIDEST

    def _give(self, ready: Chunk) -> Chunk:
        self._asked = True
        if ready.retract:
            text = self.text
            self._text = [text[: len(text) - ready.retract]]
        if ready.text:
            self._text.append(ready.text)
        if ready.token is not None:
            del self._tokens[ready.index :]
            self._tokens.append(ready.token)
        return ready

    @property
    def text(self) -> str:
        """The text delivered so far."""
        return "".join(self._text)

    @property
    def tokens(self) -> list[Token]:
        """The tokens delivered so far, including ``prefix``; tokens on hold are not among them."""
        return list(self._tokens)

    @property
    def seed(self) -> int:
        """The seed of the draws, even if none was given."""
        return self._handle.request.seed

    def __repr__(self) -> str:
        """The text and where the stream stands."""
        stands: str = self.finish_reason or "running"
        stands = "failed" if self._failed is not None else stands
        return f"<Stream {shortened(self.text)!r}, {counted(len(self._tokens), 'token')}, {stands}>"

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the stream ended; ``None`` until then."""
        if self._left:
            return "cancelled"
        return None if self._ready else self._handle.request.finish_reason

    @property
    def usage(self) -> Usage:
        """The tokens, forward passes and seconds used so far."""
        return self._handle.usage

    def rewind(
        self,
        tokens: int | None = None,
        *,
        to: int | None = None,
        **options: Unpack[ChangingOptions],
    ) -> None:
        """Take back the last ``tokens`` delivered tokens, or all after the first ``to``.

        ``options`` for sampling, ``filters``, ``stop`` and ``stop_tokens`` hold from there on;
        ``rewind(0, temperature=0.2)`` takes nothing back. Filters and stops see only the text that
        is yet to come.

        The positions are drawn anew (another attempt with the same seed); greedy decoding gives
        the same tokens again. Text that a stop or a ban could claim again disappears from
        ``text`` until that is decided. The tokens that are kept stay even if a ban's match begins
        in them, unless ``allow_retract`` allows their text to be deleted.

        Raises ``RewindError`` for more tokens than were generated here; then nothing has changed.
        """
        self._owner.check()
        if self._closed:
            raise StateError("a closed stream cannot be rewound; make a new one")
        seen, request = len(self._tokens), self._handle.request
        target = request.target_of(tokens, to, seen)
        changed = request.options.changed(options) if options else None
        if changed is not None:
            request.check_change(changed)
        self._ready.clear()
        rewind(request, target, seen)
        if changed is not None:
            request.change(changed)
            self._loop.draw_anew()
        self._tokens = request.tokens[:target]  # a ban may have taken some back, untold so far
        self._handle.guess = None
        self._put = []
        self._text = [request.outbox.text]
        self._failed = self._error = None

    def append(self, tokens: Sequence[Token]) -> None:
        """Put tokens that were chosen elsewhere after those delivered or put before.

        They go through the model together; ``next()`` gives their chunks first, and goes on after
        them under the same options. As with ``rewind``, text that a stop or a ban could claim again
        disappears from ``text`` until that is decided.

        Raises ``FilterError`` if the filters, a ban or ``close_json`` do not allow them here, and
        ``StateError`` if the text has ended or ends before the last of them; then there are the
        same tokens as before.
        """
        self._owner.check()
        request, seen = self._handle.request, len(self._tokens)
        if self._closed or self._failed is not None or self.finish_reason is not None:
            raise StateError(
                "nothing can be put after a stream that is closed, failed or has ended; rewind one "
                "that is not closed"
            )
        run = token_ids("tokens", tokens, request.vocab_size)
        waiting = self._waiting(seen)
        try:
            self._go_on_with(seen, [*waiting, *run])
        except BaseException:
            self._go_on_with(seen, waiting)
            raise

    def _waiting(self, seen: int) -> list[Token]:
        """The tokens that the caller has put and that are not delivered yet."""
        run = self._put[max(0, len(self._put) - self._put_end + seen) :]
        there = self._handle.request.tokens[seen : seen + len(run)]
        return run if run == there else []  # unless a ban has taken some back

    def _go_on_with(self, seen: int, run: list[Token]) -> None:
        """Take back what was drawn and not delivered, and put a run there."""
        request = self._handle.request
        self._handle.guess = None  # it was of tokens that might have come here
        if request.position > seen:
            self._ready.clear()
            rewind(request, seen, seen)
            self._text = [request.outbox.text]
        put(request, run)
        self._ready.extend(self._handle.take())
        self._put, self._put_end = run, request.position

    def fork(self, n: int = 1, **options: Unpack[ChangingOptions]) -> list[Stream]:
        """Make ``n`` independent streams that go on from here; this one does not change.

        ``options`` hold for the forks from there on, as in ``rewind``.

        Streams of one family that are pulled in turn go through the model together. Each has a seed
        of its own, derived from this stream's; tokens that this stream has drawn but not delivered
        are drawn anew, and those that were put stay.
        """
        self._owner.check()
        if self._closed or self._failed is not None:
            raise StateError(
                "a stream that is closed or failed cannot be forked; fork it before, or rewind one "
                "that failed"
            )
        request, seen = self._handle.request, len(self._tokens)
        changed = request.options.changed(options) if options else None
        if changed is not None:
            request.check_change(changed)
        if not self._family:
            self._family.append((ref(self), self._handle.kv))
        twins = []
        for seed in request.fork_seeds(n):
            handle = self._handle.fork(seed)
            twin = Stream(self._loop, handle)
            twin._owner, twin._family = self._owner, self._family
            self._family.append((ref(twin), handle.kv))
            twin._text, twin._tokens = list(self._text), list(self._tokens)
            if request.position > seen:
                twin._go_on_with(seen, self._waiting(seen))
            else:
                twin._ready.extend(self._ready)
            if changed is not None:
                handle.request.change(replace(changed, hooks=handle.request.options.hooks))
            twins.append(twin)
        return twins

    def keep(self, tokens: int | None = None) -> None:
        """Put the KV of the tokens run so far into the model's ``prefix_cache``, and what its draft
        model has run of them into that one's.

        Later generations that begin with the same tokens do not run them again.

        With ``tokens``, before the first ``next()``: run that many tokens of the prompt and keep
        their KV. That is for models with sliding windows or recurrent states, which can only
        continue from places that were kept; all others can continue from anywhere, and
        ``keep(tokens)`` does nothing for them. Where messages begin, such a model's streams keep
        it anyway, once there is a ``prefix_cache``. A stream that has failed keeps nothing.
        """
        self._owner.check()
        if self._closed:
            raise StateError("the stream is closed; call keep before close")
        if self._failed is not None:
            return
        handle, cache = self._handle, self._loop.runner.cache
        kv, history = handle.kv, handle.history
        if tokens is not None:
            assert cache is not None
            if cache().any_length or not kv.length < tokens < len(history) or handle.is_ready:
                return
            self._run(tokens)
        kv.keep(history)
        if cache is not None and (others := handle.drafts.caches):
            handle.drafts.keep(history, cache().max_bytes)
            fit({cache(), *others}, cache().max_bytes)
        self._loop.runner.settle()  # so that it may be written

    def _run(self, tokens: int) -> None:
        try:
            self._handle.align()
            self._loop.passes.prefill_to(self._handle, tokens)
        except BaseException as error:
            self._restart([])  # some layers may hold more tokens than others now
            self._failed = error
            if isinstance(error, Exception):
                self._failed = told = Fault.of(error).error()
                raise told from told.__cause__
            raise

    def _free(self) -> None:
        if self._ready:
            self._left = True
            self._ready.clear()
        if not self._handle.closed:
            self._loop.gather([])
            self._handle.close()
