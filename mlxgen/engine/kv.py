"""The KV cache of one sequence, as a part that can be rewound on every cache type.

Owns mlx-lm's cache objects of one sequence, how many tokens they hold, and the
checkpoints that make the untrimmable ones rewindable. Must never know what the
tokens mean, nor how they were sampled. Invariant: ``length`` is the number of
history tokens that every layer holds; a rewind leaves ``length`` at the wanted
place or before it, never after, and what is missing becomes pending tokens.

Three ways back, in this order: trim every layer (plain and quantised caches, and
rotating ones that have not wrapped yet); restore the nearest checkpoint; start
again from nothing. The last one always works, so no rewind is ever refused.

Arrays of a cache are updated in place, and a buffer with a second owner is copied
by the next update. So a fork shares its buffers until one side writes, and
checkpoints are taken rarely and only where a trim cannot do the work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

LayerCache: TypeAlias = Any  # mlx-lm's cache classes are untyped
CacheFactory: TypeAlias = Callable[[], list[LayerCache]]

PREFILL_STEP = 2048  # prompt tokens in one forward pass
CHECKPOINT_EVERY = 64  # tokens between two checkpoints
CHECKPOINTS_KEPT = 3  # the oldest one and the two newest

_ALWAYS_TRIMMABLE = (KVCache, QuantizedKVCache)


class Model(Protocol):
    """What the engine asks of a model: mlx-lm's calling convention."""

    def __call__(self, inputs: mx.array, cache: list[LayerCache]) -> mx.array: ...


class KVPart(Protocol):
    """The KV of one sequence, wherever it is: in caches of its own or in a batch's."""

    length: int

    @property
    def nbytes(self) -> int: ...

    def can_undo(self, count: int) -> bool: ...

    def keep_place(self, count: int) -> None: ...

    def expect_rewinds(self) -> None: ...

    def rewind(self, to: int) -> None: ...

    def fork(self) -> KV: ...

    def fresh(self) -> KV: ...


def sharing_copy(value: Any) -> Any:
    """A copy of a cache (or of a tree of them) that shares the array buffers.

    Every array gets a handle of its own, so that an in-place update of one copy
    rebinds that copy's handle only.
    """
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, (list, tuple)):
        return type(value)(sharing_copy(item) for item in value)
    if hasattr(value, "__dict__"):
        twin = copy.copy(value)
        twin.__dict__.update({k: sharing_copy(v) for k, v in value.__dict__.items()})
        return twin
    return value


def can_trim(layer: LayerCache, count: int, ahead: int = 0) -> bool:
    """Whether ``count`` tokens can be trimmed from a layer, exactly.

    ``ahead`` asks the same of the layer as it would be ``ahead`` tokens later.
    """
    if count == 0:
        return True
    if isinstance(layer, CacheList):
        return all(can_trim(inner, count, ahead) for inner in layer.caches)
    if isinstance(layer, RotatingKVCache):  # exact until the first key is overwritten
        return bool(layer.offset + ahead < layer.max_size)
    if isinstance(layer, ChunkedKVCache):  # exact until keys are dropped at the front
        return bool(layer.start_position == 0 and layer.offset + ahead <= layer.chunk_size)
    if isinstance(layer, ConcatenateKVCache):  # its trim leaves the keys where they are
        return False
    return bool(layer.is_trimmable())


def always_trimmable(layer: LayerCache) -> bool:
    """Whether a layer of this type can be trimmed at any time, by any number of tokens."""
    if isinstance(layer, CacheList):
        return all(always_trimmable(inner) for inner in layer.caches)
    return isinstance(layer, _ALWAYS_TRIMMABLE)


def _cheap_to_keep(layer: LayerCache) -> bool:
    """Whether holding an old state costs little: these are replaced, not updated in place."""
    if isinstance(layer, CacheList):
        return all(_cheap_to_keep(inner) or always_trimmable(inner) for inner in layer.caches)
    return isinstance(layer, (ArraysCache, ConcatenateKVCache))


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    length: int
    layers: tuple[LayerCache | None, ...]  # None where the layer is trimmed instead


