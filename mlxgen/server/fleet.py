"""Which models are loaded: which get memory, which must be unloaded, and which requests wait.

Owns every load and unload. Must never know what a request asks for. It belongs to the event loop.

Each loaded model has its own thread, which loads it, runs it and frees it: MLX's lazy arrays and
streams belong to the thread that made them, and a load of half a minute in another model's thread
would stop everything that this one generates.

Models load one at a time, in the order of the requests for them. To make room, the model that was
idle longest is unloaded first; then models in use, which take no new requests, finish those they
have, and go. Requests for such a model wait until it is loaded again. So a model is never unloaded
while it generates, and no load waits for ever.

Invariant: the loaded models fit into the device together, each with a little KV; the memory for KV
is divided equally whenever a model is loaded or unloaded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import enum
import gc
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..engine import Scheduler, Stats
from ..errors import MachineError, MemoryLimitError, MlxgenError
from ..language_model import LanguageModel
from ..load import join
from ..loading.memory import held_bytes, in_words, memory_limit, needed_by, reserve_of
from ..workers import workers
from .catalogue import Catalogue, Entry
from .engine import FLUSH, EngineThread
from .errors import RequestError
from .logs import log
from .metrics import added, finished
from .served_model import Engine, size_of
from .serving import Serving
from .settings import Settings

PAUSE = 5.0  # seconds after a failed load until the next try
_PATIENCE = 10.0  # seconds for a thread to end

Boot: TypeAlias = Callable[[Entry, LanguageModel | None], tuple[Scheduler, Engine]]
"""Loads a model, which may share the weights of a base model."""


class Status(enum.Enum):
    """Whether a model is loaded."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # as soon as no request uses it


class Member:
    """A model of the fleet; ``base`` is the model whose weights it shares, if any."""

    def __init__(self, entry: Entry, base: Member | None) -> None:
        self.entry = entry
        self.base = base
        self.sharers: list[Member] = []
        """The models that share its weights; each counts as a user while it is loaded."""
        if base is not None:
            base.sharers.append(self)
        self.status = Status.UNLOADED
        self.reason: str | None = None
        """Why the last load failed."""
        self.failed_at = 0.0  # by the loop's clock
        self.serving: Serving | None = None
        self.weights = 0
        """The bytes of memory for its weights; 0 unless they are loaded or being loaded."""
        self.held_before = 0
        """The bytes that MLX held before the load."""
        self.max_context = entry.max_context
        self.users = 0
        """The number of requests and loaded sharers that use it."""
        self.used_at = 0.0  # by the loop's clock: last use by a request, or of a sharer
        self.waiting = 0
        """The number of requests that wait for it to be loaded."""
        self.turn: asyncio.Future[Serving] | None = None
        """The future that these wait for."""

    @property
    def generates(self) -> bool:
        """Whether requests use it or a model that shares its weights."""
        loaded = [each for each in self.sharers if each.weights]
        return self.users > len(loaded) or any(each.users for each in loaded)

    @property
    def failure(self) -> RequestError:
        """The error for requests after a failed load."""
        reason = f"{self.entry.name} is not loaded: {self.reason}"
        return RequestError(reason, status=503, code="model_not_loaded")

    def answer(self) -> None:
        """Let all waiting requests use it, or give them the error. They count as users from now on,
        not from when they resume: in between, it must not look idle."""
        turn, self.turn = self.turn, None
        if turn is not None and self.serving is not None:
            self.users += self.waiting
            turn.set_result(self.serving)
        elif turn is not None:
            turn.set_exception(self.failure)
            turn.exception()  # marks it as retrieved: all waiters may have left
        self.waiting = 0

    def told(self) -> dict[str, Any]:
        """The state of the model, under llama.cpp's names."""
        told: dict[str, Any] = {"value": self.status.value}
        if self.status is Status.LOADING and self.weights:
            share = (held_bytes() - self.held_before) / self.weights
            told["progress"] = round(max(0.0, min(share, 1.0)), 2)
        if self.reason is not None:
            told |= {"failed": True, "reason": self.reason}
        return told


