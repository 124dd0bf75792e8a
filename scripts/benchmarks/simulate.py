"""The scheduler on simulated devices: the engine runs a tiny model, on a device's clock.

Every command is carried out, so that policies see what they would see there; only the time is
computed: a pass takes ``max(bytes / bandwidth, flops / throughput) + launches * overhead``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

import mlxgen
from mlxgen.engine.kv.commands import Command, Run, Wait
from mlxgen.engine.kv.footprint import Footprint
from mlxgen.engine.kv.groups import Slots
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler

from . import kit
from .architectures import read
from .batch import records

WARM = 40  # tokens of the running requests when others arrive


class Asked(NamedTuple):
    """A request: the tokens of its ``prompt``, and those to generate (None: until others end)."""

    prompt: int
    tokens: int | None = None
    options: dict[str, Any] = {}  # noqa: RUF012


class Workload(NamedTuple):
    """Requests that are ``running`` when others are ``arriving``."""

    name: str
    running: Sequence[Asked] = ()
    arriving: Sequence[Asked] = ()


ONE = Workload("1 row, a prompt of 4,096 arrives", [Asked(64)], [Asked(4_096, 32)])
EIGHT = Workload("8 rows, a prompt of 32,768 arrives", [Asked(64)] * 8, [Asked(32_768, 32)])
HELD = [Asked(64, 200, {"filters": [records(i, 50)], "temperature": 0.7}) for i in range(16)]
FORCED = Workload("16 rows with a schema each", HELD)
FREE = Workload("16 rows", [Asked(64, 200, {"temperature": 0.7})] * 16)
MANY = Workload("64 short requests at once", [], [Asked(64 + i, 64) for i in range(64)])
WORKLOADS = (ONE, EIGHT, FORCED, FREE, MANY)


def figures() -> Iterator[kit.Figure]:
    for device, shape in itertools.product(DEVICES, SHAPES):
        where = f"{device.name}, {shape.name}"
        found = {load.name: ours(device, shape, load) for load in WORKLOADS}
        one = found[ONE.name]
        gap = max(one.gaps) / shape.seconds(device, 1, 1, 128)
        yield kit.at_most(f"{where}: {ONE.name}: longest gap, in steps", gap, 3)
        beside = one.first[0] / alone(device, shape, ONE.arriving[0].prompt)
        yield kit.at_most(f"{where}: {ONE.name}: time over that alone", beside, 1.5)
        what = f"{where}: {FORCED.name}: tokens/s over unconstrained"
        yield kit.at_least(what, found[FORCED.name].rate / found[FREE.name].rate, 1.0)
        for name, came in found.items():
            yield kit.plain(f"{where}: {name}", came.rate, came)


class Outcome(NamedTuple):
    """``first``: seconds to the first token of each arriving request. ``gaps``: seconds between two
    tokens of the requests without an end. ``rate``: tokens per second of all requests, until the
    last one with an end has ended."""

    first: list[float]
    gaps: list[float]
    rate: float

    def __str__(self) -> str:
        first = f"last first token {max(self.first):.2f} s, " if self.first else ""
        gaps = f"longest gap {max(self.gaps) * 1e3:.0f} ms, " if self.gaps else ""
        return f"{first}{gaps}{self.rate:.0f} tokens/s"


def ours(device: Device, shape: Shape, load: Workload, limits: Limits | None = None) -> Outcome:
    """Run a workload on our scheduler."""
    lm = SimulatedModel(device, shape)
    line = lm.timeline
    limits = replace(limits or Limits(), keep_prefixes=False, max_bytes=1 << 50)
    scheduler = Scheduler(lm.runtime, limits)

    def submit(asked: Asked, seed: int) -> Any:
        given = {"max_tokens": asked.tokens, "ignore_eos": True, "draft": "off", "seed": seed}
        options = Options.of({**given, **asked.options})
        return scheduler.submit(lm.runtime.prepare(kit.prompt_of(asked.prompt, seed), options))

    running = [submit(asked, i) for i, asked in enumerate(load.running)]
    endless = [
        handle for handle, asked in zip(running, load.running, strict=True) if not asked.tokens
    ]
    while any(handle.request.position < WARM for handle in endless):
        scheduler.step()
    start, tokens, first, gaps = line.now, 0, list[float](), list[float]()
    last = dict.fromkeys(endless, start)
    waiting = {submit(asked, 100 + i) for i, asked in enumerate(load.arriving)}
    count = len(running) + len(waiting) - len(endless)
    while count:
        for event in scheduler.step():
            assert event.error is None, event.error
            handle = event.handle
            tokens += len(event.chunks)
            if handle in last:
                gaps.append(line.now - last[handle])
                last[handle] = line.now
            elif handle in waiting:
                waiting.discard(handle)
                first.append(line.now - start)
            count -= handle.has_ended
    scheduler.close()
    return Outcome(first, gaps, tokens / (line.now - start))


def alone(device: Device, shape: Shape, prompt: int) -> float:
    """Seconds to the first token of a prompt if nothing else runs."""
    return ours(device, shape, Workload("", [], [Asked(prompt, 2)])).first[0]


# ---- devices -----------------------------------------------------------------------------------

LAUNCHES = 16  # kernels of a layer of a Llama: see the count of primitives
HOST_LAYER = 15e-6  # seconds of Python to build a layer's graph; a guess
HOST_ROW = 15e-6  # seconds to prepare a row's draw, including masks; a guess
HOST_TOKEN = 5e-6  # seconds to accept a token after it was read; a guess
DRAWING = 20  # kernels of a draw; a guess


@dataclass(frozen=True, slots=True)
class Device:
    """``bandwidth`` in bytes per second and ``throughput`` in flops per second, as reached in
    practice, and ``overhead`` in seconds per kernel launch."""

    name: str
    bandwidth: float
    throughput: float
    overhead: float


_KNOWN = read("devices")
DEVICES = [Device(**told) for told in _KNOWN["devices"]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A model; ``weights``: the number of weights that a pass reads, of ``bits`` each."""

    name: str
    weights: float
    bits: float
    layers: int
    heads: int
    kv_heads: int
    width: int = 128

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV per token, in 16 bits."""
        return 2 * 2 * self.layers * self.kv_heads * self.width

    def seconds(self, device: Device, rows: int, tokens: int, places: int) -> float:
        """Seconds of a pass of ``tokens`` for each of ``rows``, which see ``places`` of KV each."""
        nbytes = self.weights * self.bits / 8 + rows * places * self.kv_bytes
        attention = 4 * self.layers * self.heads * self.width * places
        flops = rows * tokens * (2 * self.weights + attention)
        busy = max(nbytes / device.bandwidth, flops / device.throughput)
        return busy + (LAUNCHES * self.layers + 10) * device.overhead


SHAPES = [Shape(**told) for told in _KNOWN["shapes"]]


class Timeline:
    """The time ``now`` on the host, and until when the device is ``busy``."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.now = self.busy = 0.0
        self.done: dict[int, tuple[mx.array, float]] = {}  # when arrays are ready, by identity

    def work(self, seconds: float) -> float:
        """Submit more work to the device; return the time of its completion."""
        self.busy = max(self.busy, self.now) + seconds
        return self.busy

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


