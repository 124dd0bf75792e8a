"""Many prompts at once for a caller in the same thread: an iterator over all their chunks.

Invariant: every prompt ends once, with a result or with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

from ..errors import MlxgenError, OptionError
from ..options.table import GenerationOptions
from ..words import counted
from .chunk import Chunk, Result, fold
from .limits import Stats
from .options import Options
from .pulled import Pulled
from .request.prompt import AnyPrompt
from .request.request import Request
from .scheduling.scheduler import Scheduler
from .step.drawn import Event
from .step.handle import Handle

AHEAD = 8  # requests that are ready in addition to those that run

Prepare: TypeAlias = Callable[[AnyPrompt, Options], Request]
Read: TypeAlias = Callable[[AnyPrompt, Mapping[str, Any]], Options]


class Batch(Pulled[tuple[int, Chunk | Exception], tuple[int, Chunk]]):
    """An iterator of ``(index, chunk)`` and a context manager; made by ``LanguageModel.batch``.

    The chunks of one prompt come in order, those of different prompts as they are made. If a
    prompt fails, ``next()`` raises its error, with a note that says which prompt it was; you can
    keep iterating, as the other prompts are not affected. ``run()`` runs all of them and returns
    their results.

    - ``results``: a ``Result`` for each prompt that has ended, ``None`` for the others.
    - ``errors``: the errors of those that have failed, by index.
    - ``tokens``: the number of tokens generated so far, for all prompts.

    A batch belongs to the thread that calls ``next()`` first. In other threads ``next()`` raises
    ``StateError``; they may ``close`` the batch, and read its attributes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Iterator[Request | MlxgenError],
        watch: Callable[[Batch], object] | None = None,
    ) -> None:
        super().__init__("batch")
        self._scheduler = scheduler
        self._requests: Iterator[Request | MlxgenError] | None = requests
        self._watch = watch
        self._indexes: dict[Handle, int] = {}
        self._chunks: list[list[Chunk]] = []
        self.results: list[Result | None] = []
        self.errors: dict[int, Exception] = {}
        self.tokens = 0

    def _move(self) -> bool:
        self._submit()
        if self._scheduler.busy:
            for event in self._scheduler.step():
                self._take(event)
        going = self.busy or bool(self._ready)
        if not going:
            self._scheduler.rest()
        if self._watch is not None:
            self._watch(self)
        return going

    def _give(self, ready: tuple[int, Chunk | Exception]) -> tuple[int, Chunk]:
        index, item = ready
        if isinstance(item, Exception):
            note = f"in prompts[{index}]"
            if note not in getattr(item, "__notes__", ()):
                item.add_note(note)
            raise item
        return index, item

    def __repr__(self) -> str:
        """How far the batch is."""
        begun, failed = counted(len(self.results), "prompt"), len(self.errors)
        stands = f"{self.done} of {begun} done" + (f", {failed} failed" if failed else "")
        more = " so far" if self._requests is not None else ""
        return f"<Batch {stands}{more}, {counted(self.tokens, 'token')}>"

    def run(self) -> list[Result]:
        """Run all prompts to their ends, and return their results in order.

        Raises the error of the first that fails; a further call runs the others. ``results`` has
        ``None`` for those that failed.
        """
        for _ in self:
            pass
        if self.errors:
            raise self.errors[min(self.errors)]
        return [result for result in self.results if result is not None]

    @property
    def done(self) -> int:
        """The number of prompts that have ended or failed."""
        return len(self.errors) + sum(result is not None for result in self.results)

    @property
    def busy(self) -> bool:
        """Whether any prompt has not ended."""
        return self._requests is not None or self._scheduler.busy

    @property
    def stats(self) -> Stats:
        """What the scheduler holds now, and what it has done so far."""
        return self._scheduler.stats()

    def _free(self) -> None:
        self._requests = None
        self._ready.clear()
        self._scheduler.close()
        if self._watch is not None:
            self._watch(self)

    def _submit(self) -> None:
        limit = self._scheduler.limits.max_batch + AHEAD
        while (
            self._requests is not None and len(self._indexes) < limit and self._scheduler.room > 0
        ):
            request = next(self._requests, None)
            if request is None:
                self._requests = None
                return
            index = len(self.results)
            self.results.append(None)
            self._chunks.append([])
            try:
                if isinstance(request, MlxgenError):
                    raise request
                self._indexes[self._scheduler.submit(request)] = index
            except MlxgenError as error:
                self.errors[index] = error
                self._ready.append((index, error))

    def _take(self, event: Event) -> None:
        index = self._indexes[event.handle]
        chunks = self._chunks[index]
        chunks += event.chunks
        self.tokens += len(event.chunks)
        self._ready.extend([(index, chunk) for chunk in event.chunks])
        if event.error is not None:
            self.errors[index] = event.error
            self._ready.append((index, event.error))
        elif not chunks or chunks[-1].finish_reason is None:
            return
        else:
            prefix = event.handle.request.options.prefix
            self.results[index] = fold(chunks, event.handle.usage, prefix)
        del self._indexes[event.handle]
        self._chunks[index] = []


def requests_of(
    prompts: Iterable[AnyPrompt],
    each: Iterable[GenerationOptions] | None,
    options: GenerationOptions,
    read: Read,
    prepare: Prepare,
) -> Iterator[Request | MlxgenError]:
    """For each prompt, its request or its error; the requests of a list are made before this
    returns, and the first error is raised.

    ``each`` has the options of each prompt that differ from ``options``; ``read`` checks those of a
    prompt, and ``prepare`` makes its request.
    """
    expected = "expected a mapping of options for each prompt, got"
    if each is not None:
        if isinstance(each, (str, bytes, Mapping)) or not isinstance(each, Iterable):
            raise OptionError("each", f"{expected} {type(each).__name__}; pass a list of them")
        if isinstance(each, Sized) and isinstance(prompts, Sized) and len(each) > len(prompts):
            raise OptionError("each", f"{expected} {len(each)} for {len(prompts)} prompts")

    def made() -> Iterator[Request | MlxgenError]:
        others = iter(each) if each is not None else None
        running: list[Any] = []  # filters that are bound already, so each is for one prompt
        for index, prompt in enumerate(prompts):
            own = next(others, None) if others is not None else {}
            if not isinstance(own, Mapping):
                got = "none" if own is None else repr(own)
                raise OptionError("each", f"{expected} {got} for prompts[{index}]")
            try:
                checked = read(prompt, {**options, **own})
                bound = [filter for filter in checked.filters if not hasattr(filter, "bind")]
                if any(filter is other for filter in bound for other in running):
                    raise OptionError(
                        "filters",
                        f"a running filter serves one prompt, but prompts[{index}] got one that is "
                        "in use already; pass a specification such as Regex(pattern), or a filter "
                        "for each prompt with each=",
                    )
                running.extend(bound)
                yield prepare(prompt, checked)
            except MlxgenError as error:
                yield error

    if not isinstance(prompts, Sequence):
        return made()
    ready = []
    for index, request in enumerate(made()):
        if isinstance(request, MlxgenError):
            request.add_note(f"in prompts[{index}]")
            raise request
        ready.append(request)
    return iter(ready)
