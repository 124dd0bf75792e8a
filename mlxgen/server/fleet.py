"""Which models are loaded: who gets memory, who has to go, and who waits.

Owns every load and unload. Must never know what a request asks for. It belongs to the event loop.

Each loaded model has a thread of its own, which loads it, runs it and frees it: MLX's lazy arrays
and streams belong to the thread that made them, and a load of half a minute in the thread of
another model would stop everything that this one generates.

One model is loaded at a time, in the order in which they were asked for. What was idle longest has
to go first, and then what is in use: that takes no new requests, ends those that it has, and goes;
whoever asks for it meanwhile waits until it is loaded again. So a model never goes while it
generates, and no load waits for ever.

Invariant: the models that are loaded fit into the device together, each with a little KV; the limit
for KV is shared out equally whenever one comes or goes.
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

PAUSE = 5.0  # seconds after a load failed in which it is not tried again
_PATIENCE = 10.0  # seconds for a thread to end

Boot: TypeAlias = Callable[[Entry, LanguageModel | None], tuple[Scheduler, Engine]]
"""Loads a model, which may share the weights of another one."""


class Status(enum.Enum):
    """Whether a model is loaded."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"  # as soon as nobody uses it


class Member:
    """A model of the fleet; ``base`` is the one whose weights it shares, if there is one."""

    def __init__(self, entry: Entry, base: Member | None) -> None:
        self.entry = entry
        self.base = base
        self.sharers: list[Member] = []
        """Those that share its weights; while one is loaded, it uses it."""
        if base is not None:
            base.sharers.append(self)
        self.status = Status.UNLOADED
        self.reason: str | None = None
        """Why it could not be loaded the last time."""
        self.failed_at = 0.0  # by the loop's clock
        self.serving: Serving | None = None
        self.weights = 0
        """The bytes of memory that are for its weights; 0 unless these are there, or are read."""
        self.held_before = 0
        """The bytes that MLX held before they were."""
        self.max_context = entry.max_context
        self.users = 0
        """How many requests and sharers it is used by."""
        self.used_at = 0.0  # by the loop's clock, the last time that a request used it or a sharer
        self.waiting = 0
        """How many wait until it is loaded."""
        self.turn: asyncio.Future[Serving] | None = None
        """What these wait for."""

    @property
    def generates(self) -> bool:
        """Whether requests use it, or one that shares its weights."""
        loaded = [each for each in self.sharers if each.weights]
        return self.users > len(loaded) or any(each.users for each in loaded)

    @property
    def failure(self) -> RequestError:
        """The error of a request for it while it cannot be loaded."""
        reason = f"{self.entry.name} is not loaded: {self.reason}"
        return RequestError(reason, status=503, code="model_not_loaded")

    def answer(self) -> None:
        """Let all that wait use it, or tell them why it is not loaded. They use it from now on, and
        not from when they hear of it: it must not look idle in between."""
        turn, self.turn = self.turn, None
        if turn is not None and self.serving is not None:
            self.users += self.waiting
            turn.set_result(self.serving)
        elif turn is not None:
            turn.set_exception(self.failure)
            turn.exception()  # whoever waited may have left meanwhile
        self.waiting = 0

    def told(self) -> dict[str, Any]:
        """Its state, with llama.cpp's names."""
        told: dict[str, Any] = {"value": self.status.value}
        if self.status is Status.LOADING and self.weights:
            share = (held_bytes() - self.held_before) / self.weights
            told["progress"] = round(max(0.0, min(share, 1.0)), 2)
        if self.reason is not None:
            told |= {"failed": True, "reason": self.reason}
        return told