class Fleet:
    """All models. ``boot`` loads one in its engine's thread; ``failed`` is called with the error of
    an engine that fails while it serves. ``device``: the bytes of the device; None: as MLX
    reports."""

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        *,
        boot: Boot,
        failed: Callable[[BaseException], None],
        device: int | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.members: dict[str, Member] = {}
        for entry in catalogue.entries:  # bases come before their sharers
            self.members[entry.name] = Member(entry, self.members.get(entry.base or ""))
        self._settings = settings
        self._boot = boot
        self._failed = failed
        self._device = device
        self._loads = asyncio.Lock()  # fair: models load in the order of requests
        self._gone = asyncio.Event()  # set when a model was unloaded
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: set[EngineThread] = set()
        self._past: Stats | None = None  # of models that are no longer loaded
        self._closing = False
        self._is_told = not settings.loads_at_once  # else main has logged the first load

    # ---- for requests ------------------------------------------------------------------------

    @property
    def serving(self) -> list[Serving]:
        """The loaded models."""
        return [each.serving for each in self.members.values() if each.serving is not None]

    @property
    def default(self) -> Member:
        """The model for requests that name none."""
        return self.members[self.catalogue.default.name]

    async def use(self, entry: Entry) -> Serving:
        """The model, loaded; ``release`` it after use. Raises ``RequestError`` (503) if it cannot
        be loaded."""
        member, loop = self.members[entry.name], asyncio.get_running_loop()
        if member.status is Status.LOADED and member.serving is not None:
            member.users += 1
            return member.serving
        if member.reason is not None and loop.time() - member.failed_at < PAUSE:
            raise member.failure
        turn = member.turn
        if turn is None:
            turn = member.turn = loop.create_future()
            if not self._closing:
                self._start(self._load(member))
        member.waiting += 1
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            if not turn.done():
                member.waiting -= 1
            elif turn.exception() is None:
                self.release(entry)
            raise

    def release(self, entry: Entry) -> None:
        """End one request's use of a model."""
        member, loop = self.members[entry.name], asyncio.get_running_loop()
        member.used_at = loop.time()
        if member.base is not None:
            member.base.used_at = member.used_at
        self._leave(member)

    def _leave(self, member: Member) -> None:
        """Take one user from a model, and unload it if it is time."""
        member.users -= 1
        if member.users:
            return
        if member.status is Status.UNLOADING:
            self._start(self._unload(member))
        elif self._settings.idle_unload and not self._closing:
            later = asyncio.get_running_loop().call_later
            later(self._settings.idle_unload, self._look, member)

    def _look(self, member: Member) -> None:
        """Unload a model if it has been idle for long enough."""
        idle = asyncio.get_running_loop().time() - member.used_at + 0.01  # timers may be early
        if not (member.users or self._closing) and idle >= self._settings.idle_unload:
            self.dismiss(member)

    def dismiss(self, member: Member) -> None:
        """Unload a model, if it is loaded, as soon as it has no users."""
        if member.status is Status.LOADED:
            member.status = Status.UNLOADING
            for each in member.sharers:
                self.dismiss(each)
            if not member.users:
                self._start(self._unload(member))

    def stats(self) -> Stats | None:
        """The figures of all models, unloaded ones included; ``None`` while there are none."""
        return added([self._past, *(thread.stats for thread in self._threads)])

    def loaded(self) -> Mapping[str, bool]:
        """Whether each model is loaded, by name."""
        return {name: each.serving is not None for name, each in self.members.items()}

    # ---- loading -----------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, member: Member) -> None:
        """Load a model in its turn, after its base, for the requests that wait."""
        if self._is_told:
            log(logging.INFO, f"loading {member.entry.name} ...")
        self._is_told = True
        if member.status is Status.UNLOADED:
            member.status = Status.LOADING
        chain = [each for each in (member.base, member) if each is not None]
        several = len(self.members) > 1
        try:
            sizes = [await _size_of(each.entry) if several else 0 for each in chain]
            async with self._loads:
                if several:
                    await self._make_room(chain, sizes)
                while any(each.status is Status.UNLOADING for each in chain):
                    self._gone.clear()
                    await self._gone.wait()
                for each, size in zip(chain, sizes, strict=True):
                    if each.serving is None:
                        await self._read(each, size)
                member.answer()  # if it was loaded meanwhile
        except Exception as error:
            member.reason, member.failed_at = why(error), asyncio.get_running_loop().time()
            if several:
                told = {"model": member.entry.name, "reason": member.reason}
                log(logging.ERROR, "a model cannot be loaded", **told)
            member.status = Status.UNLOADED
            member.answer()
            return
        if member.base is not None and member.base.status is Status.UNLOADING:  # meanwhile
            self.dismiss(member)

    async def _read(self, member: Member, weights: int) -> None:
        """Load a model in its own thread, and let the waiting requests use it."""
        loop, settings, base = asyncio.get_running_loop(), self._settings, member.base
        several, began, shared = len(self.members) > 1, loop.time(), None
        member.reason = None
        member.status, member.weights, member.held_before = Status.LOADING, weights, held_bytes()
        if base is not None and base.serving is not None:
            base.users += 1
            shared = base.serving.lm
        await self._divide()
        boot = partial(self._boot, member.entry, shared)
        thread = EngineThread(boot, partial(self._fail, member.entry.name), loop=loop)
        thread.gone.add_done_callback(partial(self._over, thread))
        self._threads.add(thread)
        thread.start()
        try:
            lm, model = await asyncio.shield(thread.ready)  # only the thread settles it
        except Exception as error:
            # their frames hold the weights
            error.__traceback__ = error.__cause__ = error.__context__ = None
            await self._bury(member, thread)
            raise
        fetches = settings.allow_remote_images and model.dialect.images is not None
        member.serving = Serving(thread, lm, model, settings.max_queue, fetches)
        if base is None:
            member.weights = lm.runtime.weight_bytes
        if several:
            await self._divide()
            told = {"model": member.entry.name, "seconds": loop.time() - began}
            log(logging.INFO, "a model was loaded", **told)
        log(logging.DEBUG, f"memory: {lm.memory}")
        member.max_context = model.max_context
        member.status = Status.LOADED
        member.answer()
        member.users += 1  # with release, starts the idle timer if no request uses it
        self.release(member.entry)

    def _fail(self, name: str, error: BaseException) -> None:
        if len(self.members) > 1:
            log(logging.ERROR, "the engine of a model failed", model=name)
        self._failed(error)

    def _over(self, thread: EngineThread, _: object) -> None:
        """Add the figures of a thread that has ended to those of the past."""
        self._threads.discard(thread)
        self._past = added([self._past, finished(thread.stats)])

    async def _unload(self, member: Member) -> None:
        assert member.serving is not None
        thread, member.serving = member.serving.engine, None
        thread.stop()
        await self._bury(member, thread)
        log(logging.INFO, "a model was unloaded", model=member.entry.name)

    async def _bury(self, member: Member, thread: EngineThread) -> None:
        """Free everything of a model whose thread is ending; it may then be loaded again."""
        await thread.gone
        await asyncio.to_thread(_free_memory_after, thread)
        member.weights = 0
        member.status = Status.UNLOADED if member.turn is None else Status.LOADING
        if member.base is not None:
            self._leave(member.base)
        self._gone.set()
        await self._divide()

    # ---- room --------------------------------------------------------------------------------

    async def _make_room(self, chain: Sequence[Member], sizes: Sequence[int]) -> None:
        """Make room for models of these sizes, some of which may be loaded already; raises
        ``MemoryLimitError`` if there can never be enough."""
        device = memory_limit()[0] if self._device is None else self._device
        room = device - reserve_of(device)
        needed = sum(needed_by(each.weights or n) for each, n in zip(chain, sizes, strict=True))
        if needed > room and not self._settings.ignore_memory_limit:
            raise MemoryLimitError(
                f"it needs {in_words(needed)} with a little KV, but of the {in_words(device)} of "
                f"this device {in_words(room)} are for models; use a smaller or more quantised one"
            )
        while held := [
            each for each in self.members.values() if each.weights and each not in chain
        ]:
            if sum(needed_by(each.weights) for each in held) + needed <= room:
                break
            if not any(each.status is Status.UNLOADING for each in held):
                self.dismiss(min(held, key=lambda one: (one.generates, one.used_at)))
            self._gone.clear()
            await self._gone.wait()

    async def _divide(self) -> None:
        """Divide the memory among the models that are loaded or being loaded."""
        sharers = [each for each in self.members.values() if each.weights]
        weights = sum(each.weights for each in sharers)

        def share(lm: LanguageModel, scheduler: Scheduler) -> None:
            lm.runtime.share_memory(weights, len(sharers))
            scheduler.follow(lm.memory)

        served = [each.serving for each in sharers if each.serving is not None]
        await asyncio.gather(*(each.engine.do(partial(share, each.lm)) for each in served))

    # ---- the end -----------------------------------------------------------------------------

    async def close(self, flush: float = FLUSH, *, patience: float = _PATIENCE) -> bool:
        """Stop all threads and loads; return True if all threads ended.

        For ``flush`` seconds, prefixes that are only in memory are written to disk. After that,
        each thread has ``patience`` seconds to end.
        """
        self._closing = True
        threads = list(self._threads)
        for thread in threads:
            thread.stop(flush)
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ends = [await asyncio.to_thread(thread.join, patience + flush) for thread in threads]
        return all(ends)


async def _size_of(entry: Entry) -> int:
    """``size_of`` in its own thread, because it may take minutes."""
    size: concurrent.futures.Future[int] = concurrent.futures.Future()
    size.set_running_or_notify_cancel()  # so that it cannot be cancelled

    def find() -> None:
        try:
            size.set_result(size_of(entry))
        except BaseException as error:
            size.set_exception(error)

    workers().start(find, "size")
    return await asyncio.wrap_future(size)


def why(error: BaseException) -> str:
    """Why a model cannot be loaded, in one line."""
    said = " ".join(str(error).split())
    if isinstance(error, MlxgenError):
        return said
    return f"the model cannot be loaded: {type(error).__name__}: {said}"


def _free_memory_after(thread: EngineThread) -> None:
    """Once a thread has ended, free the memory that nothing refers to any more, here and on other
    machines."""
    import mlx.core as mx

    thread.join(_PATIENCE)
    gc.collect()
    mx.clear_cache()
    machines = join()
    if machines is not None:
        with contextlib.suppress(MachineError), machines.turn():
            machines.flush()
