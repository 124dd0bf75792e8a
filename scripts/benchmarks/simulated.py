"""Devices that nobody has at hand: the engine runs on some model, and on their clock.

Owns what a pass takes there, and the order in which a device works through what it is given. Must
never know a policy. Invariant: every command is carried out, so that what a policy sees is what it
would see there; only the time is reckoned: a pass takes
``max(bytes / bandwidth, flops / throughput) + launches * overhead``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

import mlxgen
from mlxgen.engine.drafts.predictor import Predictor
from mlxgen.engine.kv import Footprint, LayerCache, Slots
from mlxgen.engine.kv.commands import Command, Copy, Keep, Run, Take, Wait
from mlxgen.engine.step.runner import Runner

from .models import fake_tokenizer

LAUNCHES = 16  # kernels of a layer of a Llama: see the count of primitives
HOST_LAYER = 15e-6  # seconds of Python in which a layer's graph is built; a guess
HOST_ROW = 15e-6  # those in which a draw is prepared, masks included; a guess
HOST_TOKEN = 5e-6  # and those in which its token is decided on, after it was read; a guess
DRAWING = 20  # kernels of a draw; a guess


@dataclass(frozen=True, slots=True)
class Device:
    """``bandwidth`` in bytes a second, ``throughput`` in flops a second, as they are reached, and
    ``overhead`` in seconds a kernel launch."""

    name: str
    bandwidth: float
    throughput: float
    overhead: float


# Apple's figures of bandwidth are 400, 546 and 153 GB/s. What is reached of them, and the
# throughput, follow from llama.cpp's table for a 7B model in float16 (discussion 4167: prompt 756
# and 923 tokens a second, generation 24.7 and 31.6, on 38 and 40 cores). For the M5 it is that
# table's M4 with 10 cores times 3.6, which is what Apple measured with its neural accelerators
# (machinelearning.apple.com, "Exploring LLMs with MLX and the Neural Accelerators in the M5 GPU").
# The H200's data sheet says 4.8 TB/s and 989 TFLOPS in bfloat16; three quarters and half of these
# are a guess. So are all overheads: 2 to 5 µs a launch.
DEVICES = (
    Device("M2 Max", 330e9, 10.2e12, 4e-6),
    Device("M4 Max", 430e9, 12.4e12, 3e-6),
    Device("M5", 125e9, 11e12, 3e-6),
    Device("H200", 3.6e12, 500e12, 2.5e-6),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model: its ``weights`` that a pass reads, in number and in bits each; so many of them are
    those of the ``head``."""

    name: str
    weights: float
    bits: float
    layers: int
    heads: int
    kv_heads: int
    width: int = 128
    head: float = 0.0

    @property
    def nbytes(self) -> float:
        return self.weights * self.bits / 8

    @property
    def kv_bytes(self) -> int:
        """Of a token, in 16 bits."""
        return 2 * 2 * self.layers * self.kv_heads * self.width

    @property
    def launches(self) -> int:
        """Kernels of a pass."""
        return LAUNCHES * self.layers + 10

    def seconds(self, device: Device, rows: int, tokens: int, places: int) -> float:
        """A pass of so many tokens for each of ``rows``, which look at ``places`` of KV each."""
        count = rows * tokens
        nbytes = self.nbytes + rows * places * self.kv_bytes
        attention = 4 * self.layers * self.heads * self.width * places
        flops = count * (2 * self.weights + attention)
        busy = max(nbytes / device.bandwidth, flops / device.throughput)
        return busy + self.launches * device.overhead

    def drafting(self, device: Device, tokens: int) -> float:
        """A pass of so many tokens through what predicts further ones: a layer, and the matrix that
        joins a token and a state, which has some 15 % of its weights."""
        return self._part(device, tokens, 1.15 * (self.weights - self.head) / self.layers, LAUNCHES)

    def predicting(self, device: Device, tokens: int) -> float:
        """The head's pass of so many tokens, and a draw."""
        return self._part(device, tokens, self.head, DRAWING)

    def _part(self, device: Device, tokens: int, weights: float, launches: int) -> float:
        nbytes, flops = weights * self.bits / 8, 2 * tokens * weights
        busy = max(nbytes / device.bandwidth, flops / device.throughput)
        return busy + (launches + 5) * device.overhead

    def copying(self, device: Device, tokens: int) -> float:
        """A copy of so many tokens' KV."""
        return 2 * tokens * self.kv_bytes / device.bandwidth + 2 * self.layers * device.overhead


# From the configurations of Qwen3-4B and Llama-3.1-8B. Four bits in groups of 64 with a scale and
# a bias are 4.5. The embedding is not read, unless it is the head as well.
SHAPES = (
    Shape("4B in 4 bits", 4.02e9, 4.5, 36, 32, 8, head=0.39e9),
    Shape("8B in 4 bits", 7.5e9, 4.5, 32, 32, 8, head=0.53e9),
    Shape("8B in bfloat16", 7.5e9, 16, 32, 32, 8, head=0.53e9),
)
SMALL = Shape("0.6B in 4 bits", 0.6e9, 4.5, 28, 16, 8, head=0.16e9)  # Qwen3-0.6B, which drafts