class KV:
    """The caches of one sequence; see the module for the rules.

    ``make`` builds the empty caches of the model, one for each layer.
    """

    __slots__ = ("_checkpoints", "_eager", "_make", "_plain", "caches", "length")

    def __init__(self, make: CacheFactory) -> None:
        self._make = make
        self.caches: list[LayerCache] = make()
        self.length = 0
        # Whether every layer can be trimmed at any time: asked for at every step.
        self._plain = all(always_trimmable(layer) for layer in self.caches)
        self._checkpoints: list[_Checkpoint] = []
        # Whether to keep checkpoints although they cost a copy of a window.
        self._eager = False

    @classmethod
    def holding(cls, make: CacheFactory, caches: list[LayerCache], length: int) -> KV:
        """Caches that already hold ``length`` tokens, one for each layer of ``make()``."""
        kv = cls(make)
        kv.hold(caches, length)
        return kv

    def hold(self, caches: list[LayerCache], length: int) -> None:
        """Hold these caches of ``length`` tokens from now on, where it held nothing."""
        self.caches, self.length = caches, length

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers that the caches hold (shared ones counted in full)."""
        return sum(0 if c.empty() else int(c.nbytes) for c in self.caches)

    def forward(self, model: Model, tokens: mx.array) -> mx.array:
        """Run ``tokens`` ([1, n], may be lazy) through the model; nothing is evaluated.

        Returns logits [1, n, vocab]. The caller says that ``tokens`` are the next ones
        of the history. A pass that fails leaves nothing: layers may hold different tokens then.
        """
        try:
            logits = model(tokens, cache=self.caches)
        except BaseException:
            self._clear()
            raise
        self.length += tokens.shape[1]
        return logits

    def arrays(self) -> list[Any]:
        """Everything to evaluate so that the caches are up to date."""
        return [c.state for c in self.caches if not c.empty()]

    def can_undo(self, count: int) -> bool:
        """Whether a forward of ``count`` tokens could be trimmed away again, exactly."""
        return self._plain or all(can_trim(layer, count, ahead=count) for layer in self.caches)

    def expect_rewinds(self) -> None:
        """Say that rewinds are likely: from now on checkpoints are worth a copy."""
        self._eager = True

    def checkpoint(self) -> None:
        """Remember this place if a later rewind could not get back to it by trimming."""
        if self._plain or self.length == 0 or self.can_undo(CHECKPOINT_EVERY):
            return
        if self._checkpoints and self.length - self._checkpoints[-1].length < CHECKPOINT_EVERY:
            return
        fixed = [layer for layer in self.caches if not always_trimmable(layer)]
        if self._eager or all(_cheap_to_keep(layer) for layer in fixed):
            self._remember()

    def keep_place(self, count: int) -> None:
        """Remember this place if a forward of ``count`` tokens could not be trimmed away."""
        at_it = bool(self._checkpoints) and self._checkpoints[-1].length == self.length
        if self.length and not at_it and not self.can_undo(count):
            self._remember()

    def _remember(self) -> None:
        layers = tuple(None if always_trimmable(c) else sharing_copy(c) for c in self.caches)
        self._checkpoints.append(_Checkpoint(self.length, layers))
        if len(self._checkpoints) > CHECKPOINTS_KEPT:
            del self._checkpoints[1]

    def rewind(self, to: int) -> None:
        """Hold at most ``to`` tokens: exactly that many where a trim is exact, else fewer."""
        count = self.length - to
        if count <= 0:
            return
        if all(can_trim(layer, count) for layer in self.caches):
            for layer in self.caches:
                layer.trim(count)
            self.length = to
            self._forget_after(to)
            return
        self._eager = True
        self._forget_after(to)
        if not self._checkpoints:
            self._clear()
            return
        nearest = self._checkpoints[-1]
        for i, kept in enumerate(nearest.layers):
            if kept is None:
                self.caches[i].trim(self.length - nearest.length)
            else:
                self.caches[i] = sharing_copy(kept)
        self.length = nearest.length

    def fork(self) -> KV:
        """An independent copy that shares every buffer until one of the two writes."""
        twin = KV.__new__(KV)
        twin._make = self._make
        twin._plain = self._plain
        twin.caches = sharing_copy(self.caches)
        twin.length = self.length
        twin._checkpoints = list(self._checkpoints)  # never written, only copied from
        twin._eager = self._eager
        return twin

    def fresh(self) -> KV:
        """An empty one of the same model, for when what this one holds cannot be trusted."""
        return KV(self._make)

    def _clear(self) -> None:
        self.caches = self._make()
        self.length = 0
        self._checkpoints.clear()

    def _forget_after(self, to: int) -> None:
        while self._checkpoints and self._checkpoints[-1].length > to:
            self._checkpoints.pop()