class Fleet:
    """All models. ``boot`` loads one in its engine's thread, ``failed`` is called with the error of
    an engine that fails while it serves. ``device``: the bytes of the device, if not what MLX
    says."""

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
        for entry in catalogue.entries:  # bases come before what shares their weights
            self.members[entry.name] = Member(entry, self.members.get(entry.base or ""))
        self._settings = settings
        self._boot = boot
        self._failed = failed
        self._device = device
        self._loads = asyncio.Lock()  # its order is that of asking
        self._gone = asyncio.Event()  # set when a model was unloaded
        self._tasks: set[asyncio.Task[Any]] = set()
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
        """Use it no longer."""
        member, loop = self.members[entry.name], asyncio.get_running_loop()
        member.used_at = loop.time()
        if member.base is not None:
            member.base.used_at = member.used_at
        self._leave(member)

    def _leave(self, member: Member) -> None:
        """Let a model have one user fewer."""
        member.users -= 1
        if member.users:
            return
        if member.status is Status.UNLOADING:
            self._start(self._unload(member))
        elif self._settings.idle_unload and not self._closing:
            later = asyncio.get_running_loop().call_later
            later(self._settings.idle_unload, self._look, member)

    def _look(self, member: Member) -> None:
        """Unload a model that has been idle for long enough."""
        idle = asyncio.get_running_loop().time() - member.used_at + 0.01  # timers may be early
        if not (member.users or self._closing) and idle >= self._settings.idle_unload:
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

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, member: Member) -> None:
        """Load a model in its turn, after the one whose weights it shares, for those who wait."""
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
                member.answer()  # who asked after somebody else had it loaded
        except Exception as error:
            member.reason, member.failed_at = why(error), asyncio.get_running_loop().time()
            if several:
                told = {"model": member.entry.name, "reason": member.reason}
                log(logging.ERROR, "a model cannot be loaded", **told)
            member.status = Status.UNLOADED
            member.answer()
            return
        if member.base is not None and member.base.status is Status.UNLOADING:  # since its turn
            self.dismiss(member)

    async def _read(self, member: Member, weights: int) -> None:
        """Load a model in a thread of its own, and let those use it who wait for it."""
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
            lm, model = await asyncio.shield(thread.ready)  # the thread settles it, whoever waits
        except Exception as error:
            # they hold the weights
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
        member.users += 1  # and is idle from now on, if nobody wants it
        self.release(member.entry)

    def _fail(self, name: str, error: BaseException) -> None:
        if len(self.members) > 1:
            log(logging.ERROR, "the engine of a model failed", model=name)
        self._failed(error)

    def _over(self, thread: EngineThread, _: object) -> None:
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
        member.weights = 0
        member.status = Status.UNLOADED if member.turn is None else Status.LOADING
        if member.base is not None:
            self._leave(member.base)
        self._gone.set()
        await self._divide()

    # ---- room --------------------------------------------------------------------------------

    async def _make_room(self, chain: Sequence[Member], sizes: Sequence[int]) -> None:
        """Make room for models of these sizes, some of which may be loaded already; raises
        ``MemoryLimitError`` if there can never be any."""
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
        """Share out the memory among those that have room."""
        sharers = [each for each in self.members.values() if each.weights]
        weights = sum(each.weights for each in sharers)

        def share(lm: LanguageModel, scheduler: Scheduler) -> None:
            lm.runtime.share_memory(weights, len(sharers))
            scheduler.follow(lm.memory)

        served = [each.serving for each in sharers if each.serving is not None]
        await asyncio.gather(*(each.engine.do(partial(share, each.lm)) for each in served))

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


async def _size_of(entry: Entry) -> int:
    """``size_of`` in a thread of its own, as it may take minutes."""
    size: concurrent.futures.Future[int] = concurrent.futures.Future()
    size.set_running_or_notify_cancel()  # from now on nobody else ends it

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
    """Give back what nobody refers to any more once a thread has ended, here and on other
    machines."""
    import mlx.core as mx

    thread.join(_PATIENCE)
    gc.collect()
    mx.clear_cache()
    machines = join()
    if machines is not None:
        with contextlib.suppress(MachineError), machines.turn():
            machines.flush()