class Timeline:
    """``now`` on the host, and until when the device is busy with what it was given."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.now = self.busy = 0.0

    def work(self, seconds: float) -> float:
        """Give the device more to do; returns when it will be done."""
        self.busy = max(self.busy, self.now) + seconds
        return self.busy

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


class Simulated(Runner):
    """A runner that takes the time of a ``shape`` on a ``timeline``."""

    timeline: Timeline
    shape: Shape

    def do(self, command: Command) -> Any:
        line, shape = self.timeline, self.shape
        result = super().do(command)
        match command:
            case Run(rows):
                stores = [self._stores[kv] for kv, _ in rows]
                tokens = max(len(tokens) for _, tokens in rows)
                places = max(store.length for store in stores)
                line.now += shape.layers * HOST_LAYER
                line.work(shape.seconds(line.device, len(rows), tokens, places))
            case Wait():
                line.wait(line.busy)
            case Keep(kv):
                line.work(shape.copying(line.device, self._stores[kv].length))
            case Copy(_, kv) | Take(kv) if result is not None:
                line.work(shape.copying(line.device, self._stores[kv].length))
        return result

    @cached_property
    def _done(self) -> dict[int, tuple[mx.array, float]]:
        """When arrays will be ready, by their identity."""
        return {}

    def submit(self, arrays: Iterable[mx.array | None]) -> None:
        given = [array for array in arrays if array is not None]
        super().submit(given)
        line = self.timeline
        line.now += HOST_ROW * given[0].shape[0]
        until = line.work(DRAWING * line.device.overhead)
        self._done.update({id(array): (array, until) for array in given})

    def read(self, array: mx.array) -> list[int]:
        _, until = self._done.pop(id(array), (array, self.timeline.busy))
        self.timeline.wait(until)
        tokens = super().read(array)
        self.timeline.now += HOST_TOKEN * len(tokens)
        return tokens

    def now(self) -> float:
        return self.timeline.now

    @property
    def queues(self) -> bool:
        return True


PERIOD = 40
PEAK = 8.7  # gives three quarters to one of 2,000 tokens
VOCAB = 2_000


class Tiny(nn.Module):
    """Goes round ``PERIOD`` tokens most of the time. Its KV is a number for each token."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = [None]

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        keys = inputs.astype(mx.float32)[:, None, :, None]
        cache[0].update_and_fetch(keys, keys)
        following = (inputs + 1) % PERIOD + 256
        return mx.where(mx.arange(VOCAB) == following[..., None], PEAK, 0.0)


class SimulatedPredictor:
    """What predicts further tokens of a model, in the time of one of its ``shape``."""

    def __init__(self, predictor: Predictor, timeline: Timeline, shape: Shape) -> None:
        self._predictor, self._timeline, self._shape = predictor, timeline, shape
        self.width, self.nbytes = predictor.width, predictor.nbytes

    def make_cache(self) -> list[LayerCache]:
        return self._predictor.make_cache()

    def __call__(self, tokens: mx.array, states: mx.array, cache: list[LayerCache]) -> mx.array:
        line = self._timeline
        line.now += HOST_LAYER
        line.work(self._shape.drafting(line.device, tokens.size))
        return self._predictor(tokens, states, cache)

    def trunk(
        self, inputs: mx.array, cache: list[LayerCache], **given: Any
    ) -> tuple[mx.array, mx.array]:
        return self._predictor.trunk(inputs, cache, **given)

    def logits(self, states: mx.array) -> mx.array:
        line = self._timeline
        line.now += HOST_ROW
        line.work(self._shape.predicting(line.device, states.size // self.width))
        return self._predictor.logits(states)


class SimulatedModel(mlxgen.LanguageModel):
    """A model of a ``shape`` on a ``device``, as far as time is concerned, with the text of another
    one. What drafts for it goes on the same ``timeline``."""

    def __init__(
        self,
        device: Device,
        shape: Shape,
        lm: mlxgen.LanguageModel | None = None,
        *,
        timeline: Timeline | None = None,
        draft: Any = None,
    ) -> None:
        self.timeline = timeline or Timeline(device)
        self.shape = shape
        model, tokens = (Tiny(), fake_tokenizer(VOCAB)) if lm is None else (lm.model, lm.tokenizer)
        super().__init__(model, tokens, name=shape.name, max_context=1 << 20, draft=draft)
        if lm is not None and lm.runtime.predictor is not None:
            self.runtime.predictor = SimulatedPredictor(lm.runtime.predictor, self.timeline, shape)
        footprint = Footprint(shape.kv_bytes, (), 0, int(shape.nbytes))
        self.runtime._measures = replace(self.runtime._measures, footprint=footprint)
        self.runtime.runner = self._runner  # type: ignore[method-assign]

    def _runner(self, slots: Slots | None = None) -> Runner:
        cache, predictor = (lambda: self.prefix_cache), self.runtime.predictor
        made = Simulated(self.model, self.runtime.make_cache, slots, cache, predictor=predictor)
        made.timeline, made.shape = self.timeline, self.shape
        return made
