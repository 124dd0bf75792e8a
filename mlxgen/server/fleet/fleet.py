"""Which models are loaded: who gets memory, who has to go, and who waits.

Owns every load and unload. Must never know what a request asks for. It belongs to the event loop.

Each loaded model has a thread of its own, which loads it, runs it and frees it: MLX's lazy arrays
and streams belong to the thread that made them, and a load of half a minute in the thread of
another model would stop everything that this one generates.

    request ---- use ---->  member: loaded?  --yes-->  used at once
                              | no: waits
                              v
    engine's thread:  how large?  --ask-->  room?  --go-->  reads the weights  --ready-->  used

Loads get room one at a time, in the order in which they asked for it. What was idle longest has to
go first, and then what is in use: that takes no new requests, ends those that it has, and goes;
whoever asks for it meanwhile waits until it is loaded again. So a model never goes while it
generates, and no load waits for ever.

Invariant: the models that have room fit into the device together, each with a little KV; the limit
for KV is shared out equally whenever one comes or goes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias

from ...engine import Scheduler, Stats
from ...errors import MachineError, MemoryLimitError, MlxgenError
from ...language_model import LanguageModel
from ...load import join
from ...loading.memory import held_bytes, in_words, memory_limit, needed_by, reserve_of
from ..engine.boot import Ask, EngineBoot
from ..engine.thread import FLUSH, EngineThread
from ..jobs import Workers
from ..logs import log
from ..metrics import added, finished
from ..settings import Settings
from .catalogue import Catalogue, Entry
from .member import Member, Serving, Status

PAUSE = 5.0  # seconds after a load failed in which it is not tried again
_PATIENCE = 10.0  # seconds for a thread to end

Boots: TypeAlias = Callable[[Entry, Ask | None], EngineBoot]


class _UnwantedError(MlxgenError):
    """Nobody waits for a load any more."""


class Fleet:
    """All models. ``boots`` makes what loads one, ``failed`` is called with the error of an engine
    that fails while it serves. ``device``: the bytes of the device, if not what MLX says."""

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        workers: Workers,
        *,
        boots: Boots,
        failed: Callable[[BaseException], None],
        device: int | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.members: dict[str, Member] = {}
        for entry in catalogue.entries:  # bases come before what shares their weights
            self.members[entry.name] = Member(entry, self.members.get(entry.base or ""))
        self._settings = settings
        self._workers = workers
        self._boots = boots
        self._failed = failed
        self._device = device
        self._room = asyncio.Lock()  # one load at a time gets some; its order is that of asking
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: set[EngineThread] = set()
        self._past: Stats | None = None  # of models that are no longer loaded
        self._closing = False
        self._is_told = not settings.loads_at_once  # the first load was said before

    # ---- what requests ask -------------------------------------------------------------------

    @property
    def serving(self) -> list[Serving]:
        """Those that are loaded."""
        return [each.serving for each in self.members.values() if each.serving is not None]

    @property
    def default(self) -> Member:
        """The model of requests that name none."""
        return self.members[self.catalogue.default.name]

    async def use(self, entry: Entry) -> Serving:
        """The model, loaded; ``release`` it after use. Raises ``RequestError`` (503) if it cannot
        be loaded."""
        member = self.members[entry.name]
        if member.status is Status.LOADED:
            return member.take()
        loop = asyncio.get_running_loop()
        if member.reason is not None and loop.time() - member.failed_at < PAUSE:
            raise member.failure
        waiter: asyncio.Future[Serving] = loop.create_future()
        member.waiters.append(waiter)
        if member.status is Status.UNLOADED:
            self._begin(member)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(entry)
            raise
        finally:
            if waiter in member.waiters:
                member.waiters.remove(waiter)
            self._news.set()

    def release(self, entry: Entry) -> None:
        """Use it no longer."""
        member = self.members[entry.name]
        member.users -= 1
        loop, wait = asyncio.get_running_loop(), self._settings.idle_unload
        member.used_at = loop.time()
        if member.users:
            return
        if member.status is Status.UNLOADING:
            self._start(self._unload(member))
        elif wait and not self._closing:
            loop.call_later(wait, self._look, member)

    def _look(self, member: Member) -> None:
        """Unload a model that has been idle for long enough."""
        idle = asyncio.get_running_loop().time() - member.used_at + 0.01  # timers may be early
        if member.is_idle and not self._closing and idle >= self._settings.idle_unload:
            self.dismiss(member)

    def dismiss(self, member: Member) -> None:
        """Unload a model, if it is loaded, as soon as nobody uses it."""
        if member.status is Status.LOADED:
            member.status = Status.UNLOADING
            for each in member.sharers:
                self.dismiss(each)
            if not member.users:
                self._start(self._unload(member))

    def stats(self) -> Stats | None:
        """The figures of all, those of the past included; ``None`` while there are none."""
        return added([self._past, *(thread.stats for thread in self._threads)])

    def loaded(self) -> Mapping[str, bool]:
        """Whether each model is loaded, by name."""
        return {name: each.serving is not None for name, each in self.members.items()}

    # ---- loading -----------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, member: Member) -> None:
        if self._closing:
            return
        if self._is_told:
            log(logging.INFO, f"loading {member.entry.name} ...")
        self._is_told = True
        member.status, member.reason = Status.LOADING, None
        self._start(self._load(member))

    async def _load(self, member: Member) -> None:
        """Load a model, and let those use it who wait for it."""
        loop, name, several = asyncio.get_running_loop(), member.entry.name, len(self.members) > 1
        began = loop.time()
        asked: asyncio.Future[int] = loop.create_future()
        go: concurrent.futures.Future[LanguageModel | None] = concurrent.futures.Future()

        def ask(weights: int) -> LanguageModel | None:  # in the engine's thread
            loop.call_soon_threadsafe(asked.set_result, weights)
            return go.result()

        boot = self._boots(member.entry, ask if several else None)
        thread = EngineThread(boot, partial(self._fail, name), loop=loop)
        thread.gone.add_done_callback(lambda _: self._over(thread))
        self._threads.add(thread)
        thread.start()
        ready = thread.ready
        try:
            first: set[asyncio.Future[Any]] = {asked, ready}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                async with self._turn(member) as base:
                    await self._make_room(member, asked.result())
                    go.set_result(None if base is None else base.lm)
                    engine = await ready
            else:
                engine = await ready
            serving = Serving.of(thread, engine, self._workers, self._settings)
        except asyncio.CancelledError:
            go.cancel()
            raise
        except Exception as error:
            go.cancel()
            if not isinstance(error, _UnwantedError):
                member.reason, member.failed_at = why(error), loop.time()
                if several:
                    told = {"model": name, "reason": member.reason}
                    log(logging.ERROR, "a model cannot be loaded", **told)
            error.__traceback__ = error.__cause__ = error.__context__ = (
                None  # they hold the weights
            )
            await self._bury(member, thread)
            return
        member.serving = serving
        if member.base is None:
            member.weights = serving.lm.runtime.weight_bytes
        if several:
            await self._divide()
        member.max_context = serving.model.max_context
        member.status, member.used_at = Status.LOADED, loop.time()
        log(logging.DEBUG, f"memory: {serving.lm.memory}")
        if several:
            log(logging.INFO, "a model was loaded", model=name, seconds=member.used_at - began)
        member.answer()
        self._news.set()
        member.users += 1  # and is idle from now on, if nobody wants it
        self.release(member.entry)
        if member.base is not None and member.base.status is Status.UNLOADING:  # since its turn
            self.dismiss(member)

    @contextlib.asynccontextmanager
    async def _turn(self, member: Member) -> AsyncIterator[Serving | None]:
        """The turn to get room, with the model whose weights this one shares: from then on it has
        them, and before that it does not keep others from getting theirs."""
        base = member.base
        while base is not None:
            await self.use(base.entry)
            self.release(base.entry)
            async with self._room:
                if base.status is Status.LOADED:
                    base.sharers.add(member)
                    yield base.take()
                    return
        async with self._room:
            yield None

    def _fail(self, name: str, error: BaseException) -> None:
        if len(self.members) > 1:
            log(logging.ERROR, "the engine of a model failed", model=name)
        self._failed(error)

    def _over(self, thread: EngineThread) -> None:
        """Keep the figures of a thread that has ended."""
        self._threads.discard(thread)
        self._past = added([self._past, finished(thread.stats)])

    async def _unload(self, member: Member) -> None:
        assert member.serving is not None
        thread, member.serving = member.serving.engine, None
        thread.stop()
        await self._bury(member, thread)
        log(logging.INFO, "a model was unloaded", model=member.entry.name)

    async def _bury(self, member: Member, thread: EngineThread) -> None:
        """Keep nothing of a model whose thread ends; it may be loaded again."""
        await thread.gone
        await asyncio.to_thread(_free_memory_after, thread)
        member.weights, member.status = 0, Status.UNLOADED
        base = member.base
        if base is not None and member in base.sharers:
            base.sharers.remove(member)
            self.release(base.entry)
        if member.reason is not None:
            member.answer()
        elif member.waiters:
            self._begin(member)
        self._news.set()
        await self._divide()

    # ---- room --------------------------------------------------------------------------------

    async def _make_room(self, member: Member, weights: int) -> None:
        """Give a model room, which others may have to leave first.

        Raises ``MemoryLimitError`` if it can never have any.
        """
        device = memory_limit()[0] if self._device is None else self._device
        room, needed, base = device - reserve_of(device), needed_by(weights), member.base
        if base is not None:
            needed += needed_by(base.weights)
        if needed > room and not self._settings.ignore_memory_limit:
            raise MemoryLimitError(
                f"it needs {in_words(needed)} with a little KV, but of the {in_words(device)} of "
                f"this device {in_words(room)} are for models; use a smaller or more quantised one"
            )
        leaving: list[Member] = []
        while (held := self._held_beside(member)) and held + needed > room:
            if not member.waiters:
                for each in leaving:
                    self._keep(each)
                raise _UnwantedError("nobody waits for it any more")
            if not any(each.status is Status.UNLOADING for each in self.members.values()):
                staying = [e for e in self.members.values() if e.status is Status.LOADED]
                others = [each for each in staying if each is not base]
                order = sorted(others, key=lambda one: (one.generates, one.last_used))
                for goes in order[:1]:
                    leaving.append(goes)
                    self.dismiss(goes)
            self._news.clear()
            await self._news.wait()
        member.weights, member.held_before = weights, held_bytes()
        await self._divide()

    def _held_beside(self, member: Member) -> int:
        """The bytes that models need which have room, but for the one that this one shares."""
        others = [each for each in self.members.values() if each.weights and each != member.base]
        return sum(needed_by(each.weights) for each in others)

    def _keep(self, member: Member) -> None:
        """Let a model stay after all, if it has not begun to go."""
        if member.status is Status.UNLOADING and member.users:
            member.status = Status.LOADED
            for each in member.sharers:
                self._keep(each)
            member.answer()

    async def _divide(self) -> None:
        """Share out the memory among those that have room."""
        sharers = [each for each in self.members.values() if each.weights]
        weights = sum(each.weights for each in sharers)
        served = [each.serving for each in sharers if each.serving is not None]
        work = [partial(_share, each.lm, weights, len(sharers)) for each in served]
        await asyncio.gather(*(s.engine.do(w) for s, w in zip(served, work, strict=True)))

    # ---- the end -----------------------------------------------------------------------------

    async def close(self, flush: float = FLUSH, *, patience: float = _PATIENCE) -> bool:
        """Stop all threads and loads; returns whether all of them ended.

        For ``flush`` seconds prefixes that are only in memory are written to disk. After that,
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


def why(error: BaseException) -> str:
    """Why a model cannot be loaded, in one line."""
    if isinstance(error, MlxgenError):
        return " ".join(str(error).split())
    return f"the model cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}"


def _share(lm: LanguageModel, weights: int, sharers: int, scheduler: Scheduler) -> None:
    lm.runtime.share_memory(weights, sharers)
    scheduler.follow(lm.memory)


def _free_memory_after(thread: EngineThread) -> None:
    """Free what a thread has held that is about to end."""
    thread.join(_PATIENCE)
    _free_memory()


def _free_memory() -> None:
    """Give back what nobody refers to any more, such as a model whose thread has ended, here and on
    other machines."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    machines = join()
    if machines is not None:
        with contextlib.suppress(MachineError), machines.turn():
            machines.flush()