class Simulated(Runner):
    """A runner whose work takes the time of a ``shape`` on a ``timeline``."""

    timeline: Timeline
    shape: Shape

    def do(self, command: Command) -> Any:
        line, shape = self.timeline, self.shape
        result = super().do(command)
        if isinstance(command, Run):
            tokens = max(len(tokens) for _, tokens in command.rows)
            places = max(self._stores[kv].length for kv, _ in command.rows)
            line.now += shape.layers * HOST_LAYER
            line.work(shape.seconds(line.device, len(command.rows), tokens, places))
        elif isinstance(command, Wait) and command.kv is not None:
            line.wait(line.busy)
        return result

    def submit(self, arrays: Iterable[mx.array | None]) -> None:
        given = [array for array in arrays if array is not None]
        super().submit(given)
        line = self.timeline
        line.now += HOST_ROW * given[0].shape[0]
        until = line.work(DRAWING * line.device.overhead)
        line.done.update({id(array): (array, until) for array in given})

    def read(self, array: mx.array) -> list[int]:
        line = self.timeline
        line.wait(line.done.pop(id(array), (array, line.busy))[1])
        tokens = super().read(array)
        line.now += HOST_TOKEN * len(tokens)
        return tokens

    def now(self) -> float:
        return self.timeline.now

    @property
    def queues(self) -> bool:
        return True


PERIOD = 40


class Tiny(nn.Module):
    """Repeats a cycle of ``PERIOD`` tokens most of the time. Its KV is one number per token."""

    vocab, peak = 2_000, 8.7  # a logit that gives three quarters of the probability

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = [None]

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def following(self, inputs: mx.array, start: int) -> mx.array:
        return (inputs + 1) % PERIOD + 256

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        following = self.following(inputs, cache[0].offset)
        keys = inputs.astype(mx.float32)[:, None, :, None]
        cache[0].update_and_fetch(keys, keys)
        return mx.where(mx.arange(self.vocab) == following[..., None], self.peak, 0.0)


class SimulatedModel(mlxgen.LanguageModel):
    """A model of a ``shape`` on a ``device``, as far as time is concerned, with the text of another
    model, whose own heads draft nothing."""

    def __init__(
        self, device: Device, shape: Shape, lm: mlxgen.LanguageModel | None = None
    ) -> None:
        self.timeline, self.shape = Timeline(device), shape
        text = lm or mlxgen.LanguageModel(Tiny(), kit.fake_tokenizer(Tiny.vocab))
        super().__init__(text.model, text.tokenizer, name=shape.name, max_context=1 << 20)
        footprint = Footprint(shape.kv_bytes, (), 0, int(shape.weights * shape.bits / 8))
        self.runtime._measures = replace(self.runtime._measures, footprint=footprint)
        self.runtime.runner = self._runner  # type: ignore[method-assign]

    def _runner(self, *, batches: bool = True, spare: int | None = None) -> Runner:
        make = self.runtime.make_cache
        spare = self.runtime.footprint.spare if spare is None else spare
        slots = Slots(make, lambda: batches and self.runtime.batches, spare)
        made = Simulated(self.model, make, slots, lambda: self.prefix_cache)
        made.timeline, made.shape = self.timeline, self.shape
        return made
